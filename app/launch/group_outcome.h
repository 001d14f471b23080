/* What the end of an attempt means for all nodes: from their reports to what all do next. */
#ifndef MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H
#define MNIST_DDP_APP_LAUNCH_GROUP_OUTCOME_H

#include "app/launch/node_report.h"

typedef struct group_outcome {
    bool again;  /* all start their workers again, as the next attempt */
    bool counts; /* of `again`: as one of --max-restarts, because a rank has failed */
    bool unmet;  /* of `again`: elastic: the ranks of the round have not all met */
    int code;    /* else what all exit with: the first failing rank's code, 0, ... */
    bool failed; /* `cause` is set */
    process_failure cause;
    char *notes;                       /* of all nodes; never NULL */
    char hangs[HANG_REPORT_WHO_BYTES]; /* of all nodes: who is stopped, else who is late; "" */
    char text[NODE_REPORT_TEXT_BYTES]; /* if no rank is to blame: what happened; "" */
    int told_by;                       /* the node whose agent has said `text` already; -1: none */
    int *lost;                         /* nodes that are gone, in their order; owned */
    int n_lost;
} group_outcome;

/* From the reports of all nodes; or of this one (n = 1), if it decides alone. A static job goes on
 * if a rank has failed, restarts are left and nobody was told to stop. An elastic one goes on also
 * without the nodes that are lost or were told to stop, unless all were. */
status group_outcome_make(const node_report *reports, int n, const worker_spec *spec,
                          group_outcome *out);

/* What comes through the store may come from anybody. If `out` cannot be true beside what
 * happened here (all is well, though ranks of this node failed or were stopped; one restart more
 * than there are), the outcome is made from `own` alone, and says so. */
status group_outcome_doubt(const node_report *own, const worker_spec *spec, group_outcome *out);
void group_outcome_free(group_outcome *outcome);

/* One line of JSON each, to be freed with free(); STATUS_PEER if what came is nonsense. */
status group_outcome_write(const group_outcome *outcome, char **out);
status group_outcome_read(const char *text, group_outcome *out);

#endif
