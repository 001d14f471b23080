/* The dot product of the reference kernels. */
#ifndef MNIST_DDP_KERNELS_REFERENCE_DOT_H
#define MNIST_DDP_KERNELS_REFERENCE_DOT_H

enum { DOT_LANES = 8 }; /* partial sums, so that a compiler can use vectors */

static inline float dot(const float *restrict a, const float *restrict b, int count)
{
    float lanes[DOT_LANES] = {0}, sum = 0;
    int i = 0;
    for (; i + DOT_LANES <= count; i += DOT_LANES)
        for (int lane = 0; lane < DOT_LANES; lane++)
            lanes[lane] += a[i + lane] * b[i + lane];
    for (; i < count; i++)
        sum += a[i] * b[i];
    for (int lane = 0; lane < DOT_LANES; lane++)
        sum += lanes[lane];
    return sum;
}

#endif
