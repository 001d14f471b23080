/* Moves the data of collectives; the algorithm is told in shm_exchange.c. */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_EXCHANGE_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_EXCHANGE_H

#include "dist/backends/shm/shm_note.h"
#include "dist/backends/shm/shm_sync.h"

typedef struct shm_exchange {
    shm_sync *sync; /* borrowed */
    uint32_t round;
    shm_offer *offers;  /* (world_size): what the ranks have announced of the one under way */
    const void **given; /* (world_size) */
    void **outs;        /* (world_size) */
} shm_exchange;

status shm_exchange_create(shm_sync *sync, int world_size, shm_exchange *out);
void shm_exchange_free(shm_exchange *x); /* accepts all zero */

/* Does what all ranks have announced as collective `index` (shm_note.h), and returns when c->in and
 * c->out are this rank's again. STATUS_INVALID if ranks have announced different ones; else the
 * failures of shm_sync_await_all. */
status shm_exchange_run(shm_exchange *x, const collective *c, uint32_t index, int64_t deadline_ns);

#endif
