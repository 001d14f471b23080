#include "model/schedule.h"

#include <math.h>
#include <string.h>

/* OneCycleLR's defaults: lr begins at max_lr / 25 and ends at 1e-4 of that. */
#define DIV_FACTOR 25.0
#define FINAL_DIV_FACTOR 1e4

static const char *const NAMES[] = {
    [SCHEDULE_STEP] = "step",
    [SCHEDULE_ONECYCLE] = "onecycle",
    [SCHEDULE_COSINE] = "cosine",
    [SCHEDULE_NONE] = "none",
};
enum { N_KINDS = sizeof NAMES / sizeof NAMES[0] };

status schedule_kind_parse(const char *name, schedule_kind *out)
{
    for (int i = 0; i < N_KINDS; i++)
        if (strcmp(name, NAMES[i]) == 0) {
            *out = (schedule_kind)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "no schedule '%s'; there are: step, onecycle, cosine, none", name);
}

const char *schedule_kind_name(schedule_kind kind)
{
    return NAMES[kind];
}

bool schedule_kind_has_end(schedule_kind kind)
{
    return kind == SCHEDULE_ONECYCLE || kind == SCHEDULE_COSINE;
}

/* Half a cosine from `from` (share 0) to `to` (share 1). */
static double anneal(double from, double to, double share)
{
    return to + (from - to) / 2.0 * (cos(M_PI * share) + 1);
}

/* The peak lies at step pct_start * total - 1, which need not be whole. At step 0 torch divides by
 * zero. */
static double one_cycle(const schedule_options *o, int64_t step)
{
    double first = o->lr / DIV_FACTOR, last = first / FINAL_DIV_FACTOR;
    double at = (double)step, end = (double)o->total_steps - 1;
    double peak = o->pct_start * (double)o->total_steps - 1;
    if (at <= peak)
        return anneal(first, o->lr, peak > 0 ? at / peak : 1);
    return anneal(o->lr, last, (at - peak) / (end - peak));
}

/* The lr of the step after the current one. torch's LinearLR and CosineAnnealingLR compute it from
 * the lr before it, so that schedules can be chained; and so does this, to have the same bits. */
static double next_lr(const schedule *s)
{
    const schedule_options *o = &s->options;
    int64_t step = s->step + 1;
    double warmup = (double)o->warmup_steps, lr = s->lr;
    if (o->kind == SCHEDULE_ONECYCLE)
        return one_cycle(o, step);
    if (o->kind == SCHEDULE_COSINE && step == o->warmup_steps)
        return o->lr;
    if (o->kind == SCHEDULE_COSINE && step > o->warmup_steps) {
        double at = (double)step - warmup, length = (double)o->total_steps - warmup;
        return (1 + cos(M_PI * at / length)) / (1 + cos(M_PI * (at - 1) / length)) * lr;
    }
    if (step <= o->warmup_steps) {
        double rise = 1.0 - o->warmup_factor;
        lr *= 1.0 + rise / (warmup * o->warmup_factor + (double)(step - 1) * rise);
    }
    if (o->kind == SCHEDULE_STEP && step % o->epoch_steps == 0)
        lr *= o->gamma;
    return lr;
}

static double first_lr(const schedule_options *o)
{
    if (o->kind == SCHEDULE_ONECYCLE)
        return one_cycle(o, 0);
    return o->warmup_steps > 0 ? o->lr * o->warmup_factor : o->lr;
}

status schedule_init(const schedule_options *options, schedule *out)
{
    const schedule_options *o = options;
    if (o->kind == SCHEDULE_COSINE && o->warmup_steps > 0 && o->warmup_steps >= o->total_steps)
        return FAIL(STATUS_INVALID,
                    "a warm-up of %lld steps leaves none of the run's %lld for the cosine: give "
                    "fewer --warmup-steps or more --epochs",
                    (long long)o->warmup_steps, (long long)o->total_steps);
    *out = (schedule){.options = *options, .lr = first_lr(options)};
    return STATUS_OK;
}

double schedule_lr(schedule *s, int64_t step)
{
    if (step < s->step)
        *s = (schedule){.options = s->options, .lr = first_lr(&s->options)};
    while (s->step < step) {
        s->lr = next_lr(s);
        s->step++;
    }
    return s->lr;
}
