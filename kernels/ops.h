/* The table of operations that a device implements.
 *
 * Dimension letters: N batch, C channels or classes, H, W, I in-features, O out-features, K kernel
 * side. All tensors are float32 in device memory unless said otherwise; "private" marks an
 * activation whose order inside its N*C*H*W elements is the device's own choice. `n` is at most the
 * `max_n` that a plan was made for. Bits depend on shapes and values alone, never on the number of
 * threads.
 *
 * Convolutions and linear layers have a plan (conv2d, linear), made once: it holds the library's
 * primitives and scratch memory. Weights lie in the parameter arena in the plan's private order;
 * import and export translate to and from PyTorch's.
 */
#ifndef MNIST_DDP_KERNELS_OPS_H
#define MNIST_DDP_KERNELS_OPS_H

#include "kernels/device.h"

#include <stdbool.h>

typedef struct conv2d_shape {
    int channels, height, width; /* of the input */
    int out_channels, kernel;    /* stride 1, no padding */
    bool plain_input;            /* the input is plain NCHW (the batch), not private */
    bool relu;                   /* the output is relu(conv), not conv */
} conv2d_shape;

typedef struct linear_shape {
    int in_features, out_features;
    /* Where the input is a private activation flattened: its C, H, W (in_features = C*H*W).
     * channels = 0: the input is plain (N, I). */
    int channels, height, width;
} linear_shape;

typedef struct conv2d conv2d; /* a plan; each device has its own struct behind it */
typedef struct linear linear;

/* Which elements a dropout layer keeps. Byte j of the Philox4x32-10 block with key = seed and
 * counter (samples[i], epoch, layer, block), block = position / 16 with channels innermost, belongs
 * to element 16 * block + j of sample i; it is kept if the byte is >= 256 * p. */
typedef struct dropout {
    float p; /* 0: nothing is dropped; a multiple of 1/256, < 1 */
    uint64_t seed;
    uint32_t epoch, layer;
    const uint32_t *samples; /* (n) */
    const uint8_t *keep;     /* NULL, or (n, C, H, W) in plain order: 1 keeps, 0 drops; replaces
                                Philox (golden tests) */
} dropout;

/* z (n, C, H, W) -> y (n, C, H/2, W/2): relu, 2x2 max-pooling with stride 2, dropout. */
typedef struct pool_shape {
    int channels, height, width; /* of the input; height and width even, channels % 16 == 0 */
} pool_shape;

typedef struct adam_options {
    float lr, beta1, beta2, eps, weight_decay;
} adam_options;

struct device_ops {
    const char *name;
    void (*destroy)(device *dev);

    /* Memory of the device: zeroed, 64-byte aligned. */
    status (*alloc)(device *dev, size_t size_bytes, void **out);
    void (*free)(device *dev, void *memory); /* accepts NULL */
    status (*upload)(device *dev, void *dst, const void *host, size_t size_bytes);
    status (*download)(device *dev, void *host, const void *src, size_t size_bytes);

    /* x[i] = (images[indices[i]] / 255 - mean) / std for n images of `pixels` bytes each, and
     * labels_out[i] = labels[indices[i]]. mean 0.1307, std 0.3081. */
    status (*gather)(device *dev, const uint8_t *images, const uint8_t *labels,
                     const uint32_t *indices, int n, int pixels, float *x, uint8_t *labels_out);

    /* weight (O, C, K, K), bias (O). */
    status (*conv2d_create)(device *dev, const conv2d_shape *shape, int max_n, conv2d **out);
    void (*conv2d_destroy)(conv2d *plan);                                     /* accepts NULL */
    status (*conv2d_import)(conv2d *plan, const float *plain, float *weight); /* host to host */
    status (*conv2d_export)(conv2d *plan, const float *weight, float *plain);
    status (*conv2d_forward)(conv2d *plan, int n, const float *x, const float *weight,
                             const float *bias, float *y);
    /* dw, db from x and dy; with `relu`, dy counts only where y > 0. `accumulate`: add, else set.
     */
    status (*conv2d_backward_weights)(conv2d *plan, int n, const float *x, const float *y,
                                      const float *dy, float *dw, float *db, bool accumulate);
    /* dx set from dy (with `relu`: where y > 0). Not for plain_input. */
    status (*conv2d_backward_data)(conv2d *plan, int n, const float *weight, const float *y,
                                   const float *dy, float *dx);

    /* argmax (n, C, H/2, W/2) uint8: which of the four won, first of equals, private order. */
    status (*pool_forward)(device *dev, const pool_shape *shape, int n, const float *z,
                           const dropout *drop, float *y, uint8_t *argmax);
    /* dz set: dy / (1 - p) where the window's winner reached y > 0, else 0. */
    status (*pool_backward)(device *dev, const pool_shape *shape, int n, const float *y,
                            const uint8_t *argmax, const float *dy, float p, float *dz);

    /* weight (O, I), bias (O). */
    status (*linear_create)(device *dev, const linear_shape *shape, int max_n, linear **out);
    void (*linear_destroy)(linear *plan);
    status (*linear_import)(linear *plan, const float *plain, float *weight);
    status (*linear_export)(linear *plan, const float *weight, float *plain);
    /* y (n, O) = x W^T + b; then relu and dropout where `relu` (drop NULL: none). */
    status (*linear_forward)(linear *plan, int n, const float *x, const float *weight,
                             const float *bias, bool relu, const dropout *drop, float *y);
    status (*linear_backward_weights)(linear *plan, int n, const float *x, const float *dy,
                                      float *dw, float *db, bool accumulate);
    /* dx (n, I) set = dy W; where `relu`, x was a relu's output with dropout p behind it: dx counts
     * where x > 0, times 1 / (1 - p). */
    status (*linear_backward_data)(linear *plan, int n, const float *weight, const float *dy,
                                   const float *x, bool relu, float p, float *dx);

    /* Softmax cross-entropy. loss_sum () float64 host: += sum over samples, in nats; correct ()
     * int64 host: += samples whose largest logit (first of equals) is the label's. dlogits (n, C)
     * set: (softmax - one_hot) * grad_scale; NULL: not wanted. */
    status (*cross_entropy)(device *dev, const float *logits, const uint8_t *labels, int n,
                            int classes, float grad_scale, double *loss_sum, int64_t *correct,
                            float *dlogits);

    /* Optimizers over flat slices, PyTorch's formulas. weight_decay is added to the gradient first.
     */
    status (*sgd_step)(device *dev, float *param, const float *grad, float *momentum_buffer,
                       size_t count, float lr, float momentum, float weight_decay, bool nesterov,
                       bool first_step);
    /* `step` counts from 1. */
    status (*adam_step)(device *dev, float *param, const float *grad, float *exp_avg,
                        float *exp_avg_sq, size_t count, const adam_options *options, int64_t step);
    status (*adadelta_step)(device *dev, float *param, const float *grad, float *square_avg,
                            float *acc_delta, size_t count, float lr, float rho, float eps,
                            float weight_decay);
};

#endif
