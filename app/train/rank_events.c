#include "app/train/rank_events.h"

#include <limits.h>
#include <stdio.h>
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

void rank_events_open_round(rank_events *events, const position *at, event_log_opening *opening)
{
    if (events->log == NULL)
        return;
    opening->round = events->step.round;
    opening->rank = events->step.rank;
    opening->world_size = events->step.world_size;
    opening->step = at->step;
    opening->epoch = at->epoch;
    event_log_opens(events->log, opening);
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
