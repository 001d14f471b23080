/* The first convolution of a network: one channel of plain input, 3x3 with a relu or 5x5 without,
 * output channels innermost. No library has a kernel for it. It does 9 or 25 multiplications per
 * number that it writes, so it is bound by memory. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_FIRST_H
#define MNIST_DDP_KERNELS_CUDA_CONV_FIRST_H

#include "kernels/cuda/conv_sums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* STATUS_INVALID, with what would do, for a shape that the kernels are not made for. */
status conv_first_check(const conv2d_shape *shape, int max_n);

typedef struct conv_first_pass {
    const device *dev;
    const conv2d_shape *shape;
    int n;
} conv_first_pass;

/* x (n, H, W) and y (n, OH, OW, O) of the activations' type, aligned to 16 bytes; weight (O, K,
 * K), bias (O). */
status conv_first_forward(const conv_first_pass *pass, const void *x, const float *weight,
                          const float *bias, void *y);

enum { CONV_FIRST_BLOCKS = 2 }; /* per multiprocessor */

/* dw and db of `out` from x and dy; with a relu, dy counts only for y > 0. `sums`: for dw_count +
 * db_count values. */
status conv_first_backward_weights(const conv_first_pass *pass, const void *x, const void *y,
                                   const void *dy, const conv_sums *sums, const conv_gradient *out);

#ifdef __cplusplus
}
#endif
#endif
