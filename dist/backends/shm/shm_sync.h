/* Ranks that wait until all have come to a stage: a short spin, then a futex. Between slices of
 * that they look for peers that died or left. */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_SYNC_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_SYNC_H

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

/* Tells all ranks that this one closes its group: whoever still waits fails. Those who wait for
 * stages that all have come to do not notice. Accepts all zero. */
void shm_sync_close(shm_sync *sync);

/* This rank has come to `value` of the stage. Whoever waits for that sees all that it has written;
 * the last rank wakes those that sleep. */
void shm_sync_arrive(shm_sync *sync, shm_stage stage, uint32_t value);

/* Returns once all ranks have come to `want`. STATUS_TIMEOUT at the deadline; STATUS_PEER if any
 * rank died or closed its group before. The message names the rank. */
status shm_sync_await_all(shm_sync *sync, shm_stage stage, uint32_t want, int64_t deadline_ns);

#endif
