/* The moments of a rank: what it does, one thing after the other.
 *
 * One table (moment.c) is all that the program knows of them. A rank enters a moment once, through
 * app/train/timeline.h; the phases of result.json, the spans of a trace, the times of an
 * accelerator's stream and what a hang report says of a rank all come from the table. A new moment
 * is a name here and a row there.
 */
#ifndef MNIST_DDP_DIST_HEALTH_MOMENT_H
#define MNIST_DDP_DIST_HEALTH_MOMENT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum moment {
    /* The phases: all training time counts as one of these. */
    MOMENT_LOAD,
    MOMENT_BROADCAST, /* parameters to replicas or ranks */
    MOMENT_SCATTER,   /* inputs to replicas */
    MOMENT_FORWARD,
    MOMENT_GATHER, /* logits to the master, and their gradients back */
    MOMENT_BACKWARD,
    MOMENT_REDUCE,  /* gradients */
    MOMENT_WAITING, /* for a replica or rank that is not there yet; never entered: it is a part of
                       the moments above, found out later */
    MOMENT_OPTIMIZER,
    MOMENT_ACCELERATOR, /* all of it, if the host only enqueues */
    N_PHASES,

    MOMENT_START = N_PHASES,
    MOMENT_BARRIER,  /* an epoch begins when all ranks have come */
    MOMENT_DDP_WAIT, /* for the gradients that backward has not hidden */
    MOMENT_GRAPH,    /* a recorded step is replayed */
    MOMENT_BETWEEN,  /* two steps */
    MOMENT_EVALUATION,
    MOMENT_CHECKPOINT,
    MOMENT_LEAVE,
    N_MOMENTS,
} moment;

typedef struct moment_facts {
    const char *name;  /* in result.json and in a trace; NULL: a trace has no span of it */
    const char *doing; /* in a hang report: "in the forward pass" */
    moment phase;      /* what its time is counted as */
    bool meets;        /* all ranks meet here: a rank that comes early waits for the others */
} moment_facts;

/* The table's row, which lives as long as the program. */
const moment_facts *moment_about(moment m);

#ifdef __cplusplus
}
#endif
#endif
