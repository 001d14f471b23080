/* The log's lines about steps. An accelerator goes on while a line's loss is on its way: such a
 * line comes one line late, and the last one with step_log_flush. */
#ifndef MNIST_DDP_APP_TRAIN_STEP_LOG_H
#define MNIST_DDP_APP_TRAIN_STEP_LOG_H

#include "app/train/progress.h"
#include "kernels/readback.h"

typedef struct step_log {
    readback totals; /* with the loss */
    step_line line;  /* of this one */
} step_log;

/* step_log_close accepts a zeroed one. */
status step_log_open(device *dev, step_log *out);
void step_log_close(step_log *log);

/* A line about the step that was enqueued last; `totals`, device memory, is what that step leaves.
 */
status step_log_add(step_log *log, progress *to, const score *totals, const step_line *line);

/* Prints the line that is still to come, if one is. */
status step_log_flush(step_log *log, progress *to);

#endif
