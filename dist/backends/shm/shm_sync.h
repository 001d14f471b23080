/* Ranks that wait until all have come to a stage: a short spin, then a futex. Between slices of
 * that they look for peers that died or left. */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_SYNC_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_SYNC_H

#include "dist/backends/shm/shm_region.h"
#include "dist/health/first_cause.h"

/* What a rank does while it waits. Sets *more if there is some left that peers must come for. */
typedef status shm_idle_fn(void *ctx, bool *more);

typedef struct shm_sync {
    shm_region region;
    first_cause *cause;
    int looks; /* before the first pause, and between yields after that */
    atomic_bool aborted;
    shm_idle_fn *idle; /* NULL: nothing */
    void *idle_ctx;
} shm_sync;

/* Returns when all ranks have done so (first_cause_create, with its failures). Takes the region
 * over, also on failure. */
status shm_sync_create(shm_sync *sync, const shm_region *region, const group_setup *setup,
                       int64_t deadline_ns);

/* Tells all ranks that this one closes its group: whoever still waits fails. Those who wait for
 * stages that all have come to do not notice. Accepts all zero. */
void shm_sync_close(shm_sync *sync);

/* From any thread: this rank waits no longer, STATUS_PEER, within 50 ms. */
void shm_sync_abort(shm_sync *sync);

/* This rank has come to `value` of the stage. Whoever waits for that sees all that it has written;
 * the last rank wakes those that sleep. */
void shm_sync_arrive(shm_sync *sync, shm_stage stage, uint32_t value);

/* The two halves of that: peers see it, and then sleepers are woken. Between them a rank that is
 * about to wait itself may look for the others, while what it shows is on its way to them. */
void shm_sync_show(shm_sync *sync, shm_stage stage, uint32_t value);
void shm_sync_wake(shm_sync *sync, shm_stage stage, uint32_t value);

/* Looks a few times, without a pause, whether all have come to `want`. */
bool shm_sync_look(const shm_sync *sync, shm_stage stage, uint32_t want);

/* Returns once all ranks have come to `want`. STATUS_TIMEOUT at the deadline; STATUS_PEER if any
 * rank died or closed its group before. The message names the rank. Failures of sync->idle. */
status shm_sync_await_all(shm_sync *sync, shm_stage stage, uint32_t want, int64_t deadline_ns);

/* Wakes a rank that sleeps in shm_sync_await_done, after a channel of it has been written to or
 * read from. */
void shm_sync_ring(shm_sync *sync, int rank);

/* What shm_sync_await_done waits for, by sync->idle. */
typedef struct shm_awaited {
    const _Atomic bool *done;
    int peer;         /* it must move for that */
    const char *what; /* what it must do: "receive" */
} shm_awaited;

/* Calls sync->idle until *what->done. STATUS_TIMEOUT at the deadline; STATUS_PEER if the peer died
 * or closed its group before. The message names it. Failures of sync->idle. */
status shm_sync_await_done(shm_sync *sync, const shm_awaited *what, int64_t deadline_ns);

#endif
