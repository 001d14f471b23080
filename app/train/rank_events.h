/* What a rank of `train` adds to --event-log (app/common/event_log.h). */
#ifndef MNIST_DDP_APP_TRAIN_RANK_EVENTS_H
#define MNIST_DDP_APP_TRAIN_RANK_EVENTS_H

#include "app/common/event_log.h"
#include "app/train/position.h"
#include "app/train/rank_context.h"

#include <stdbool.h>

/* Of one round; zeroed: there is no log, and the calls do nothing. */
typedef struct rank_events {
    event_log *log;
    bool each_step; /* --event-log-steps */
    bool has_stepped;
    event_log_step step; /* the latest */
} rank_events;

/* STATUS_IO, STATUS_NO_MEMORY. */
status rank_events_open(const rank_context *rank, rank_events *out);
void rank_events_close(rank_events *events);

/* The round's ranks have begun, or gone on, at `at`. `opening`: its times and state are set. */
void rank_events_open_round(rank_events *events, const position *at, event_log_opening *opening);

/* The rank is about to make `step` of the epoch; `at` is the run's position before it. */
void rank_events_step_begins(rank_events *events, const rank_context *rank, const position *at,
                             int step);

/* It has made it. */
void rank_events_step_ended(rank_events *events);

#endif
