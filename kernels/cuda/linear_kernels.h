/* What linear layers need beside the library's products. Arrays of activations are of the device's
 * type of activations unless said otherwise. All sums are in a fixed order. */
#ifndef MNIST_DDP_KERNELS_CUDA_LINEAR_KERNELS_H
#define MNIST_DDP_KERNELS_CUDA_LINEAR_KERNELS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What comes behind a product, in place. */
typedef struct linear_finish {
    int n, features;
    bool is_float;     /* y is float32 */
    const float *bias; /* float32 (features), or NULL: none is added */
    bool relu;
    const dropout *drop; /* or NULL */
} linear_finish;

/* y (n, features). */
status cuda_linear_finish(device *dev, const linear_finish *finish, void *y);

/* dx = dx * scale where x > 0, else 0; count elements each. */
status cuda_relu_backward(device *dev, size_t count, const float *x, float scale, float *dx);

/* db (features) float32 = the sum over dy's n rows, or that added. */
status cuda_column_sums(device *dev, int n, int features, const float *dy, bool accumulate,
                        float *db);

/* Layers of few outputs, O <= NARROW_OUTPUTS: less work than it takes to start the library's
 * kernels, which are made for larger tiles. They read the float32 weights in every precision. */
enum { NARROW_OUTPUTS = 16 };

typedef struct narrow_layer {
    int in_features, out_features;
    float *partials;   /* cuda_narrow_partials floats for max_n */
    unsigned *tickets; /* cuda_narrow_tickets, zeroed */
} narrow_layer;

size_t cuda_narrow_partials(int in_features, int out_features, int max_n);
size_t cuda_narrow_tickets(int in_features);

/* y (n, O) float32 = x W^T + b. */
status cuda_narrow_forward(device *dev, const narrow_layer *layer, int n, const float *x,
                           const float *weight, const float *bias, float *y);
status cuda_narrow_backward_weights(device *dev, const narrow_layer *layer, int n, const float *x,
                                    const float *dy, bool accumulate, float *dw, float *db);
/* As linear_backward_data; x NULL: it was no relu's output. */
status cuda_narrow_backward_data(device *dev, const narrow_layer *layer, int n, const float *weight,
                                 const float *dy, const float *x, float scale, float *dx);

#ifdef __cplusplus
}
#endif
#endif
