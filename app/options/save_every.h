/* How often a checkpoint is due: --save-every. */
#ifndef MNIST_DDP_APP_OPTIONS_SAVE_EVERY_H
#define MNIST_DDP_APP_OPTIONS_SAVE_EVERY_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct save_every {
    int64_t count; /* of epochs, or of optimizer steps */
    bool in_steps;
} save_every;

/* "5", "5epochs" or "100steps". STATUS_INVALID with what is allowed. */
status save_every_parse(const char *text, save_every *out);

#endif
