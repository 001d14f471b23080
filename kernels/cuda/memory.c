#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/wait.h"

#include <stdlib.h>

/* A caching allocator, for who asks for it (keep_freed). Unlike PyTorch's it gives a block only to
 * an array of its size: tools tell by the block's end where the array ends. */

enum { SCARCE = 8 }; /* memory is, if less than this part of it is free */

static void forget(cuda_block **at)
{
    cuda_block *block = *at;
    *at = block->next;
    free(block);
}

/* Frees what is not handed out, or only what is old; returns whether there was any. */
static bool free_kept(cuda_state *s, bool only_old)
{
    cuda_block **at = &s->blocks;
    bool freed = false;
    while (*at != NULL) {
        if ((*at)->in_use || (only_old && !(*at)->is_old)) {
            at = &(*at)->next;
            continue;
        }
        (void)((*at)->pinned ? cudaFreeHost((*at)->memory) : cudaFree((*at)->memory));
        forget(at);
        freed = true;
    }
    return freed;
}

/* NCCL and others take memory of the GPU, too, and do not ask for what is kept here. */
static bool is_scarce(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess ||
           free_bytes < total_bytes / SCARCE;
}

void cuda_keep_freed(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    s->keeps_freed = true;
    (void)cudaSetDevice(s->index);
    if (cuda_drain(dev))
        free_kept(s, true);
    for (cuda_block *block = s->blocks; block != NULL; block = block->next)
        block->is_old = !block->in_use;
}

void cuda_free_blocks(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    if (!s->given_up)
        free_kept(s, false);
    while (s->blocks != NULL)
        forget(&s->blocks);
}

static status obtain(cuda_block *block)
{
    size_t size_bytes = block->size_bytes > 0 ? block->size_bytes : 1;
    return block->pinned
               ? CUDA_CALL(cudaHostAlloc(&block->memory, size_bytes, cudaHostAllocDefault))
               : CUDA_CALL(cudaMalloc(&block->memory, size_bytes));
}

static status add_block(device *dev, size_t size_bytes, bool pinned, cuda_block **out)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_block *block = NULL;
    TRY(memory_alloc(sizeof *block, (void **)&block));
    *block = (cuda_block){.size_bytes = size_bytes, .pinned = pinned};
    status st = obtain(block);
    if (st == STATUS_NO_MEMORY && free_kept(s, false))
        st = obtain(block);
    if (st != STATUS_OK) {
        free(block);
        return status_context(st, "%zu bytes%s", size_bytes, pinned ? " of pinned memory" : "");
    }
    block->next = s->blocks;
    *out = s->blocks = block;
    return STATUS_OK;
}

static status hand_out(device *dev, size_t size_bytes, bool pinned, void **out)
{
    cuda_block *block = cuda_state_of(dev)->blocks;
    if (cuda_state_of(dev)->capturing)
        return FAIL(STATUS_INVALID, "memory is allocated while a graph is recorded");
    TRY(cuda_use(dev));
    while (block != NULL &&
           (block->in_use || block->pinned != pinned || block->size_bytes != size_bytes))
        block = block->next;
    if (block == NULL)
        TRY(add_block(dev, size_bytes, pinned, &block));
    block->in_use = true;
    block->is_old = false;
    device_note_memory(dev, pinned ? 0 : (int64_t)size_bytes);
    *out = block->memory;
    return STATUS_OK;
}

/* Waits for the GPU: a block that is kept may be handed out at once, and the driver waits when it
 * frees. If that would hang, the memory is lost. */
static void take_back(device *dev, const void *memory)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_block **at = &s->blocks;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    (*at)->in_use = false;
    device_note_memory(dev, (*at)->pinned ? 0 : -(int64_t)(*at)->size_bytes);
    (void)cudaSetDevice(s->index);
    if (!cuda_drain(dev))
        forget(at);
    else if (!s->keeps_freed || is_scarce())
        free_kept(s, false);
}

status cuda_alloc(device *dev, size_t size_bytes, void **out)
{
    void *memory = NULL;
    TRY(hand_out(dev, size_bytes, false, &memory));
    status st = CUDA_CALL(cudaMemsetAsync(memory, 0, size_bytes, cuda_state_of(dev)->stream));
    if (st != STATUS_OK) {
        take_back(dev, memory);
        return st;
    }
    *out = memory;
    return STATUS_OK;
}

void cuda_free(device *dev, void *memory)
{
    if (memory == NULL)
        return;
    cuda_forget_pool_sums(dev, memory);
    take_back(dev, memory);
}

status cuda_alloc_pinned(device *dev, size_t size_bytes, void **out)
{
    return hand_out(dev, size_bytes, true, out);
}

void cuda_free_pinned(device *dev, void *host)
{
    if (host != NULL)
        take_back(dev, host);
}

/* A copy from or to pageable memory blocks in the driver until earlier work is done. So this waits
 * for that work first, in a way that can be interrupted. */
static status copy_pageable(device *dev, void *dst, const void *src, size_t size_bytes,
                            enum cudaMemcpyKind kind)
{
    const char *what = kind == cudaMemcpyHostToDevice ? "upload" : "download";
    cudaStream_t stream = cuda_state_of(dev)->stream;
    if (size_bytes == 0)
        return STATUS_OK;
    TRY(cuda_use(dev));
    TRY(cuda_wait_stream(dev, stream, what));
    TRY(CUDA_CALL(cudaMemcpyAsync(dst, src, size_bytes, kind, stream)));
    return cuda_wait_stream(dev, stream, what);
}

status cuda_upload(device *dev, void *dst, const void *host, size_t size_bytes)
{
    cuda_forget_pool_sums(dev, dst);
    return copy_pageable(dev, dst, host, size_bytes, cudaMemcpyHostToDevice);
}

status cuda_download(device *dev, void *host, const void *src, size_t size_bytes)
{
    return copy_pageable(dev, host, src, size_bytes, cudaMemcpyDeviceToHost);
}

status cuda_copy(device *dev, void *dst, const void *src, size_t size_bytes)
{
    if (size_bytes == 0)
        return STATUS_OK;
    cuda_forget_pool_sums(dev, dst);
    return CUDA_CALL(cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyDeviceToDevice,
                                     cuda_state_of(dev)->stream));
}

status cuda_synchronize(device *dev)
{
    TRY(cuda_use(dev));
    TRY(cuda_wait_stream(dev, cuda_state_of(dev)->copies, "synchronize"));
    return cuda_wait_stream(dev, cuda_state_of(dev)->stream, "synchronize");
}
