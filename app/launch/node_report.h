/* How one node's workers ended in an attempt, as its agent tells node 0's. */
#ifndef MNIST_DDP_APP_LAUNCH_NODE_REPORT_H
#define MNIST_DDP_APP_LAUNCH_NODE_REPORT_H

#include "app/launch/agent_state.h"
#include "app/launch/process_failure.h"
#include "app/launch/worker_group.h"

enum { NODE_REPORT_TEXT_BYTES = 600 };

typedef struct node_report {
    int node;                          /* whose it is */
    agent_state state;                 /* AGENT_SUCCEEDED or later */
    int signal;                        /* that has told its agent to stop; 0: none has */
    bool lost;                         /* nothing was heard of the node: `text` says how long */
    bool unmet;                        /* elastic: its ranks had not met all others */
    process_failure cause;             /* of AGENT_FAILED; owned */
    char hangs[HANG_REPORT_WHO_BYTES]; /* of its ranks, as hang_report_name has it */
    char *notes; /* where its ranks were, if one waited in vain: lines, or ""; owned */
    char text[NODE_REPORT_TEXT_BYTES];
} node_report;

/* How this node's worker group ended. `signal`: what has told the agent to stop, or 0;
 * memory_killed: the kernel was short of memory meanwhile. */
status node_report_make(const worker_group *group, agent_state state, int signal,
                        bool memory_killed, node_report *out);
void node_report_free(node_report *report);

/* One line of JSON, to be freed with free(). */
status node_report_write(const node_report *report, char **out);
/* What node `node` sent. STATUS_PEER if it is nonsense, or speaks of the ranks of another node. */
status node_report_read(const char *text, int node, const worker_spec *spec, node_report *out);

/* Of a report, and of an outcome that is made of reports. STATUS_PEER if it is no JSON or too long:
 * JSON takes up to a hundred times as much memory as its text. */
status node_report_parse(const char *text, json_t **out);
/* "" if there are none, or something else; to be freed with free(). */
status node_report_read_notes(const json_t *object, char **out);

/* Cuts notes at the end of a line if they are very long. NULL: none. */
void node_report_cut_notes(char *notes);

#endif
