#include "app/train/pace.h"

#include "base/clock.h"

void pace_begin_epoch(pace *p, int64_t now_ns)
{
    p->epoch_started_ns = now_ns;
}

void pace_leave_out(pace *p, int64_t ns)
{
    p->epoch_started_ns += ns;
}

/* The first step takes longer than the others: as soon as there is a second one, time counts from
 * its end. Tests and checkpoints count: as many are to come. */
static void estimate_end(pace *p, const rank_context *rank, const step_line *line)
{
    int64_t step = line->epoch * line->steps + line->step;
    int64_t left = rank->opts->epochs * line->steps - step - 1;
    int64_t since_ns = p->is_under_way ? p->first_ns : p->epoch_started_ns;
    int64_t done = p->is_under_way ? step - p->first_step : 1;
    if (!p->is_under_way) {
        p->is_under_way = true;
        p->first_step = step;
        p->first_ns = line->now_ns;
    }
    if (done > 0)
        p->end_ns = line->now_ns +
                    (int64_t)((double)(line->now_ns - since_ns) * (double)left / (double)done);
}

void pace_note(pace *p, const rank_context *rank, const step_line *line)
{
    double elapsed_s = clock_seconds(line->now_ns - p->epoch_started_ns);
    p->images_per_s =
        (double)line->samples * rank->place.world_size / (elapsed_s > 0 ? elapsed_s : 1);
    p->steps_per_s = p->images_per_s / (double)rank_context_global_batch(rank);
    estimate_end(p, rank, line);
}
