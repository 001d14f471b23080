/* Where training stands. */
#ifndef MNIST_DDP_APP_TRAIN_POSITION_H
#define MNIST_DDP_APP_TRAIN_POSITION_H

#include "app/train/rank_context.h"

#include <stdint.h>

typedef struct position {
    int64_t epoch;         /* completed epochs */
    int64_t step_in_epoch; /* optimizer steps after those */
    int64_t step;          /* optimizer steps of the whole run */
    double epoch_loss;     /* of those after the completed epochs, all ranks: sum over samples, */
    int64_t epoch_samples; /* and how many they are */
    int64_t epoch_first;   /* of the epoch's order, where this world size began: others used those
                              before it, and step_in_epoch counts from here; 0: the beginning */
    int64_t world_changes; /* how often the run has gone on with another world size */
    double epoch_s;        /* what the epoch took in earlier rounds of this job, */
    int64_t epoch_timed;   /* and how many of its samples they did in it */
} position;

/* Another number of ranks goes on with a run: what no step of the epoch has used is dealt out anew,
 * each image once. */

/* The ranks that have come to a position. */
typedef struct former_world {
    int64_t size;
    int64_t batch_size, accum; /* of each */
    double lr;
} former_world;

/* How the run goes on. */
typedef struct world_change {
    former_world was;
    uint32_t left, padded, dropped; /* images of the epoch: that are left; and by the sampler */
} world_change;

/* The ranks of `rank`, which is open. */
former_world world_change_now(const rank_context *rank);

/* Moves *at, where the former world stood, to where this one begins. The same on all ranks. */
status world_change_make(const rank_context *rank, const former_world *was, position *at,
                         world_change *out);

/* The learning rate of step `step` of the epoch at `at`, in this world: other worlds have had their
 * share of the epoch's steps before it. */
double world_change_lr(rank_context *rank, const position *at, int64_t step);

/* In the log. */
void world_change_say(const rank_context *rank, const world_change *change, const position *at);

#endif
