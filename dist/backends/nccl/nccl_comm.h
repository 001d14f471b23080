/* The communicator. It never blocks the host: NCCL works in the background, and whoever calls it
 * asks again until it has settled. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_COMM_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_COMM_H

#include "dist/backends/nccl/nccl_call.h"
#include "dist/health/first_cause.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct nccl_comm {
    ncclComm_t handle;    /* NULL: none */
    pthread_mutex_t lock; /* held through every call of NCCL and until it has settled: NCCL tidies
                             up after its own threads when it is asked for its state */
} nccl_comm;

/* Asked again and again by whoever waits: STATUS_OK, or why to give up. */
typedef struct nccl_ask {
    status (*fn)(void *ctx);
    void *ctx;
} nccl_ask;

void nccl_comm_init(nccl_comm *comm); /* none yet; closed by nccl_comm_close */

/* Joins all ranks, which have met (first_cause_create), in one communicator on the current GPU.
 * STATUS_TIMEOUT at the deadline; STATUS_PEER if one has ended; another rank's failure ends it as
 * well. *comm may be set also on failure: it is the caller's to close. */
status nccl_comm_open(nccl_comm *comm, const group_setup *setup, first_cause *cause,
                      int64_t deadline_ns);

/* Returns when NCCL has done in the background what `call` began, with its result; STATUS_TIMEOUT
 * at the deadline. The lock is held. */
status nccl_comm_settle(nccl_comm *comm, const char *call, int64_t deadline_ns,
                        const nccl_ask *ask);

/* well: all that was enqueued is done or will be, so that it may take its leave of the peers, for a
 * few seconds; else it is aborted, and kernels that wait for peers end. */
void nccl_comm_close(nccl_comm *comm, bool well);

#endif
