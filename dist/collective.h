/* What a collective means for one rank's memory, and what it is without peers. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_H
#define MNIST_DDP_DIST_COLLECTIVE_H

#include "dist/process_group_ops.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* STATUS_INVALID where the arguments make no sense for this rank of `world_size`: also where its
 * bytes are more than memory can hold, so that the functions below need not look. */
status collective_check(const collective *c, int rank, int world_size);

/* "all_reduce #17 (bucket 1: fc1.weight, fc1.bias)", or with what it carries if it has no label:
 * "all_reduce #17 (2 x f64)". */
void collective_describe(const collective *c, char *out, size_t size_bytes);

/* What it reads at c->in and sets at c->out on this rank; 0: nothing. */
size_t collective_in_bytes(const collective *c, int world_size);
size_t collective_out_bytes(const collective *c, int rank, int world_size);

/* What it moves on this rank where a ring reduces and gathers, and a root or a pair of ranks
 * exchange directly with each other: what a root sends or gets it does so world_size - 1 times. */
rank_traffic collective_star_traffic(const collective *c, int rank, int world_size);

/* The same, but broadcast and reduce pass through a chain of ranks that ends at the root. */
rank_traffic collective_chain_traffic(const collective *c, int rank, int world_size);

/* Does it for a world of one rank, on host memory. */
void collective_do_alone(const collective *c);

#ifdef __cplusplus
}
#endif
#endif
