/* Between two looks at something that will be done soon: most waits are short, so it spins a while
 * and then leaves the processor to others. */
#ifndef MNIST_DDP_DIST_NCCL_PAUSE_H
#define MNIST_DDP_DIST_NCCL_PAUSE_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { NCCL_PAUSE_SPIN_NS = 50000, NCCL_PAUSE_NAP_NS = 20000, NCCL_PAUSE_ASK_NS = 1000000 };

typedef struct nccl_pause {
    int64_t start_ns, asked_ns; /* 0: not begun */
} nccl_pause;

/* True about every millisecond: time to ask whether to give up. */
static inline bool nccl_pause_once(nccl_pause *p)
{
    int64_t now_ns = clock_now_ns();
    if (p->start_ns == 0)
        p->start_ns = p->asked_ns = now_ns;
    if (now_ns - p->start_ns >= NCCL_PAUSE_SPIN_NS) {
        struct timespec nap = {.tv_nsec = NCCL_PAUSE_NAP_NS};
        nanosleep(&nap, NULL);
    }
    if (now_ns - p->asked_ns < NCCL_PAUSE_ASK_NS)
        return false;
    p->asked_ns = now_ns;
    return true;
}

#endif
