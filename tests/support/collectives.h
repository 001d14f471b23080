/* What every backend must do, as functions for run_ranks (tests/support/ranks.h). */
#ifndef MNIST_DDP_TESTS_SUPPORT_COLLECTIVES_H
#define MNIST_DDP_TESTS_SUPPORT_COLLECTIVES_H

#include "tests/support/ranks.h"

/* What the group must offer: pass it in ranks_options. */
enum { COLLECTIVES_SHARED_BYTES = 8 << 20 };

/* Where a collective's data lies. */
typedef enum memory_kind {
    MEMORY_SYMMETRIC,    /* process_group_alloc */
    MEMORY_PLAIN,        /* malloc */
    MEMORY_OUT_OF_PLACE, /* malloc, in != out */
    MEMORY_OUT_IN_HEAP,  /* in: malloc; out: process_group_alloc */
    MEMORY_MIXED,        /* process_group_alloc on even ranks, malloc on odd ones */
    MEMORY_HOST_KINDS,
    MEMORY_DEVICE = MEMORY_HOST_KINDS, /* the device's, if a rank has one, else malloc */
    MEMORY_DEVICE_OUT_OF_PLACE,
    MEMORY_KINDS,
} memory_kind;

/* arg: memory_kind. All dtypes and ops, counts 0 to 300001, exact values; in stays as it was. */
status collectives_all_reduce(process_group *group, int rank, int world_size, void *arg);

/* arg: memory_kind. From every root. */
status collectives_broadcast(process_group *group, int rank, int world_size, void *arg);

/* arg: memory_kind, out of place. reduce to every root, all_gather, reduce_scatter, and send and
 * recv between neighbours; all dtypes, exact values. */
status collectives_further(process_group *group, int rank, int world_size, void *arg);

/* arg: memory_kind, out of place or not. reduce alone, to every root; sums go in rank order. */
status collectives_reduce(process_group *group, int rank, int world_size, void *arg);

/* arg: memory_kind. send and recv alone. */
status collectives_messages(process_group *group, int rank, int world_size, void *arg);

/* What process_group_traffic says of a backend whose root exchanges directly with each rank in a
 * reduce; arg is not used. */
status collectives_traffic(process_group *group, int rank, int world_size, void *arg);

/* arg: an _Atomic int, zero; for ranks that are threads. Nobody passes a barrier too early. */
status collectives_barrier(process_group *group, int rank, int world_size, void *arg);

/* More works under way than any backend keeps notes of; waited for in order. On the device's memory
 * if a rank has one. */
status collectives_outstanding(process_group *group, int rank, int world_size, void *arg);

/* Fractions: same bits on all ranks, and again; prescale has the bits of scaling first. Host memory
 * of every kind. */
status collectives_bits(process_group *group, int rank, int world_size, void *arg);

/* The same on the device's memory; arg is not used. */
status collectives_bits_on_device(process_group *group, int rank, int world_size, void *arg);

/* Of one call, on device memory: the same bits on all ranks, whatever the next call would bring. */
status collectives_bits_of_a_call(process_group *group, int rank, int world_size, void *arg);

#endif
