/* A group and its works, for the files of this folder; puts works on the group's own stream. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_ENQUEUE_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_ENQUEUE_H

#include "base/status.h"
#include "dist/backends/nccl/nccl_comm.h"
#include "dist/backends/nccl/nccl_kernels.h"
#include "dist/backends/nccl/nccl_watch.h"
#include "dist/collective/collective.h"
#include "kernels/device.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory through which collectives on host memory pass: a pinned piece, for the copies, and a piece
 * of the GPU's, for NCCL. */
typedef struct nccl_chunk nccl_chunk;

typedef struct nccl_staging {
    nccl_chunk *chunks; /* the oldest first */
    bool on_gpu_only;
} nccl_staging;

/* One collective's room: size_bytes at both places, or at the GPU's alone; aligned to 64 bytes. */
typedef struct nccl_room {
    unsigned char *pinned, *on_gpu;
    nccl_chunk *chunk; /* NULL: none taken */
} nccl_room;

/* Allocates on the current GPU if all that is there is in use. */
status nccl_staging_take(nccl_staging *staging, size_t size_bytes, nccl_room *out);

/* Its copies must be through. Accepts a room that was never taken. */
void nccl_staging_give_back(nccl_room *room);

/* The GPU must be idle: freeing waits for it. */
void nccl_staging_close(nccl_staging *staging);

/* The watchdog knows better why something is late. */
enum { NCCL_WATCHDOG_GRACE_MS = 1500 };

typedef struct nccl_work {
    struct nccl_work *next; /* spare or under way */
    collective what;        /* as NCCL does it: host memory is replaced by w->room */
    cudaStream_t stream;    /* what waits for it; NULL: the host */
    cudaEvent_t begun;      /* host memory: the device's earlier work is done */
    cudaEvent_t done;
    nccl_room room;        /* host memory: where it passes through */
    unsigned char *result; /* in there */
    int64_t timeout_ms;    /* of a wait on the host */
    void *out;             /* where it goes; NULL: nowhere */
    size_t out_bytes;
} nccl_work;

typedef struct nccl_group {
    device *dev;
    int gpu, rank, world_size;
    int64_t timeout_ms;
    nccl_comm comm;
    first_cause *cause;
    nccl_watch *watch;
    cudaStream_t stream;
    nccl_progress *progress; /* on the host */
    nccl_counters counters;

    pthread_mutex_t lock;    /* of all below: launches may come from another thread than waits */
    cudaEvent_t ready;       /* recorded and waited for in one go */
    nccl_staging staging;    /* for host memory */
    nccl_staging aside;      /* for inputs that must not stay where they are */
    nccl_work *first, *last; /* under way */
    nccl_work *spare;
    bool batching;    /* what is launched is kept for the end of the batch */
    nccl_work *batch; /* its first; the others follow. NULL: none yet */
} nccl_group;

/* Enqueues all works from `first` on as one: a single one, or a batch of sends and receives, none
 * of which waits for another. Records the events of each. The group's lock is held. */
status nccl_enqueue(nccl_group *g, nccl_work *first);

#endif
