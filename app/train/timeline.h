/* What a rank does when: it enters each moment (dist/health/rank_status.h) here, once, and
 * from here it goes to:
 *
 *   the times in result.json   by the host's clock, or by timers on an accelerator's stream
 *   the trace                  a span per moment, of the host and of the stream
 *   the rank's status          what a hang report says of it
 *   the skew                   how long it waited for ranks that came late
 *
 * Of an accelerator that replays graphs only the epoch as a whole is known: MOMENT_ACCELERATOR.
 *
 * An epoch: begin_epoch, count_from_here, begin_steps, for each step begin_step, moments and
 * end_step, then stop_counting, further moments whose time is not the epoch's, end_epoch.
 */
#ifndef MNIST_DDP_APP_TRAIN_TIMELINE_H
#define MNIST_DDP_APP_TRAIN_TIMELINE_H

#include "app/trace/run_trace.h"
#include "dist/health/rank_status.h"
#include "dist/process_group/process_group.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

/* Of the time that a rank waits for others' data, how much passed before the last of them had come?
 *
 * Every rank notes when each wait for the others begins and ends: a step of DDP has one, whatever
 * the number of its all-reduces. The latest arrival, exchanged once per epoch outside the timed
 * part, parts skew from transfer. The ranks of a host share a clock. Those of several hosts compare
 * theirs before and after each epoch; between the two the offset is taken to move evenly. */
typedef struct skew_wait {
    moment phase; /* whose time it is */
    int64_t came_ns, left_ns;
} skew_wait;

/* A rank's clock at at_ns + the offset is rank 0's. */
typedef struct skew_clock {
    int64_t at_ns, offset_ns;
} skew_clock;

typedef struct skew {
    bool known; /* false: nothing is noted, and waiting cannot be told from transfer */
    skew_wait *waits;
    int64_t *latest; /* arrivals, by rank 0's clock, and whether no offset fits */
    int n, room;
    skew_clock before; /* the clocks before the epoch */
} skew;

/* For at most so many `waits` per epoch. Noted if all ranks can; `can`: this rank's host does the
 * waiting. All ranks call it. A zeroed skew notes nothing. */
status skew_open(process_group *group, bool can, int waits, skew *out);
void skew_close(skew *s);

/* The rank began to wait at came_ns and went on at left_ns. */
void skew_note(skew *s, moment phase, int64_t came_ns, int64_t left_ns);

/* At an epoch's end: moves the waiting from the other phases of `ns` (N_PHASES) to MOMENT_WAITING,
 * and forgets the waits. If a host's clock has jumped meanwhile, nothing is known from then on. All
 * ranks call it. */
status skew_settle(skew *s, process_group *group, int64_t *ns);

typedef enum timeline_clock {
    TIMELINE_OF_HOST,
    TIMELINE_OF_STREAM, /* the device has timers, and its steps are not replayed */
    TIMELINE_OF_EPOCHS,
} timeline_clock;

typedef struct timeline {
    device *dev;
    rank_status *page;
    run_trace *trace;
    timeline_clock clock;
    int64_t ns[N_PHASES]; /* in the epochs so far */
    bool counts;          /* else time is no phase's */
    moment now;
    moment entered;   /* the latest, by whatever clock */
    int64_t since_ns; /* by the host's clock */
    int64_t slow_ms;  /* --inject=slow: so much longer a forward or a backward takes */
    skew skew;
} timeline;

/* Borrows all three until it is closed. Times are by the host's clock, or, of an accelerator, per
 * epoch. timeline_close accepts a zeroed one. */
void timeline_open(device *dev, rank_status *page, run_trace *spans, timeline *out);
void timeline_close(timeline *t);

/* From now on an accelerator's moments are timed on its stream. Waits for it. STATUS_DEVICE. */
status timeline_time_stream(timeline *t);

/* Waiting for other ranks is told from transfers, if that can be known, in epochs of at most
 * `waits` moments at which all ranks meet. All ranks call it. */
status timeline_measure_waiting(timeline *t, process_group *group, int waits);

/* The rank goes on to `m`. STATUS_DEVICE if the stream's time cannot be told. */
status timeline_enter(timeline *t, moment m);

/* Around epoch `epoch`, from 0. */
void timeline_begin_epoch(timeline *t, int64_t epoch);
void timeline_end_epoch(timeline *t);

/* From now on time is counted. While the host prepares the epoch it counts as MOMENT_LOAD, by the
 * host's clock. From timeline_begin_steps on it counts as the moments that are entered. Those of an
 * accelerator are timed on its stream, or all count as MOMENT_ACCELERATOR (timeline_clock). */
void timeline_count_from_here(timeline *t);
status timeline_begin_steps(timeline *t);

/* The device has done its work. The host now knows all times. */
status timeline_stop_counting(timeline *t);

/* Outside the time that is counted: takes the waiting out of the epoch's other phases. All ranks
 * call it. */
status timeline_settle_waiting(timeline *t, process_group *group);

/* Around optimizer step `step` of the run, from 1, in epoch `epoch`, from 0. A step begins with
 * MOMENT_LOAD. */
status timeline_begin_step(timeline *t, int64_t epoch, int64_t step);
void timeline_end_step(timeline *t);

/* Of what was counted as `phase`, `ns` was waiting. Ignored unless the host's clock counts. */
void timeline_waited(timeline *t, moment phase, int64_t ns);

/* Waiting for data on the move: broadcast, scatter, gather and reduce. */
int64_t timeline_exposed_ns(const timeline *t);

#endif
