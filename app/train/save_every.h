/* When a checkpoint is due: --save-every. */
#ifndef MNIST_DDP_APP_TRAIN_SAVE_EVERY_H
#define MNIST_DDP_APP_TRAIN_SAVE_EVERY_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct save_every {
    int64_t count; /* of epochs, or of optimizer steps */
    bool in_steps;
} save_every;

/* "5", "5epochs" or "100steps". STATUS_INVALID with what is allowed. */
status save_every_parse(const char *text, save_every *out);

/* After `step` optimizer steps of the run, or `epoch` epochs. */
static inline bool save_every_step_is_due(const save_every *every, int64_t step)
{
    return every->in_steps && step % every->count == 0;
}

static inline bool save_every_epoch_is_due(const save_every *every, int64_t epoch)
{
    return !every->in_steps && epoch % every->count == 0;
}

#endif
