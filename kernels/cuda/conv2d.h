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

/* Rows of device_ops. */
conv2d_create_op cuda_conv2d_create;
conv2d_destroy_op cuda_conv2d_destroy;
conv2d_import_op cuda_conv2d_import;
conv2d_export_op cuda_conv2d_export;
conv2d_forward_op cuda_conv2d_forward;
conv2d_backward_weights_op cuda_conv2d_backward_weights;
conv2d_backward_data_op cuda_conv2d_backward_data;

#ifdef __cplusplus
}
#endif
#endif
