/* The two kinds of conv2d plan of the CPU device. */
#ifndef MNIST_DDP_KERNELS_CPU_CONV2D_H
#define MNIST_DDP_KERNELS_CPU_CONV2D_H

#include "kernels/cpu/conv_plan.h"

/* One channel in plain order, 3x3, relu: our own loops (conv_first.c). */
status conv_first_init(conv_plan *p, int max_n);
void conv_first_order(const conv_plan *p, const float *from, float *to, bool import);
void conv_first_forward(conv_plan *p, int n, const float *x, const float *weight, const float *bias,
                        float *y);
void conv_first_backward_weights(conv_plan *p, int n, const float *x, const float *y,
                                 const float *dy, const param_gradients *out);

/* Blocked channels on both sides: oneDNN's Winograd or direct convolutions (conv_onednn.c). */
typedef struct conv_onednn conv_onednn;
status conv_onednn_create(device *dev, const conv2d_shape *shape, int max_n, conv_onednn **out);
void conv_onednn_destroy(conv_onednn *c);
void conv_onednn_order(const conv_plan *p, const float *from, float *to, bool import);
status conv_onednn_forward(conv_onednn *c, int n, const float *x, const float *weight,
                           const float *bias, float *y);
status conv_onednn_backward_weights(conv_onednn *c, int n, const float *x, const float *dy,
                                    const param_gradients *out);
status conv_onednn_backward_data(conv_onednn *c, int n, const float *weight, const float *dy,
                                 float *dx);

#endif
