/* torch.utils.data.DistributedSampler, bit for bit. */
#ifndef MNIST_DDP_DATA_SAMPLER_H
#define MNIST_DDP_DATA_SAMPLER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sampler_options {
    uint32_t samples; /* in the data set, >= 1 */
    uint32_t first;   /* where the distributed part of the epoch begins; those before it are used */
    int rank, world_size;
    uint64_t seed;
    bool shuffle;   /* false: 0 .. samples-1 in order */
    bool drop_last; /* cut the tail instead of padding */
} sampler_options;

/* What a rank gets in an epoch. Nothing, if no samples are left after `first`. */
typedef struct sampler_plan {
    uint32_t per_rank; /* indices of each rank */
    uint32_t padded;   /* indices over all ranks that repeat a sample (0 with drop_last) */
    uint32_t dropped;  /* samples that no rank sees */
} sampler_plan;

/* STATUS_INVALID if rank is outside [0, world_size), world_size < 1, there are no samples, fewer
 * than `first`, or drop_last leaves a rank none of all. */
status sampler_check(const sampler_options *options, sampler_plan *plan);

/* How many samples of the epoch's order are used after each rank has taken `taken` of its indices:
 * where another number of ranks goes on. */
uint32_t sampler_used(const sampler_options *options, uint64_t taken);

/* Writes this rank's indices of one epoch, in order, to `out` (plan.per_rank elements). The
 * permutation is torch.randperm's with generator seed + epoch. Call sampler_check first. */
status sampler_indices(const sampler_options *options, int64_t epoch, uint32_t *out);

#endif
