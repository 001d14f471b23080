/* Faults on demand, so that every failure can be seen and its diagnosis read: --inject.
 *
 *   kill:rank=1,step=50            rank 1 gets SIGKILL before its optimizer step 50
 *   stop:rank=1,step=50            SIGSTOP: it hangs
 *   delay:rank=1,step=50,ms=2000   it is late, once; without a step: at every step
 *   drop-conn:rank=1,step=50       its TCP connections break
 *   uneven:rank=1                  it has one step less in every epoch than the others
 *   forget-set-epoch               every epoch in the order of the first
 *   port-busy                      somebody holds the master port: the launcher's
 *
 * Steps count from 1, over the whole run. A fault happens in attempt 0, before any restart,
 * unless gen=N names another.
 */
#ifndef MNIST_DDP_APP_OPTIONS_INJECT_H
#define MNIST_DDP_APP_OPTIONS_INJECT_H

#include "base/status.h"

#include <stdint.h>

typedef enum inject_kind {
    INJECT_NONE,
    INJECT_KILL,
    INJECT_STOP,
    INJECT_DELAY,
    INJECT_DROP_CONN,
    INJECT_UNEVEN,
    INJECT_FORGET_SET_EPOCH,
    INJECT_PORT_BUSY,
} inject_kind;

typedef struct inject {
    inject_kind kind;
    int64_t rank;    /* -1: not said */
    int64_t step;    /* 0: not said */
    int64_t ms;      /* of a delay */
    int64_t attempt; /* in which it happens */
} inject;

/* NULL: INJECT_NONE. STATUS_INVALID with what is wrong and what could be meant. */
status inject_parse(const char *text, inject *out);

#endif
