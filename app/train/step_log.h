/* What is said of single steps: lines of the log, and lines of metrics.jsonl. An accelerator goes
 * on while a line's loss is on its way: such a line comes one line late, and the last one with
 * step_log_flush. */
#ifndef MNIST_DDP_APP_TRAIN_STEP_LOG_H
#define MNIST_DDP_APP_TRAIN_STEP_LOG_H

#include "app/train/metrics.h"
#include "app/train/progress.h"
#include "kernels/readback.h"

typedef struct step_log {
    readback totals; /* with the loss */
    bool is_shown, is_kept;
    step_line line;      /* for the log, if it is shown */
    metrics_entry entry; /* for `kept`, if it is kept */
    metrics *kept;       /* set by the owner; NULL: nothing is kept */
} step_log;

/* step_log_close accepts a zeroed one. */
status step_log_open(device *dev, step_log *out);
void step_log_close(step_log *log);

/* About the step that was enqueued last; `totals`, device memory, is what that step leaves. `line`
 * is NULL if the log is to have none, `entry` if nothing is to be kept; the loss is added. */
status step_log_add(step_log *log, progress *to, const score *totals, const step_line *line,
                    const metrics_entry *entry);

/* Prints the line that is still to come, if one is. */
status step_log_flush(step_log *log, progress *to);

#endif
