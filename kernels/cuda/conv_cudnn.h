/* Convolutions through cuDNN, channels innermost on both sides.
 *
 * A cuDNN execution plan is for one batch size. It is chosen at the first batch of that size, which
 * must not be during graph capture. If the chosen engine wants more than the workspace, the batch
 * is cut into pieces.
 */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_CUDNN_H
#define MNIST_DDP_KERNELS_CUDA_CONV_CUDNN_H

#include "kernels/cuda/conv_graph.h"
#include "kernels/cuda/cuda_state.h"

typedef struct conv_cudnn conv_cudnn;

/* Makes the device's cuDNN handle and workspace if it has none yet. */
status conv_cudnn_create(device *dev, const conv2d_shape *shape, conv_cudnn **out);
void conv_cudnn_destroy(conv_cudnn *c); /* accepts NULL */

/* Of whole batches; device memory, of the activations' type, aligned to 16 bytes. */
typedef struct conv_arrays {
    const void *x, *w, *y;
    const void *bias; /* CONV_PASS_FORWARD_BIAS only */
} conv_arrays;

/* Enqueues one pass for images [first, first + *count) of n, as many as the workspace allows. Call
 * it until all n are done. With CONV_PASS_WEIGHTS each call overwrites w. *count = 0: there is no
 * engine for it; CONV_PASS_FORWARD_BIAS only. */
status conv_cudnn_run(conv_cudnn *c, conv_pass pass, int n, int first, const conv_arrays *arrays,
                      int *count);

#endif
