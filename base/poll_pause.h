/* A pause between two looks at something that is done soon. Most waits are short: it spins a while,
 * and then leaves the processor to others for some 20 microseconds at a time. */
#ifndef MNIST_DDP_BASE_POLL_PAUSE_H
#define MNIST_DDP_BASE_POLL_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct poll_pause {
    int64_t start_ns, asked_ns; /* 0: not begun */
} poll_pause;

/* True about every millisecond: time to ask whether to give up. From its first nap on, the calling
 * thread's timers are exact: it no longer has the kernel's default slack of 50 microseconds. */
bool poll_pause_once(poll_pause *p);

#endif
