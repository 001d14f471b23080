/* How often something is due: --save-every, --eval-every. */
#ifndef MNIST_DDP_APP_OPTIONS_INTERVAL_H
#define MNIST_DDP_APP_OPTIONS_INTERVAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct interval {
    int64_t count; /* of epochs, or of optimizer steps; 0: never */
    bool in_steps;
} interval;

/* "5", "5epochs" or "100steps", of at least `least`. `flag`, as "--save-every", is for the message
 * of STATUS_INVALID. */
status interval_parse(const char *flag, int least, const char *text, interval *out);

/* Is it due after so many steps, or epochs, of the run? */
bool interval_is_due_after_steps(const interval *every, int64_t steps);
bool interval_is_due_after_epochs(const interval *every, int64_t epochs);

#endif
