#include "app/train/rank_events.h"

#include "base/fnv1a.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

status rank_events_open(const rank_context *rank, rank_events *out)
{
    char host[HOST_NAME_MAX + 1] = "", node[HOST_NAME_MAX + 32];
    const rendezvous_place *place = &rank->place;
    (void)gethostname(host, sizeof host - 1);
    snprintf(node, sizeof node, "%s_%d", host, (int)getpid());
    *out = (rank_events){.each_step = rank->opts->event_log_steps,
                         .step = {.round = rendezvous_place_attempt(place),
                                  .rank = place->rank,
                                  .world_size = place->world_size}};
    return event_log_open(rank->opts->event_log, place->run_id, node, &out->log);
}

void rank_events_close(rank_events *events)
{
    event_log_close(events->log);
    events->log = NULL;
}

static status hash_array(device *dev, const float *from, size_t count, float *host, uint64_t *hash)
{
    TRY(dev->ops->download(dev, host, from, count * sizeof *host));
    *hash = fnv1a(*hash, host, count * sizeof *host);
    return STATUS_OK;
}

/* Of parameters and optimizer. */
static status hash_state(rank_context *rank, uint64_t *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES], *host = NULL;
    size_t n = optimizer_states(rank->opt, names, states), count = network_count(rank->net);
    uint64_t hash = FNV1A_START;
    TRY(memory_alloc(count * sizeof *host, (void **)&host));
    status st = hash_array(rank->dev, network_parameters(rank->net), count, host, &hash);
    for (size_t i = 0; i < n && optimizer_steps(rank->opt) > 0 && st == STATUS_OK; i++)
        st = hash_array(rank->dev, states[i], count, host, &hash);
    free(host);
    if (st == STATUS_OK)
        *out = hash;
    return st;
}

status rank_events_open_round(rank_events *events, rank_context *rank, const position *at,
                              event_log_opening *opening)
{
    if (events->log == NULL)
        return STATUS_OK;
    opening->round = events->step.round;
    opening->rank = events->step.rank;
    opening->world_size = events->step.world_size;
    opening->step = at->step;
    opening->epoch = at->epoch;
    TRY(hash_state(rank, &opening->state));
    event_log_opens(events->log, opening);
    return STATUS_OK;
}

void rank_events_step_begins(rank_events *events, const rank_context *rank, const position *at,
                             int step)
{
    const uint32_t *indices;
    if (events->log == NULL)
        return;
    events->step.step = at->step + 1;
    events->step.epoch = at->epoch + 1;
    if (!events->each_step)
        return;
    events->step.samples = loader_step_indices(rank->loader, step, &indices);
    events->step.hash = 0;
    for (int64_t i = 0; i < events->step.samples; i++)
        events->step.hash += event_log_sample(indices[i]);
    event_log_step_begins(events->log, &events->step);
}

void rank_events_step_ended(rank_events *events)
{
    if (events->log != NULL && !events->has_stepped)
        event_log_first_step(events->log, &events->step);
    events->has_stepped = true;
}
