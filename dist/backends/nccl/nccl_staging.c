/* A chunk is handed out from its beginning to its end, and is empty again when all its rooms have
 * been given back. */
#include "dist/backends/nccl/nccl_staging.h"

#include "kernels/cuda/cuda_call.h"

#include <stdlib.h>

enum { ALIGN = 64, CHUNK_BYTES = 256 << 10 };

struct nccl_chunk {
    nccl_chunk *next;
    unsigned char *pinned, *on_gpu;
    size_t size_bytes, used_bytes;
    int users;
};

static void destroy_chunk(nccl_chunk *chunk)
{
    if (chunk->pinned != NULL)
        (void)CUDA_CALL(cudaFreeHost(chunk->pinned));
    if (chunk->on_gpu != NULL)
        (void)CUDA_CALL(cudaFree(chunk->on_gpu));
    free(chunk);
}

static status add_chunk(nccl_staging *staging, size_t size_bytes, nccl_chunk **out)
{
    nccl_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        return FAIL(STATUS_NO_MEMORY, "a chunk of pinned memory");
    chunk->size_bytes = size_bytes > CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
    status st = STATUS_OK;
    if (!staging->on_gpu_only)
        st = CUDA_CALL(
            cudaHostAlloc((void **)&chunk->pinned, chunk->size_bytes, cudaHostAllocDefault));
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaMalloc((void **)&chunk->on_gpu, chunk->size_bytes));
    if (st != STATUS_OK) {
        destroy_chunk(chunk);
        return st;
    }
    nccl_chunk **last = &staging->chunks;
    while (*last != NULL)
        last = &(*last)->next;
    *last = chunk;
    *out = chunk;
    return STATUS_OK;
}

static size_t round_up(size_t size_bytes)
{
    return (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* The first chunk that has so much left; NULL: none. */
static nccl_chunk *find_chunk(const nccl_staging *staging, size_t size_bytes)
{
    nccl_chunk *chunk = staging->chunks;
    while (chunk != NULL && chunk->size_bytes - chunk->used_bytes < size_bytes)
        chunk = chunk->next;
    return chunk;
}

bool nccl_staging_has(const nccl_staging *staging, size_t size_bytes)
{
    return find_chunk(staging, round_up(size_bytes)) != NULL;
}

status nccl_staging_take(nccl_staging *staging, size_t size_bytes, nccl_room *out)
{
    size_t rounded = round_up(size_bytes);
    nccl_chunk *chunk = find_chunk(staging, rounded);
    if (chunk == NULL)
        TRY(add_chunk(staging, rounded, &chunk));
    *out = (nccl_room){.on_gpu = chunk->on_gpu + chunk->used_bytes, .chunk = chunk};
    if (chunk->pinned != NULL)
        out->pinned = chunk->pinned + chunk->used_bytes;
    chunk->used_bytes += rounded;
    chunk->users++;
    return STATUS_OK;
}

void nccl_staging_give_back(nccl_room *room)
{
    if (room->chunk != NULL && --room->chunk->users == 0)
        room->chunk->used_bytes = 0;
    *room = (nccl_room){0};
}

void nccl_staging_close(nccl_staging *staging)
{
    while (staging->chunks != NULL) {
        nccl_chunk *chunk = staging->chunks;
        staging->chunks = chunk->next;
        destroy_chunk(chunk);
    }
}
