/* The kernels of convolutions: conv_sums.cu, conv_first.cu. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_KERNELS_H
#define MNIST_DDP_KERNELS_CUDA_CONV_KERNELS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bias, bias gradient and batch reductions of convolutions.
 *
 * Reductions have two stages. Each block of the first writes its partial sums, and the second adds
 * those in an order fixed by the shapes. So the same numbers give the same bits. Activations are of
 * the device's type, aligned to 16 bytes. */

/* The first stage's output. */
typedef struct conv_sums {
    float *partial; /* (values, blocks), blocks: of the launch */
    unsigned max_blocks;
} conv_sums;

/* For launches of at most `blocks` per multiprocessor. */
status conv_sums_create(device *dev, int values, unsigned blocks, conv_sums *out);
void conv_sums_free(device *dev, conv_sums *sums);

/* What is summed: the first dw_count values go to dw, the others to db; added or set. */
typedef struct conv_gradient {
    float *dw, *db;
    int dw_count, db_count;
    bool accumulate;
} conv_gradient;

/* The second stage. */
status conv_sums_finish(const device *dev, const conv_sums *sums, unsigned blocks,
                        const conv_gradient *out);

enum { CONV_SUMS_COLUMNS_BLOCKS = 8 }; /* per multiprocessor */

/* db from dy (rows, db_count); dw_count is 0. */
status conv_sums_columns(const device *dev, const conv_sums *sums, const void *dy, size_t rows,
                         const conv_gradient *out);

/* dw (count) set or added to from `from`, of the activations' type. */
status conv_sums_take(const device *dev, const void *from, size_t count, float *dw,
                      bool accumulate);

/* y (rows, channels) += bias (channels). */
status conv_sums_add_bias(const device *dev, const float *bias, size_t rows, int channels, void *y);

/* The first convolution of a network: one channel of plain input, 3x3 with a relu or 5x5 without,
 * output channels innermost. No library has a kernel for it. It does 9 or 25 multiplications per
 * number that it writes, so it is bound by memory. */

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
