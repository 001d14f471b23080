/* DDP communication hooks: what is sent of a bucket of gradients instead of its floats.
 *
 *   fp16, bf16  every gradient / world_size, rounded once to 16 bits; sums are rounded once more.
 *               Half the bytes.
 *   powersgd    a gradient matrix M (n, m) as P (n, r) times Q (m, r) transposed: (n + m) r floats
 *               in place of n m. What that leaves out is added to the next step's gradients (error
 *               feedback), and Q starts from the last step's. Vectors, matrices that this does not
 *               make half as large, and all in the first steps are sent whole.
 *               T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
 *               Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2.
 *
 * powersgd is for host memory only. All ranks have the same bits after each. What a hook keeps from
 * step to step is in no checkpoint: a resumed run begins with it anew.
 */
#ifndef MNIST_DDP_DIST_COMM_HOOK_H
#define MNIST_DDP_DIST_COMM_HOOK_H

#include "base/status.h"
#include "dist/process_group/process_group.h"
#include "kernels/device.h"

#include <stddef.h>
#include <stdint.h>

typedef enum comm_hook_kind {
    COMM_HOOK_NONE,
    COMM_HOOK_FP16,
    COMM_HOOK_BF16,
    COMM_HOOK_POWERSGD,
} comm_hook_kind;

/* Puts all gradients from the arena's order into PyTorch's, or back. */
typedef status comm_hook_order_fn(void *ctx, const float *from, float *to);

typedef struct comm_hook_options {
    comm_hook_kind kind;
    /* for powersgd: */
    int rank;                                  /* r >= 1 */
    int64_t start_iter;                        /* steps that are sent whole, >= 0 */
    comm_hook_order_fn *to_plain, *from_plain; /* NULL: the arena has PyTorch's order */
    void *ctx;
} comm_hook_options;

/* One parameter's gradients: rows * columns floats; a vector has one column. */
typedef struct comm_hook_matrix {
    size_t offset; /* in the arena */
    size_t rows, columns;
} comm_hook_matrix;

/* The arena that gradients lie in. */
typedef struct comm_hook_arena {
    float *gradients;
    size_t count, carried; /* floats; the carried ones come after the count, and travel along */
    const comm_hook_matrix *matrices; /* (n): of all parameters, ascending; copied */
    size_t n;
    device *dev; /* whose memory the gradients are in; NULL: the host's */
} comm_hook_arena;

typedef struct comm_hook comm_hook;

/* Words of --comm-hook: none, fp16, bf16, powersgd. */
status comm_hook_parse(const char *word, comm_hook_kind *out);

/* What it takes of process_group_options.shared_bytes. */
size_t comm_hook_shared_bytes(comm_hook_kind kind, size_t count, size_t carried);

/* Borrows the group and the gradients. */
status comm_hook_create(process_group *group, const comm_hook_options *options,
                        const comm_hook_arena *arena, comm_hook **out);
void comm_hook_destroy(comm_hook *hook); /* accepts NULL; before the group */

/* gradients[offset .. offset + count - 1] are final: starts to send them, unless the hook wants all
 * of them first (powersgd). The slices of a step descend and adjoin; what is carried goes with the
 * first.
 * `label` (NULL: none) lives as long as the group. */
status comm_hook_launch(comm_hook *hook, size_t offset, size_t count, const char *label);

/* After the last slice of a step: returns when all gradients are the mean over all ranks, as well
 * as the hook knows it. Adds to *comm_ns process_group_wait's elapsed_ns. */
status comm_hook_wait(comm_hook *hook, int64_t *comm_ns);

#endif
