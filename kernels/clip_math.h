/* Clipping gradients by their norm, as loops over plain arrays. Included by each host device, so
 * that its compiler flags apply; the factor is for every device. */
#ifndef MNIST_DDP_KERNELS_CLIP_MATH_H
#define MNIST_DDP_KERNELS_CLIP_MATH_H

#include "kernels/step.h"

#include <stddef.h>

/* torch.nn.utils.clip_grad_norm_'s, at most 1. NaN if the norm is. */
STEP_FN float clip_factor(double norm, float max_norm)
{
    double factor = (double)max_norm / (norm + 1e-6);
    return factor >= 1.0 ? 1.0f : (float)factor;
}

/* Gradients with this factor change. */
STEP_FN bool clip_changes(float factor)
{
    return !(factor >= 1.0f);
}

/* As many sums as a vector has room for on any processor: each adds up every 16th square, so the
 * result does not depend on how wide the vectors are. The square of a float is exact. */
static inline double clip_sum_of_squares(const float *x, size_t count)
{
    enum { SUMS = 16 };
    double sums[SUMS] = {0}, total = 0;
    size_t whole = count - count % SUMS;
    for (size_t i = 0; i < whole; i += SUMS)
        for (size_t j = 0; j < SUMS; j++)
            sums[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t i = whole; i < count; i++)
        sums[i - whole] += (double)x[i] * (double)x[i];
    for (size_t j = 0; j < SUMS; j++)
        total += sums[j];
    return total;
}

static inline void clip_scale(float *x, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

#endif
