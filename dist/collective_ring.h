/* The last collectives of a rank, always kept: what went on before one failed. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_RING_H
#define MNIST_DDP_DIST_COLLECTIVE_RING_H

#include "dist/process_group_ops.h"

#include <stdio.h>

enum { COLLECTIVE_RING_LENGTH = 1000 };

typedef enum collective_stage {
    COLLECTIVE_LAUNCHED,
    COLLECTIVE_WAITED, /* a thread waits for it */
    COLLECTIVE_DONE,
    COLLECTIVE_FAILED,
} collective_stage;

typedef struct collective_record {
    collective what; /* its arrays may be gone */
    collective_stage stage;
    bool on_device; /* then "done" means that the host need not wait for it */
    int64_t launched_ns, waited_ns, ended_ns; /* 0: not yet */
} collective_record;

/* All zero is an empty ring. The caller locks it. */
typedef struct collective_ring {
    collective_record records[COLLECTIVE_RING_LENGTH]; /* number n is at n % length */
    uint64_t last;                                     /* its number; 0: none */
    struct trace_lane *lane;                           /* NULL, or where ends are told as well */
} collective_ring;

/* Numbers go up by one. */
void collective_ring_launch(collective_ring *ring, const collective *c, bool on_device,
                            int64_t now_ns);
void collective_ring_wait(collective_ring *ring, uint64_t seq, int64_t now_ns);
void collective_ring_end(collective_ring *ring, uint64_t seq, bool ok, int64_t now_ns);

/* One JSON object a line, the oldest first. */
void collective_ring_write(const collective_ring *ring, FILE *file);

/* "all_reduce #17 (bucket 1: fc1.weight, fc1.bias)", or with what it carries where it has no label:
 * "all_reduce #17 (2 x f64)". */
void collective_describe(const collective *c, char *out, size_t size_bytes);

#endif
