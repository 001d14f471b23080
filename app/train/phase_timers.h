/* The phases of work that an accelerator does while the host only enqueues: events on its stream.
 */
#ifndef MNIST_DDP_APP_TRAIN_PHASE_TIMERS_H
#define MNIST_DDP_APP_TRAIN_PHASE_TIMERS_H

#include "app/train/phases.h"
#include "kernels/device.h"

enum { PHASE_TIMERS = 256 }; /* the host waits for the device once in as many phases */

typedef struct phase_timers {
    device *dev; /* NULL: not in use */
    int n;       /* enqueued */
    struct device_event *events[PHASE_TIMERS];
    phase which[PHASE_TIMERS]; /* what begins at the event */
} phase_timers;

/* For a device with a stream. phase_timers_close accepts a zeroed one. */
status phase_timers_open(device *dev, phase_timers *out);
void phase_timers_close(phase_timers *timers);

/* What is enqueued from now on is phase `which`; `time` gets what has come to an end, at times. */
status phase_timers_enter(phase_timers *timers, phase which, phases *time);

/* Waits for the device: `time` has all that was enqueued before the last phase_timers_enter. The
 * next one begins anew. */
status phase_timers_settle(phase_timers *timers, phases *time);

#endif
