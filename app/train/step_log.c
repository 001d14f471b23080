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

status step_log_add(step_log *log, progress *to, const score *totals, const step_line *line,
                    const metrics_entry *entry)
{
    TRY(step_log_flush(log, to));
    TRY(readback_start(&log->totals, totals));
    log->is_shown = line != NULL;
    log->is_kept = entry != NULL;
    if (line != NULL)
        log->line = *line;
    if (entry != NULL)
        log->entry = *entry;
    bool is_there = log->totals.dev->ops->accelerator == NULL;
    return is_there ? step_log_flush(log, to) : STATUS_OK;
}

status step_log_flush(step_log *log, progress *to)
{
    if (!log->totals.under_way)
        return STATUS_OK;
    TRY(readback_wait(&log->totals));
    const score *totals = log->totals.seen;
    log->entry.loss = totals->last_loss;
    log->entry.grad_norm = totals->grad_norm;
    if (log->is_shown)
        progress_step(to, &log->line, log->entry.loss);
    if (log->is_kept)
        metrics_add(log->kept, &log->entry);
    return STATUS_OK;
}
