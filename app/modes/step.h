/* What the modes do differently in a training step; the loop itself is app/train/train.c's. */
#ifndef MNIST_DDP_APP_MODES_STEP_H
#define MNIST_DDP_APP_MODES_STEP_H

#include "base/status.h"
#include "kernels/batch.h"
#include "kernels/step.h"

#include <stdbool.h>

struct job;
struct training;

/* One batch of a step. */
typedef struct step_batch {
    batch in;
    bool first, last; /* of the step: gradients are set, else added to; they are complete then */
} step_batch;

typedef struct step_ops {
    const char *name; /* as --mode spells it */

    /* Opens what carries tensors between ranks or replicas: network and optimizer are open. */
    status (*open)(struct job *j);

    /* The host's numbers of the step that begins; NULL: nobody else needs them. */
    status (*begin)(struct training *t, const step_plan *plan);

    /* Forward and backward of one batch, or of this rank's part of it. */
    status (*gradients)(struct training *t, const step_batch *b);

    /* Behind the last batch: parameters are the next step's, on all ranks. */
    status (*update)(struct training *t);
} step_ops;

extern const step_ops step_ddp, step_dp, step_ps, step_single;

#endif
