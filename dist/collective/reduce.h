/* Element-wise reductions over the buffers of several ranks, all in this process's memory. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_REDUCE_H
#define MNIST_DDP_DIST_COLLECTIVE_REDUCE_H

#include "dist/collective/dtype.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* buffers[0..n-1], each (count) of `type`, none overlapping, all become the same reduction:
 *
 *   acc = s * b[0]; acc = op(acc, s * b[1]); ... op(acc, s * b[n-1])       s = prescale
 *
 * with every product and every sum rounded on its own, so that the result has the bits of scaling
 * first and summing then. REDUCE_AVG divides the sum by n. 16-bit floats are combined in float32
 * and rounded once, at the end. s is not used for integers, which wrap. Deterministic. */
void reduce_buffers(dtype type, reduce_op op, float prescale, void *const *buffers, int n,
                    size_t count);

/* The same from in[0..n_in-1] into all of out[0..n_out-1], each (count). An out may be one of the
 * ins; nothing else overlaps. The bits are those of reduce_buffers. */
typedef struct reduce_parts {
    const void *const *in;
    int n_in;
    void *const *out;
    int n_out;
} reduce_parts;
void reduce_into(dtype type, reduce_op op, float prescale, const reduce_parts *parts, size_t count);

/* acc[i] = op(acc[i], x[i]); acc and x (count) of `type` do not overlap. REDUCE_AVG is a sum here:
 * reduce_divide ends it. */
void reduce_fold(dtype type, reduce_op op, void *acc, const void *x, size_t count);

/* data[i] /= divisor, integers cut towards zero; data (count) of `type`. */
void reduce_divide(dtype type, void *data, size_t count, int divisor);

#ifdef __cplusplus
}
#endif
#endif
