/* Being asked to stop: a signal to any rank (app/train/rank_signals.h) ends the run at a step
 * boundary that all ranks agree on, so that a checkpoint of it continues exactly.
 *
 * The wish travels with the gradients: one float behind them, in the first bucket of every step,
 * is summed over the ranks as they are. So no step costs a message more, and all ranks see the wish
 * of any of them in the same step.
 */
#ifndef MNIST_DDP_APP_TRAIN_PREEMPT_H
#define MNIST_DDP_APP_TRAIN_PREEMPT_H

#include "kernels/device.h"
#include "kernels/step.h"

#include <stdbool.h>

enum { PREEMPT_FLOATS = 1 }; /* room behind the gradients */

typedef struct preempt {
    device *dev;
    const step_numbers *numbers; /* device memory: this rank's wish is in their plan */
    float *flag;                 /* device memory behind the gradients */
    const float *answer;         /* device memory: the flag's sum over all ranks, behind a step */
    bool agreed;                 /* all ranks stop, at this step */

    /* An accelerator: the flag of some step on its way to the host. */
    float *snapshot;             /* device memory */
    float *seen;                 /* pinned host memory */
    struct device_event *copied; /* when it is there */
    int looks;                   /* since that copy was enqueued */
    bool under_way;
} preempt;

/* Borrows all but what it makes; `answer` may be `flag`. preempt_close accepts a zeroed one. */
status preempt_open(device *dev, const step_numbers *numbers, float *flag, const float *answer,
                    preempt *out);
void preempt_close(preempt *p);

/* Enqueues this rank's wish into the flag: before the step's gradients leave. */
status preempt_send(const preempt *p);

typedef enum preempt_when {
    PREEMPT_CHEAPLY, /* after any step: on an accelerator the answer may be of an earlier step */
    PREEMPT_NOW,     /* the host waits for the device */
} preempt_when;

/* After a step's gradients have come: sets p->agreed, alike on all ranks. On the host's memory that
 * is this step's flag. On an accelerator the host does not wait for the step: it takes a copy every
 * PREEMPT_LAG steps and looks at it as many steps later, so that the stop comes up to
 * 2 * PREEMPT_LAG steps after the signal, and the host is at most that far ahead of the device. */
enum { PREEMPT_LAG = 16 };
status preempt_look(preempt *p, preempt_when when);

#endif
