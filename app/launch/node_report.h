/* How one node's workers ended in an attempt, as its agent tells node 0. */
#ifndef MNIST_DDP_APP_LAUNCH_NODE_REPORT_H
#define MNIST_DDP_APP_LAUNCH_NODE_REPORT_H

#include "app/launch/agent.h"
#include "app/launch/process_failure.h"
#include "app/launch/worker_group.h"

enum { NODE_REPORT_TEXT_BYTES = 600 };

typedef struct node_report {
    agent_state state;     /* AGENT_SUCCEEDED to AGENT_BROKEN */
    int signal;            /* that has told its agent to stop; 0: none has */
    bool lost;             /* nothing was heard of the node: `text` says how long */
    process_failure cause; /* of AGENT_FAILED; owned */
    char *notes;           /* where its ranks were, if one waited in vain: lines, or ""; owned */
    char text[NODE_REPORT_TEXT_BYTES];
} node_report;

/* How this node's worker group ended. `signal`: what has told the agent to stop, or 0;
 * memory_killed: the kernel was short of memory meanwhile. */
status node_report_make(const worker_group *group, agent_state state, int signal,
                        bool memory_killed, node_report *out);
void node_report_free(node_report *report);

/* One line of JSON, to be freed with free(); STATUS_PEER if what came is nonsense. */
status node_report_write(const node_report *report, char **out);
status node_report_read(const char *text, node_report *out);

/* What reports have in common with the outcome that is made of them. */

/* Cuts notes at the end of a line, if they are very long. NULL: none. */
void node_report_cut(char *notes);
/* The object as one line; the object is freed. */
status node_report_print(json_t *object, char **out);
/* STATUS_PEER if it is too long or no JSON. */
status node_report_parse(const char *text, json_t **out);
/* "notes", to be freed; and "cause", if it is there. */
status node_report_read_notes(const json_t *object, char **out);
status node_report_read_cause(const json_t *object, bool *there, process_failure *out);

#endif
