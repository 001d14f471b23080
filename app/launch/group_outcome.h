/* What the end of an attempt means for all nodes: from their reports to what all do next. */
#ifndef MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H
#define MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H

#include "app/launch/node_report.h"

typedef struct group_outcome {
    bool again;  /* all start their workers again, as the next attempt: nobody was told to stop */
    int code;    /* else what all exit with: the first failing rank's code, 0, ... */
    bool failed; /* `cause` is set */
    process_failure cause;
    char *notes;                       /* of all nodes; never NULL */
    char text[NODE_REPORT_TEXT_BYTES]; /* if no rank is to blame: what happened; "" */
    int told_by;                       /* the node whose agent has said `text` already; -1: none */
} group_outcome;

/* From the reports of all nodes; or of this one (n = 1), if it decides alone. The attempt is the
 * number of restarts so far. */
status group_outcome_make(const node_report *reports, int n, const worker_spec *spec, int attempt,
                          group_outcome *out);

/* What comes through the store may come from anybody. If `out` cannot be true beside what
 * happened here (all is well, though ranks of this node failed or were stopped; one restart more
 * than there are), the outcome is made from `own` alone, and says so. */
status group_outcome_doubt(const node_report *own, const worker_spec *spec, int attempt,
                           group_outcome *out);
void group_outcome_free(group_outcome *outcome);

/* One line of JSON each, to be freed with free(); STATUS_PEER if what came is nonsense. */
status group_outcome_write(const group_outcome *outcome, char **out);
status group_outcome_read(const char *text, group_outcome *out);

#endif
