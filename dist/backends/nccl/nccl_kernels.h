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
    uint64_t entered; /* turns that have come on this device, those of graphs included */
    uint64_t left;    /* and that are done */
    uint64_t what;    /* the one entered last: nccl_turn */
    uint64_t peers;
    uint64_t number; /* entered without sends and receives: the same number on all ranks */
} nccl_progress;

/* The counters in device memory, and their copy for the host. */
typedef struct nccl_counters {
    nccl_progress *counts;   /* device memory: what the kernels count with */
    nccl_progress *progress; /* the device's address of it */
} nccl_counters;

/* What is entered: a collective, or a batch of sends and receives, which the device does as one. */
typedef struct nccl_turn {
    uint64_t what;  /* packed: nccl_what */
    uint64_t peers; /* that it needs: `only` in first_cause.h */
} nccl_turn;

/* In 64 bits: whether it is the first of its kind, which may take longer, the kind, and elements
 * (up to 2^56 - 1). */
enum { NCCL_WHAT_KIND_SHIFT = 56, NCCL_WHAT_BATCH = COLLECTIVE_KIND_COUNT /* as a kind */ };
#define NCCL_WHAT_FIRST (UINT64_C(1) << 63)

static inline uint64_t nccl_what(int kind, uint64_t count)
{
    uint64_t most = (UINT64_C(1) << NCCL_WHAT_KIND_SHIFT) - 1;
    return (uint64_t)kind << NCCL_WHAT_KIND_SHIFT | (count < most ? count : most);
}

static inline int nccl_what_kind(uint64_t what)
{
    return (int)(what >> NCCL_WHAT_KIND_SHIFT & 0x7f);
}

static inline uint64_t nccl_what_count(uint64_t what)
{
    return what & ((UINT64_C(1) << NCCL_WHAT_KIND_SHIFT) - 1);
}

/* Enqueues one kernel: the next turn is entered; or the one entered is done. */
status nccl_kernels_enter(const nccl_counters *counters, nccl_turn turn, cudaStream_t stream);
status nccl_kernels_leave(const nccl_counters *counters, cudaStream_t stream);

/* As nccl_kernels_enter, and c->out[i] = c->prescale * c->in[i], each product rounded once;
 * c->count elements of a float type in device memory, in may equal out. */
status nccl_kernels_enter_scaled(const nccl_counters *counters, nccl_turn turn, const collective *c,
                                 cudaStream_t stream);

/* Launches each of them once on nothing, so that it is loaded: later, a kernel's first launch may
 * wait for all that the device runs (CUDA's programming guide, "Lazy Loading"), and so for ever
 * after a collective that hangs. scratch: device memory. */
status nccl_kernels_load(nccl_progress *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
