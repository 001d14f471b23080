/* Linear layers of few outputs, O <= SKINNY_OUTPUTS: too little work for the library's kernels,
 * which have larger tiles. The weights are read in float32 in every precision; activations and
 * their gradients are of the device's type of activations. Sums are in a fixed order. */
#ifndef MNIST_DDP_KERNELS_CUDA_SKINNY_LINEAR_H
#define MNIST_DDP_KERNELS_CUDA_SKINNY_LINEAR_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SKINNY_OUTPUTS = 16 };

typedef struct skinny_linear {
    device *dev;
    int in_features, out_features;
    float *partials;   /* cuda_skinny_partials floats for max_n */
    unsigned *tickets; /* cuda_skinny_tickets, zeroed */
} skinny_linear;

size_t cuda_skinny_partials(int in_features, int out_features, int max_n);
size_t cuda_skinny_tickets(int in_features);

/* y (n, O) float32 = x W^T + b. */
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
