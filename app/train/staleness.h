/* The rule of an asynchronous parameter server, without what moves gradients and parameters: how
 * old parameters are when gradients of them come, and who waits for whom.
 *
 * Stale synchronous parallel (Ho et al., 2013): a trainer whose steps are more than those of the
 * slowest by more than the bound gets no parameters for its next one before the slowest has caught
 * up. So the gradients of a step are of parameters that lack at most staleness_most() of the
 * others' updates. With a bound of 0 all trainers begin each step with the same parameters. */
#ifndef MNIST_DDP_APP_TRAIN_STALENESS_H
#define MNIST_DDP_APP_TRAIN_STALENESS_H

#include "base/status.h"

#include <stdint.h>

enum { STALENESS_ROWS = 32 };

typedef struct staleness {
    int trainers;
    int64_t bound;                /* steps that a trainer may be ahead of the slowest; -1: any */
    int64_t meet;                 /* after this step all wait for all: an epoch's end, or a stop */
    int64_t version;              /* of the parameters: updates since they were opened */
    int64_t made;                 /* steps of all trainers in the epoch */
    int64_t rows[STALENESS_ROWS]; /* updates by their staleness; the last row: that, or more */
    int64_t most;                 /* the largest so far */
    struct staleness_trainer {
        int64_t steps; /* in the epoch */
        int64_t has;   /* the version of its parameters */
        int call;      /* by which it waits for others; 0: it makes a step */
    } * each;          /* (trainers) */
} staleness;

status staleness_open(int trainers, int64_t bound, staleness *out);
void staleness_close(staleness *s); /* accepts a zeroed one */

/* All trainers have the latest parameters, and `step` steps of the epoch behind them. */
void staleness_begin(staleness *s, int64_t step, int64_t meet);

/* The trainer's gradients have become an update: it waits from now on. Returns their staleness: the
 * updates that came between. */
int64_t staleness_push(staleness *s, int trainer, int call);

/* A trainer that waits and may go on, with the latest parameters. -1: there is none. *call: by
 * which it has waited. */
int staleness_next(staleness *s, int *call);

/* All are to meet as soon as that is possible: after the furthest step that any has begun. */
void staleness_stop(staleness *s);

/* The most that a bound allows: while a trainer makes its step, each other one can make those that
 * it is behind, its own, and those that it may be ahead. -1: no bound. */
static inline int64_t staleness_most(int trainers, int64_t bound)
{
    return bound < 0 ? -1 : (2 * bound + 1) * (trainers - 1);
}

#endif
