#include "app/train/preempt.h"

#include "kernels/ops.h"

#include <math.h>

static bool is_accelerator(const preempt *p)
{
    return p->dev->ops->accelerator != NULL;
}

void preempt_note_diverged(preempt *p)
{
    p->agreed = p->diverged = true;
}

static void take_answer(preempt *p, float sum)
{
    if (isnan(sum))
        preempt_note_diverged(p);
    bool may_pause = p->ranks > 0 && sum < 0.5f / (float)p->ranks;
    p->agreed = p->agreed || (sum > 0.0f && !may_pause);
    p->paused = p->paused || (sum > 0.0f && may_pause);
}

status preempt_open(device *dev, float *flag, const float *answer, preempt *out)
{
    preempt p = {.dev = dev, .flag = flag, .answer = answer};
    if (is_accelerator(&p))
        TRY(readback_open(dev, sizeof *answer, &p.copy));
    *out = p;
    return STATUS_OK;
}

void preempt_close(preempt *p)
{
    readback_close(&p->copy);
    *p = (preempt){0};
}

static status start_copy(preempt *p)
{
    p->looks = 0;
    return readback_start(&p->copy, p->answer);
}

static status finish_copy(preempt *p)
{
    TRY(readback_wait(&p->copy));
    take_answer(p, *(const float *)p->copy.seen);
    return STATUS_OK;
}

status preempt_look(preempt *p, preempt_when when)
{
    if (!is_accelerator(p)) {
        take_answer(p, *p->answer);
        return STATUS_OK;
    }
    p->looks++;
    if (p->copy.under_way && (p->looks >= PREEMPT_LAG || when == PREEMPT_NOW))
        TRY(finish_copy(p));
    if (p->copy.under_way || p->agreed)
        return STATUS_OK;
    TRY(start_copy(p));
    return when == PREEMPT_NOW ? finish_copy(p) : STATUS_OK;
}
