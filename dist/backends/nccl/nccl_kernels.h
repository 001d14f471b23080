/* The two small kernels around every collective: they count, so that a thread of the host sees how
 * far the device has come without a call of CUDA. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_KERNELS_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_KERNELS_H

#include "dist/collective/process_group_ops.h"

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In mapped host memory; the device alone writes it. */
typedef struct nccl_progress {
    uint64_t entered; /* collectives whose turn has come on this device, those of graphs included */
    uint64_t left;    /* and that are done */
    uint64_t what;    /* the one entered last, packed: nccl_what */
    uint64_t number;  /* entered without sends and receives: the same number on all ranks */
} nccl_progress;

/* The counters in device memory, and their copy for the host. */
typedef struct nccl_counters {
    nccl_progress *counts;   /* device memory: what the kernels count with */
    nccl_progress *progress; /* the device's address of it */
} nccl_counters;

/* A collective in 64 bits: whether it is the first of its kind, which may take longer, kind, root
 * or peer, and elements (up to 2^40 - 1). */
enum { NCCL_WHAT_KIND_SHIFT = 56, NCCL_WHAT_ROOT_SHIFT = 40 };
#define NCCL_WHAT_FIRST (UINT64_C(1) << 63)

static inline uint64_t nccl_what(collective_kind kind, int root, uint64_t count)
{
    uint64_t most = (UINT64_C(1) << NCCL_WHAT_ROOT_SHIFT) - 1;
    return (uint64_t)kind << NCCL_WHAT_KIND_SHIFT | (uint64_t)root << NCCL_WHAT_ROOT_SHIFT |
           (count < most ? count : most);
}

static inline collective_kind nccl_what_kind(uint64_t what)
{
    return (collective_kind)(what >> NCCL_WHAT_KIND_SHIFT & 0x7f);
}

static inline int nccl_what_root(uint64_t what)
{
    return (int)(what >> NCCL_WHAT_ROOT_SHIFT & 0xffff);
}

static inline uint64_t nccl_what_count(uint64_t what)
{
    return what & ((UINT64_C(1) << NCCL_WHAT_ROOT_SHIFT) - 1);
}

/* Enqueues one kernel: the next collective, `what`, is entered; or the one entered is done. */
status nccl_kernels_enter(const nccl_counters *counters, uint64_t what, cudaStream_t stream);
status nccl_kernels_leave(const nccl_counters *counters, cudaStream_t stream);

/* As nccl_kernels_enter, and c->out[i] = c->prescale * c->in[i], each product rounded once;
 * c->count elements of DTYPE_F32 or DTYPE_F64 in device memory, in may equal out. */
status nccl_kernels_enter_scaled(const nccl_counters *counters, uint64_t what, const collective *c,
                                 cudaStream_t stream);

/* Launches each of them once on nothing, so that it is loaded: later, a kernel's first launch may
 * wait for all that the device runs (CUDA's programming guide, "Lazy Loading"), and so for ever
 * after a collective that hangs. scratch: device memory. */
status nccl_kernels_load(nccl_progress *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
