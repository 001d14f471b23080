/* Where the time of training goes: each stretch belongs to exactly one phase. */
#ifndef MNIST_DDP_APP_TRAIN_PHASES_H
#define MNIST_DDP_APP_TRAIN_PHASES_H

#include "base/clock.h"

typedef enum phase {
    PHASE_DATA,      /* loading, and what lies between two steps */
    PHASE_BROADCAST, /* parameters to replicas or ranks */
    PHASE_SCATTER,   /* inputs to replicas */
    PHASE_FORWARD,
    PHASE_GATHER, /* logits to the master, and their gradients back */
    PHASE_BACKWARD,
    PHASE_REDUCE,  /* waiting for gradients on the move; what backward hides is not in it */
    PHASE_WAITING, /* for a replica or rank that is not there yet */
    PHASE_OPTIMIZER,
    PHASE_ACCELERATOR, /* all of it, where the host only enqueues */
    N_PHASES,
} phase;

typedef struct phases {
    int64_t ns[N_PHASES];
    phase now;     /* what passes since.. */
    int64_t since; /* ..this moment */
} phases;

/* From now on it is phase `which`. */
static inline void phases_start(phases *p, phase which)
{
    p->now = which;
    p->since = clock_now_ns();
}

/* The phase so far ends and `which` begins. */
static inline void phases_enter(phases *p, phase which)
{
    int64_t now = clock_now_ns();
    p->ns[p->now] += now - p->since;
    p->now = which;
    p->since = now;
}

/* Of what passed as phase `from`, `ns` was waiting. */
static inline void phases_were_waiting(phases *p, phase from, int64_t ns)
{
    p->ns[from] -= ns;
    p->ns[PHASE_WAITING] += ns;
}

/* "data", "broadcast", ... */
const char *phase_name(phase which);

/* Waiting for data on the move: broadcast, scatter, gather and reduce. */
int64_t phases_exposed_ns(const phases *p);

#endif
