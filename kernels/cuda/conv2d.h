/* Convolutions of the cuda device. One channel of plain input: own kernels (conv_first.cu).
 * Channels innermost (NHWC) on both sides: cuDNN (conv_cudnn.c), with own kernels around it
 * (conv_sums.cu).
 *
 * Weights lie in the arena channels innermost as well, (O, K, K, C).
 */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV2D_H
#define MNIST_DDP_KERNELS_CUDA_CONV2D_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The entries of the device's table. */
status cuda_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out);
void cuda_conv2d_destroy(conv2d *plan);
status cuda_conv2d_import(conv2d *plan, const float *plain, float *weight);
status cuda_conv2d_export(conv2d *plan, const float *weight, float *plain);
status cuda_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                           const float *bias, float *y);
status cuda_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                    const float *dy, float *dw, float *db, bool accumulate);
status cuda_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                 const float *dy, float *dx);

#ifdef __cplusplus
}
#endif
#endif
