/* Memory through which collectives on host memory pass: a pinned piece, for the copies, and a piece
 * of the GPU's, for NCCL. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_STAGING_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_STAGING_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

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

/* Whether taking that many allocates nothing. */
bool nccl_staging_has(const nccl_staging *staging, size_t size_bytes);

/* Its copies must be through. Accepts a room that was never taken. */
void nccl_staging_give_back(nccl_room *room);

/* The GPU must be idle: freeing waits for it. */
void nccl_staging_close(nccl_staging *staging);

#endif
