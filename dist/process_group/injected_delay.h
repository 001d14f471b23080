/* The injected delay: a slow wire that carries one message at a time. A message gets the wire when
 * it is sent, or when the one before has left it, if that is later. It keeps the wire for the
 * delay, and arrives no earlier. The delay runs by the clock, whatever the caller does meanwhile.
 */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_INJECTED_DELAY_H
#define MNIST_DDP_DIST_PROCESS_GROUP_INJECTED_DELAY_H

#include "base/status.h"

#include <stdint.h>

typedef struct injected_delay {
    int64_t delay_ns; /* 0: none */
    int64_t free_ns;  /* when the latest message leaves it */
} injected_delay;

/* When a message sent now leaves the wire. */
int64_t injected_delay_send(injected_delay *delay);

/* Returns when `leaves_ns` has passed; raises *done_ns to it. STATUS_TIMEOUT at the deadline. */
status injected_delay_wait(int64_t leaves_ns, int64_t deadline_ns, int64_t *done_ns);

#endif
