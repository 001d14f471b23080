/* The kernels of linear layers: linear_epilogue.cu, skinny_linear.cu. */
#ifndef MNIST_DDP_KERNELS_CUDA_LINEAR_KERNELS_H
#define MNIST_DDP_KERNELS_CUDA_LINEAR_KERNELS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Epilogues of linear layers as kernels of our own, for what cuBLASLt does not do. Activations and
 * their gradients are of the device's type of activations. Sums are in a fixed order. */

typedef struct linear_rows {
    int n, features;
    bool is_float; /* float32, not the type of activations */
} linear_rows;

/* y (n, features) = dropout(relu(y + bias)); bias NULL: none is added. */
status cuda_linear_epilogue(device *dev, const linear_rows *rows, const linear_epilogue *epilogue,
                            void *y);

/* dx = x > 0 ? dx * scale : 0; count elements each. */
status cuda_relu_backward(device *dev, size_t count, const float *x, float scale, float *dx);

/* db (features) float32 = the sum over dy's n rows, or that added. */
status cuda_column_sums(device *dev, int n, int features, const float *dy, bool accumulate,
                        float *db);

/* Linear layers of few outputs, O <= SKINNY_OUTPUTS: too little work for the library's kernels,
 * which have larger tiles. The weights are read in float32 in every precision; activations and
 * their gradients are of the device's type of activations. Sums are in a fixed order. */

enum { SKINNY_OUTPUTS = 16 };

typedef struct skinny_linear {
    device *dev;
    int in_features, out_features;
    float *partials;   /* cuda_skinny_partials floats for max_n */
    unsigned *tickets; /* cuda_skinny_tickets, zeroed */
} skinny_linear;

size_t cuda_skinny_partials(int in_features, int out_features, int max_n);
size_t cuda_skinny_tickets(int in_features);

/* y (n, O) float32 = x W^T + b; bias NULL: none is added. */
status cuda_skinny_forward(const skinny_linear *layer, int n, const float *x, const float *weight,
                           const float *bias, float *y);
status cuda_skinny_backward_weights(const skinny_linear *layer, int n, const float *x,
                                    const float *dy, const param_gradients *out);
/* As linear_backward_data. */
status cuda_skinny_backward_data(const skinny_linear *layer, int n, const float *weight,
                                 const float *dy, const relu_output *input, float *dx);

#ifdef __cplusplus
}
#endif
#endif
