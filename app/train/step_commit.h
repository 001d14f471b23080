/* In an elastic run no rank begins a step's optimizer before it knows that the gradients of all
 * ranks have come. So whoever loses another rank has parameters that are those after a whole step,
 * and all ranks lose one step at most. They also learn each step's loss of all ranks: a rank that
 * is lost later takes nothing of the epoch's mean with it. */
#ifndef MNIST_DDP_APP_TRAIN_STEP_COMMIT_H
#define MNIST_DDP_APP_TRAIN_STEP_COMMIT_H

#include "base/status.h"

#include <stdint.h>

struct rank_context;

struct work;

typedef struct step_commit {
    double step[2];    /* losses and images of the step: of this rank, then of all */
    struct work *sent; /* under way */
    double read;       /* the network's sum of losses when it was last looked at */
    double loss;       /* of all ranks' images since the beginning: their sum, */
    int64_t images;    /* and how many they are, with the sampler's padding */
    int64_t updates;   /* of the optimizer at the beginning */
} step_commit;

/* All is counted from here on, between two steps. */
void step_commit_begin(struct rank_context *rank);

/* The network's totals begin anew. */
void step_commit_reset_score(step_commit *commit);

/* After the step's backward, before its gradients are waited for: the losses of the step, with
 * `images` of this rank, set out. On a GPU, and where gradients leave late, they go later. */
status step_commit_launch(struct rank_context *rank, int images);

/* After the gradients were waited for, before the optimizer: the host waits until those and the
 * losses of all ranks have come. Both fail as a collective does. */
status step_commit_wait(struct rank_context *rank, int images);

#endif
