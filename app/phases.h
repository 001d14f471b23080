/* Where the time of training goes: each stretch belongs to exactly one phase. */
#ifndef MNIST_DDP_APP_PHASES_H
#define MNIST_DDP_APP_PHASES_H

#include "base/clock.h"

typedef enum phase {
    PHASE_DATA,
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_COMM_EXPOSED, /* waiting for gradients; what backward hides is not in it */
    PHASE_OPTIMIZER,
    PHASE_ACCELERATOR, /* all of it, where the host only enqueues */
    N_PHASES,
} phase;

typedef struct phases {
    int64_t ns[N_PHASES];
    int64_t since; /* the last mark */
} phases;

/* The next stretch begins now. */
static inline void phases_start(phases *p)
{
    p->since = clock_now_ns();
}

/* What passed since the last mark or start was phase `which`. */
static inline void phases_mark(phases *p, phase which)
{
    int64_t now = clock_now_ns();
    p->ns[which] += now - p->since;
    p->since = now;
}

#endif
