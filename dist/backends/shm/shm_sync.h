/* Waiting for each other's counters in shared memory: a short spin, then a futex. Between slices of
 * that it looks for peers that died or left. */
#ifndef MNIST_DDP_DIST_SHM_SYNC_H
#define MNIST_DDP_DIST_SHM_SYNC_H

#include "dist/backends/shm/shm_region.h"
#include "dist/health/first_cause.h"

typedef struct shm_sync {
    shm_region region;
    first_cause *cause;
    int64_t spin_ns;
} shm_sync;

/* Returns when all ranks have done so (first_cause_create, with its failures). Takes the region
 * over, also on failure. */
status shm_sync_create(shm_sync *sync, const shm_region *region, const group_setup *setup,
                       int64_t deadline_ns);

/* Tells all ranks that this one closes its group: whoever still waits fails. Those whose counters
 * have all come do not notice. Accepts all zero. */
void shm_sync_close(shm_sync *sync);

/* Makes all that this rank has written visible to whoever sees `value`, and wakes them. */
void shm_sync_publish(shm_counter *counter, uint32_t value);

/* Returns once peer's counter is at least `want`. STATUS_TIMEOUT at the deadline; STATUS_PEER if
 * any rank died or closed its group before. The message names the rank. */
status shm_sync_await(shm_sync *sync, int peer, shm_counter *counter, uint32_t want,
                      int64_t deadline_ns);

#endif
