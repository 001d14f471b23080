/* Epilogues of linear layers as kernels of our own, for what cuBLASLt does not do. Activations and
 * their gradients are of the device's type of activations. Sums are in a fixed order. */
#ifndef MNIST_DDP_KERNELS_CUDA_LINEAR_EPILOGUE_H
#define MNIST_DDP_KERNELS_CUDA_LINEAR_EPILOGUE_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
