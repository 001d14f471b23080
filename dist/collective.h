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

/* What it reads at c->in and sets at c->out on this rank; 0: nothing. */
size_t collective_in_bytes(const collective *c, int world_size);
size_t collective_out_bytes(const collective *c, int rank, int world_size);

/* Does it for a world of one rank, on host memory. */
void collective_do_alone(const collective *c);

#ifdef __cplusplus
}
#endif
#endif
