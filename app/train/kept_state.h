/* What a run has come to after its last completed step, in host memory: it outlives the round in
 * which the rank has taken that step. Loss scaling and the totals of the epoch are in it; random
 * numbers need nothing, as they come from seed, epoch and sample. */
#ifndef MNIST_DDP_APP_TRAIN_KEPT_STATE_H
#define MNIST_DDP_APP_TRAIN_KEPT_STATE_H

#include "app/train/result.h"
#include "app/train/world_change.h"

enum { KEPT_STATE_NONE = -1 };

/* Where a run stands, and with whom it came there. */
typedef struct kept_place {
    position at;
    former_world world;
    test_found best;
    char sums[CHECKPOINT_SUMS_BYTES];
    int64_t began_ns; /* the run, by this process's clock */
} kept_place;

/* Begins as {.step = KEPT_STATE_NONE}. */
typedef struct kept_state {
    int64_t step; /* place.at.step; KEPT_STATE_NONE: there is nothing else */
    kept_place place;
    size_t count;
    float *parameters;                   /* (count), owned */
    float *states[OPTIMIZER_MAX_STATES]; /* (count) each, owned; NULL: the optimizer has fewer */
    int64_t optimizer_steps;
    loss_scaling scaling;
} kept_state;

/* Copies it from the rank's device, whose process group has been destroyed: nothing that is
 * enqueued waits for another rank.
 * `updates`: of the optimizer; it may have begun one that has not come to its end. On failure there
 * is KEPT_STATE_NONE. */
status kept_state_take(rank_context *rank, const kept_place *place, int64_t updates,
                       kept_state *out);

/* Copies parameters, optimizer state and loss scaling to the device of `rank`, of the same model
 * and optimizer. */
status kept_state_restore(const kept_state *kept, rank_context *rank);

void kept_state_free(kept_state *kept);

#endif
