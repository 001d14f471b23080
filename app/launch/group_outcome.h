/* What a attempt's end means for the job: from how each node's worker group ended, to what all do next.
 */
#ifndef MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H
#define MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H

#include "app/launch/agent.h"
#include "app/launch/process_failure.h"
#include "app/launch/worker_group.h"

enum { OUTCOME_TEXT_BYTES = 600 };

/* One node's end of a attempt. */
typedef struct node_report {
    agent_state state;
    int signal;            /* that has told its launcher to stop; 0: none has */
    bool lost;             /* nothing was heard of the node: `text` says how long */
    process_failure cause; /* of AGENT_FAILED; owned */
    char *notes;           /* where its ranks were, where one waited in vain: lines, or ""; owned */
    char text[OUTCOME_TEXT_BYTES];
} node_report;

typedef struct group_outcome {
    bool again;  /* all start their workers again, as the next attempt: nobody was told to stop */
    int code;    /* else what all exit with: the first failing rank's code, 0, ... */
    bool failed; /* `cause` is set */
    process_failure cause;
    char *notes;                   /* of all nodes; never NULL */
    char text[OUTCOME_TEXT_BYTES]; /* where no rank is to blame: what happened; "" */
    int told_by;                   /* the node whose launcher has said it already; -1: none */
} group_outcome;

/* How this node's worker group ended. `signal`: what has told the launcher to stop, or 0; `memory_killed`:
 * the kernel was short of memory meanwhile. */
status node_report_make(const worker_group *group, agent_state state, int signal,
                        bool memory_killed, node_report *out);
void node_report_free(node_report *report);

/* Judges by the records of all nodes, 0 to n - 1: the attempt is the number of restarts so far.
 */
status group_outcome_make(const node_report *reports, int n, const worker_spec *spec, int attempt,
                          group_outcome *out);

/* What comes through the store may come from anybody. Where `out` cannot be true beside what
 * happened here (all is well, though ranks of this node failed or were stopped; one restart more
 * than there are), the outcome is made from `own` alone, and says so. */
status group_outcome_doubt(const node_report *own, const worker_spec *spec, int attempt,
                           group_outcome *out);
void group_outcome_free(group_outcome *outcome);

/* One line of JSON each, to be freed with free(); STATUS_PEER where what came is nonsense. */
status node_report_write(const node_report *report, char **out);
status node_report_read(const char *text, node_report *out);
status group_outcome_write(const group_outcome *outcome, char **out);
status group_outcome_read(const char *text, group_outcome *out);

#endif
