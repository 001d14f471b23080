/* Of the time that a rank waits for others' data, how much passed before the last of them had come?
 *
 * Every rank notes when each wait for the others begins and ends: a step of DDP has one, whatever
 * the number of its all-reduces. The ranks of a host share a clock, so the
 * latest arrival, exchanged once per epoch outside the timed part, parts skew from transfer. */
#ifndef MNIST_DDP_APP_TRAIN_SKEW_H
#define MNIST_DDP_APP_TRAIN_SKEW_H

#include "dist/health/moment.h"
#include "dist/process_group/process_group.h"

#include <stdbool.h>

typedef struct skew_wait {
    moment phase; /* whose time it is */
    int64_t came_ns, left_ns;
} skew_wait;

typedef struct skew {
    bool known; /* false: nothing is noted, and waiting cannot be told from transfer */
    skew_wait *waits;
    int64_t *latest; /* arrivals */
    int n, room;
} skew;

/* For at most so many `waits` per epoch. Noted if all ranks can and share a host; `can`: this
 * rank's host does the waiting. All ranks call it. A zeroed skew notes nothing. */
status skew_open(process_group *group, bool can, int waits, skew *out);
void skew_close(skew *s);

/* The rank began to wait at came_ns and went on at left_ns. */
void skew_note(skew *s, moment phase, int64_t came_ns, int64_t left_ns);

/* At an epoch's end: moves the waiting from the other phases of `ns` (N_PHASES) to MOMENT_WAITING,
 * and forgets the waits. All ranks call it. */
status skew_settle(skew *s, process_group *group, int64_t *ns);

#endif
