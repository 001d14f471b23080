#include "app/train/phase_timers.h"

#include "kernels/ops.h"

status phase_timers_open(device *dev, phase_timers *out)
{
    phase_timers timers = {.dev = dev};
    status st = STATUS_OK;
    for (int i = 0; i < PHASE_TIMERS && st == STATUS_OK; i++)
        st = dev->ops->accelerator->timer_create(dev, &timers.events[i]);
    if (st != STATUS_OK) {
        phase_timers_close(&timers);
        return st;
    }
    *out = timers;
    return STATUS_OK;
}

void phase_timers_close(phase_timers *timers)
{
    for (int i = 0; i < PHASE_TIMERS && timers->dev != NULL; i++)
        timers->dev->ops->accelerator->event_destroy(timers->events[i]);
    *timers = (phase_timers){0};
}

/* The last event becomes the first. */
static status add_up(phase_timers *t, phases *time)
{
    const accelerator_ops *ops = t->dev->ops->accelerator;
    int last = t->n - 1;
    TRY(ops->event_wait(t->dev, t->events[last]));
    for (int i = 0; i < last; i++) {
        int64_t ns = 0;
        TRY(ops->event_elapsed(t->dev, t->events[i], t->events[i + 1], &ns));
        time->ns[t->which[i]] += ns;
    }
    struct device_event *first = t->events[0];
    t->events[0] = t->events[last];
    t->events[last] = first;
    t->which[0] = t->which[last];
    t->n = 1;
    return STATUS_OK;
}

status phase_timers_enter(phase_timers *timers, phase which, phases *time)
{
    if (timers->n == PHASE_TIMERS)
        TRY(add_up(timers, time));
    TRY(timers->dev->ops->accelerator->event_record(timers->dev, timers->events[timers->n]));
    timers->which[timers->n++] = which;
    return STATUS_OK;
}

status phase_timers_settle(phase_timers *timers, phases *time)
{
    if (timers->n > 0)
        TRY(add_up(timers, time));
    timers->n = 0;
    return STATUS_OK;
}
