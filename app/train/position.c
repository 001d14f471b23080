#include "app/train/position.h"

#include "base/log.h"
#include "data/sampler.h"

#include <inttypes.h>

former_world world_change_now(const rank_context *rank)
{
    return (former_world){.size = rank->place.world_size,
                          .batch_size = rank->settings.batch_size,
                          .accum = rank->opts->accum,
                          .lr = rank->settings.schedule.lr};
}

status world_change_make(const rank_context *rank, const former_world *was, position *at,
                         world_change *out)
{
    sampler_plan plan;
    sampler_options rest = {.samples = rank->train_set.count,
                            .first = (uint32_t)at->epoch_first,
                            .world_size = (int)was->size,
                            .drop_last = rank->opts->drop_last};
    double taken = (double)at->step_in_epoch * (double)was->batch_size * (double)was->accum;
    rest.first = taken < (double)UINT32_MAX ? sampler_used(&rest, (uint64_t)taken) : rest.samples;
    rest.world_size = rank->place.world_size;
    TRY(sampler_check(&rest, &plan));
    at->epoch_first = rest.first;
    at->step_in_epoch = 0;
    at->world_changes++;
    *out = (world_change){*was, rest.samples - rest.first, plan.padded, plan.dropped};
    return STATUS_OK;
}

double world_change_lr(rank_context *rank, const position *at, int64_t step)
{
    int64_t steps = loader_steps(rank->loader), before = at->epoch * steps;
    int64_t others = steps * at->epoch_first / (int64_t)rank->train_set.count;
    int64_t found = before + others + step, last = before + steps - 1;
    return schedule_lr(&rank->schedule, found < last ? found : last);
}

void world_change_say(const rank_context *rank, const world_change *change, const position *at)
{
    int64_t was = change->was.size, batch_size = change->was.batch_size;
    int now = rank->place.world_size;
    LOG_V("world size %" PRId64 " -> %d: batch %" PRId64 " -> %d of each rank, %" PRId64
          " -> %" PRId64 " of all (--elastic-batch=%s)",
          was, now, batch_size, rank->settings.batch_size, was * batch_size * change->was.accum,
          rank_context_global_batch(rank), rank_settings_elastic_batch(rank->opts));
    if (rank->opts->scale_lr)
        LOG_V("--lr %g x %" PRId64 " ranks -> %g x %d ranks: the learning rate is %g, was %g",
              rank->settings.lr, was, rank->settings.lr, now, rank->settings.schedule.lr,
              change->was.lr);
    if (at->epoch_first > 0 && change->left > 0)
        LOG_V("world size %" PRId64 " -> %d: %u images of epoch %" PRId64
              " are left and are redistributed (%u repeated, %u dropped)",
              was, now, change->left, at->epoch + 1, change->padded, change->dropped);
}
