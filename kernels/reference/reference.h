/* The reference device: every operation as plain loops, in plain NCHW order, on one thread. */
#ifndef MNIST_DDP_KERNELS_REFERENCE_REFERENCE_H
#define MNIST_DDP_KERNELS_REFERENCE_REFERENCE_H

#include "kernels/ops.h"

/* As in device_kind. One thread, whatever the options say. */
status reference_device_create(const device_options *options, device *dev);

/* The entries of device_ops with these names; conv2d.c, pool.c, linear.c. */
status reference_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out);
void reference_conv2d_destroy(conv2d *plan);
status reference_conv2d_copy(conv2d *plan, const float *from, float *to);
status reference_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                                const float *bias, float *y);
status reference_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                         const float *dy, float *dw, float *db, bool accumulate);
status reference_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                      const float *dy, float *dx);

status reference_pool_forward(device *dev, const pool_shape *shape, int n, const float *z,
                              const dropout *drop, float *y, uint8_t *argmax);
status reference_pool_backward(device *dev, const pool_shape *shape, int n, const float *y,
                               const uint8_t *argmax, const float *dy, float p, float *dz);

status reference_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out);
void reference_linear_destroy(linear *plan);
status reference_linear_copy(linear *plan, const float *from, float *to);
status reference_linear_forward(linear *plan, int n, const float *x, const float *weight,
                                const float *bias, bool relu, const dropout *drop, float *y);
status reference_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                         float *dw, float *db, bool accumulate);
status reference_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                      const float *x, bool relu, float p, float *dx);

#endif
