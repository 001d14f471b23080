/* The reference device: every operation as plain loops, in plain NCHW order, on one thread. */
#ifndef MNIST_DDP_KERNELS_REFERENCE_REFERENCE_H
#define MNIST_DDP_KERNELS_REFERENCE_REFERENCE_H

#include "kernels/ops.h"

/* Rows of device_ops: conv2d.c, pool.c, linear.c. Import and export are plain copies. */
conv2d_create_op reference_conv2d_create;
conv2d_destroy_op reference_conv2d_destroy;
conv2d_import_op reference_conv2d_copy;
conv2d_forward_op reference_conv2d_forward;
conv2d_backward_weights_op reference_conv2d_backward_weights;
conv2d_backward_data_op reference_conv2d_backward_data;

pool_forward_op reference_pool_forward;
pool_backward_op reference_pool_backward;

linear_create_op reference_linear_create;
linear_destroy_op reference_linear_destroy;
linear_import_op reference_linear_copy;
linear_forward_op reference_linear_forward;
linear_finish_op reference_linear_finish;
linear_backward_weights_op reference_linear_backward_weights;
linear_backward_data_op reference_linear_backward_data;

#endif
