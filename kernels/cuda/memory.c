#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/wait.h"

#include <stdlib.h>

static status note_block(device *dev, const void *memory, size_t size_bytes)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", sizeof *block);
    *block = (cuda_block){s->blocks, memory, size_bytes};
    s->blocks = block;
    device_note_memory(dev, (int64_t)size_bytes);
    return STATUS_OK;
}

static void forget_block(device *dev, const void *memory)
{
    cuda_block **at = &cuda_state_of(dev)->blocks;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    cuda_block *block = *at;
    if (block == NULL)
        return;
    *at = block->next;
    device_note_memory(dev, -(int64_t)block->size_bytes);
    free(block);
}

void cuda_forget_blocks(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    while (s->blocks != NULL)
        forget_block(dev, s->blocks->memory);
}

status cuda_alloc(device *dev, size_t size_bytes, void **out)
{
    cuda_state *s = cuda_state_of(dev);
    if (s->capturing)
        return FAIL(STATUS_INVALID, "memory is allocated while a graph is recorded");
    void *memory = NULL;
    TRY(cuda_use(dev));
    status st = CUDA_CALL(cudaMalloc(&memory, size_bytes > 0 ? size_bytes : 1));
    if (st != STATUS_OK)
        return status_context(st, "%zu bytes", size_bytes);
    st = CUDA_CALL(cudaMemsetAsync(memory, 0, size_bytes, s->stream));
    if (st == STATUS_OK)
        st = note_block(dev, memory, size_bytes);
    if (st != STATUS_OK) {
        (void)cudaFree(memory);
        return st;
    }
    *out = memory;
    return STATUS_OK;
}

/* cudaFree waits for the GPU in the driver. If that would hang, the memory is not freed. */
void cuda_free(device *dev, void *memory)
{
    if (memory == NULL)
        return;
    cuda_forget_pool_sums(dev, memory);
    forget_block(dev, memory);
    (void)cudaSetDevice(cuda_state_of(dev)->index);
    if (cuda_drain(dev))
        (void)cudaFree(memory);
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
