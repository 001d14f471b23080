#include "app/train/preempt.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>

status preempt_open(device *dev, const step_numbers *numbers, float *flag, const float *answer,
                    preempt *out)
{
    const accelerator_ops *accelerator = dev->ops->accelerator;
    preempt p = {.dev = dev, .numbers = numbers, .flag = flag, .answer = answer};
    if (accelerator == NULL) {
        *out = p;
        return STATUS_OK;
    }
    status st = memory_alloc(sizeof *p.seen, (void **)&p.seen);
    if (st == STATUS_OK)
        st = accelerator->pin(dev, p.seen, sizeof *p.seen);
    if (st != STATUS_OK) {
        free(p.seen);
        return st;
    }
    st = dev->ops->alloc(dev, sizeof *p.snapshot, (void **)&p.snapshot);
    if (st == STATUS_OK)
        st = accelerator->event_create(dev, &p.copied);
    if (st != STATUS_OK) {
        preempt_close(&p);
        return st;
    }
    *out = p;
    return STATUS_OK;
}

void preempt_close(preempt *p)
{
    if (p->seen != NULL) {
        /* A copy may be on its way into memory that is about to go. Errors are others' news. */
        (void)p->dev->ops->synchronize(p->dev);
        p->dev->ops->accelerator->event_destroy(p->copied);
        p->dev->ops->accelerator->unpin(p->dev, p->seen);
        p->dev->ops->free(p->dev, p->snapshot);
        free(p->seen);
    }
    *p = (preempt){0};
}

status preempt_send(const preempt *p)
{
    return p->dev->ops->copy(p->dev, p->flag, &p->numbers->plan.stop, sizeof *p->flag);
}

/* The copy goes by way of the snapshot: the next step writes the flag while the copy may still be
 * read. */
static status take_snapshot(preempt *p)
{
    TRY(p->dev->ops->copy(p->dev, p->snapshot, p->answer, sizeof *p->answer));
    TRY(p->dev->ops->accelerator->copy_out(p->dev, p->seen, p->snapshot, sizeof *p->seen,
                                           p->copied));
    p->under_way = true;
    p->looks = 0;
    return STATUS_OK;
}

static status read_snapshot(preempt *p)
{
    TRY(p->dev->ops->accelerator->event_wait(p->dev, p->copied));
    p->under_way = false;
    p->agreed = p->agreed || *p->seen > 0.0f;
    return STATUS_OK;
}

status preempt_look(preempt *p, preempt_when when)
{
    if (p->dev->ops->accelerator == NULL) {
        p->agreed = *p->answer > 0.0f;
        return STATUS_OK;
    }
    p->looks++;
    if (p->under_way && (p->looks >= PREEMPT_LAG || when == PREEMPT_NOW))
        TRY(read_snapshot(p));
    if (p->under_way || p->agreed)
        return STATUS_OK;
    TRY(take_snapshot(p));
    return when == PREEMPT_NOW ? read_snapshot(p) : STATUS_OK;
}
