#include "app/train/step_log.h"

#include "kernels/ops.h"

status step_log_open(device *dev, step_log *out)
{
    return readback_open(dev, sizeof(score), &out->totals);
}

void step_log_close(step_log *log)
{
    readback_close(&log->totals);
}

status step_log_add(step_log *log, progress *to, const score *totals, const step_line *line)
{
    TRY(step_log_flush(log, to));
    TRY(readback_start(&log->totals, totals));
    log->line = *line;
    bool is_there = log->totals.dev->ops->accelerator == NULL;
    return is_there ? step_log_flush(log, to) : STATUS_OK;
}

status step_log_flush(step_log *log, progress *to)
{
    if (!log->totals.under_way)
        return STATUS_OK;
    TRY(readback_wait(&log->totals));
    progress_step(to, &log->line, ((const score *)log->totals.seen)->last_loss);
    return STATUS_OK;
}
