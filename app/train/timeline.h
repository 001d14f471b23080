/* What a rank does when: it enters each moment (dist/moment.h) here, once, and all who want to know
 * hear of it:
 *
 *   the times in result.json   by the host's clock, or by timers on an accelerator's stream
 *   the trace                  a span per moment, of the host and of the stream
 *   the rank's status          what a hang report says of it
 *   the skew                   how long it waited for ranks that came late
 *
 * Of an accelerator that replays graphs only the epoch as a whole is known: MOMENT_ACCELERATOR.
 */
#ifndef MNIST_DDP_APP_TRAIN_TIMELINE_H
#define MNIST_DDP_APP_TRAIN_TIMELINE_H

#include "app/train/skew.h"
#include "dist/moment.h"
#include "dist/process_group.h"
#include "dist/rank_page.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum timeline_clock {
    TIMELINE_OF_HOST,
    TIMELINE_OF_STREAM, /* the device has timers, and its steps are not replayed */
    TIMELINE_OF_EPOCHS,
} timeline_clock;

typedef struct timeline {
    device *dev;
    rank_page *page;
    timeline_clock clock;
    int64_t ns[N_PHASES]; /* of the epochs so far */
    bool in_epoch;        /* else no time is counted */
    moment now;
    int64_t since_ns; /* by the host's clock */
    skew late;
} timeline;

/* Borrows both until it is closed; times are counted by the host's clock, or, of an accelerator,
 * per epoch. timeline_close accepts a zeroed one. */
void timeline_open(device *dev, rank_page *page, timeline *out);
void timeline_close(timeline *t);

/* From now on an accelerator's moments are timed on its stream. Waits for it. STATUS_DEVICE. */
status timeline_time_stream(timeline *t);

/* Waiting for other ranks is told from transfers, if that can be known, in epochs of at most
 * `meetings` moments at which all ranks meet. All ranks call it. */
status timeline_note_meetings(timeline *t, process_group *group, int meetings);

/* An epoch's time begins, with MOMENT_LOAD by the host's clock. */
void timeline_begin_epoch(timeline *t);

/* The host has prepared the epoch: from now on an accelerator's time is its own. */
status timeline_begin_steps(timeline *t);

/* The epoch's time ends. The device has done its work: the host knows all times. */
status timeline_end_epoch(timeline *t);

/* Outside an epoch's time: takes the waiting out of its phases. All ranks call it. */
status timeline_settle_epoch(timeline *t, process_group *group);

/* The rank goes on to `m`. STATUS_DEVICE if the stream's time cannot be told. */
status timeline_enter(timeline *t, moment m);

/* Of what passed as `phase`, `ns` was waiting; known on the host's clock only, else ignored. */
void timeline_waited(timeline *t, moment phase, int64_t ns);

/* Waiting for data on the move: broadcast, scatter, gather and reduce. */
int64_t timeline_exposed_ns(const timeline *t);

#endif
