/* The table of operations that a device implements.
 *
 * Dimension letters: N batch, C channels or classes, H, W, I in-features, O out-features, K kernel
 * side. All arrays are in device memory unless said otherwise, all tensors float32. Activations and
 * their gradients (x, y, z, dy, dx, dz, but not the logits) may be of a shorter type of the
 * device's choice inside the room of N*C*H*W floats; "private" marks one whose order in there is
 * its choice as well. `n` is at most the `max_n` that a plan was made for. Bits depend on shapes
 * and values alone, never on the number of threads.
 *
 * Convolutions and linear layers have a plan (conv2d, linear), made once: it holds the library's
 * primitives and scratch memory. Weights lie in the parameter arena in the plan's private order;
 * import and export translate to and from PyTorch's.
 */
#ifndef MNIST_DDP_KERNELS_OPS_H
#define MNIST_DDP_KERNELS_OPS_H

#include "kernels/device.h"
#include "kernels/step.h"

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
    bool logits; /* the output is the network's: float32 plain */
} linear_shape;

/* Memory, events and recordings of accelerators; each device has its own struct behind it. */
typedef struct device_event device_event;
typedef struct device_graph device_graph;

typedef struct conv2d conv2d; /* a plan; each device has its own struct behind it */
typedef struct linear linear;

/* Which elements a dropout layer keeps. Byte j of the Philox4x32-10 block with key = seed and
 * counter (samples[i], epoch, layer, block), block = position / 16 with channels innermost, belongs
 * to element 16 * block + j of sample i; it is kept if the byte is >= 256 * p. */
typedef struct dropout {
    float p; /* 0: nothing is dropped; a multiple of 1/256, < 1 */
    uint64_t seed;
    uint32_t layer;
    const uint32_t *samples; /* (n) */
    const step_state *state; /* whose plan holds the epoch */
    const uint8_t *keep;     /* NULL, or (n, C, H, W) in plain order: 1 keeps, 0 drops; replaces
                            Philox (golden tests) */
} dropout;

/* z (n, C, H, W) -> y (n, C, H/2, W/2): relu, 2x2 max-pooling with stride 2, dropout. */
typedef struct pool_shape {
    int channels, height, width; /* of the input; height and width even, channels % 16 == 0 */
} pool_shape;

/* Totals of a loss over batches. */
typedef struct score {
    double loss_sum;  /* over samples, in nats */
    double last_loss; /* mean over the last batch */
    int64_t correct;  /* samples whose largest logit (first of equals) is the label's */
} score;

typedef struct sgd_options {
    float momentum, weight_decay;
    bool nesterov;
} sgd_options;

typedef struct adam_options {
    float beta1, beta2, eps, weight_decay;
} adam_options;

typedef struct adadelta_options {
    float rho, eps, weight_decay;
} adadelta_options;

/* Where a batch's images come from. */
typedef struct gather_source {
    const uint8_t *images, *labels; /* (count, pixels), (count) */
    const uint32_t *order;          /* indices of images */
    int pixels;
} gather_source;

/* What only an accelerator has. */
typedef struct accelerator_ops {
    /* Page-locks host memory, so that copies of it need no help of the host. No two pieces may
     * share a page. */
    status (*pin)(device *dev, void *host, size_t size_bytes);
    void (*unpin)(device *dev, void *host);

    /* Page-locked host memory, not initialised; free_pinned first waits for all enqueued work. */
    status (*alloc_pinned)(device *dev, size_t size_bytes, void **out);
    void (*free_pinned)(device *dev, void *host); /* accepts NULL */

    status (*event_create)(device *dev, device_event **out);
    void (*event_destroy)(device_event *event); /* accepts NULL */

    /* An event that notes when it was reached; event_record enqueues it behind the work so far.
     * Between two that have been reached, *ns passed on the device. Not while work is recorded. */
    status (*timer_create)(device *dev, device_event **out);
    status (*event_record)(device *dev, device_event *timer);
    status (*event_elapsed)(device *dev, device_event *from, device_event *to, int64_t *ns);

    /* Copies to pinned host memory behind the work enqueued so far, beside what is enqueued later;
     * `done` is reached when the copy has been made. */
    status (*copy_out)(device *dev, void *pinned, const void *src, size_t size_bytes,
                       device_event *done);
    /* The host waits for it. */
    status (*event_wait)(device *dev, device_event *event);
    /* Copies from pinned host memory; what is enqueued later finds it done. */
    status (*copy_in)(device *dev, void *dst, const void *pinned, size_t size_bytes);

    /* Records work instead of doing it (a CUDA graph): between the two calls all calls of this
     * thread on this device enqueue into the recording; calls that wait are errors. capture_end
     * with out NULL throws it away and leaves this thread's message as it is: for use after a
     * failure. Launching enqueues all of it. */
    status (*capture_begin)(device *dev);
    status (*capture_end)(device *dev, device_graph **out);
    status (*graph_launch)(device *dev, device_graph *graph);
    void (*graph_destroy)(device_graph *graph); /* accepts NULL */
} accelerator_ops;

/* How a device comes to be: what a module exports. */
typedef struct device_kind {
    const char *name; /* as --device spells it */
    status (*create)(const device_options *options, device *dev);
    status (*count)(int *out); /* NULL: there is always one */
} device_kind;

struct device_ops {
    const char *name;
    void (*destroy)(device *dev);

    /* Opens lanes for threads of its own, beside dev->lane. NULL: it has none. */
    status (*trace)(device *dev, struct trace *t);

    /* Its libraries' choices so far: *out set to the index-th; false: there are no more. NULL: it
     * makes none that are worth telling. */
    bool (*choice)(const device *dev, int index, device_choice *out);

    /* Memory of the device: zeroed, 64-byte aligned. upload and download are done when they return;
     * copy, from device to device, is enqueued. */
    status (*alloc)(device *dev, size_t size_bytes, void **out);
    void (*free)(device *dev, void *memory); /* accepts NULL */
    status (*upload)(device *dev, void *dst, const void *host, size_t size_bytes);
    status (*download)(device *dev, void *host, const void *src, size_t size_bytes);
    status (*copy)(device *dev, void *dst, const void *src, size_t size_bytes);

    /* Waits until all enqueued work is done; brings its errors. */
    status (*synchronize)(device *dev);

    /* NULL where the device works on host memory. */
    const accelerator_ops *accelerator;

    /* step_begin (kernels/step.h) on `state` and `stop_flag`; *plan, host memory, is read before
     * it returns. */
    status (*begin_step)(device *dev, const step_plan *plan, step_state *state, float *stop_flag);

    /* With index(i) = order[state->plan.first + offset + i], for n images of `pixels` bytes each:
     * x[i] = (images[index(i)] / 255 - mean) / std, labels_out[i] = labels[index(i)], samples[i] =
     * index(i). mean 0.1307, std 0.3081. */
    status (*gather)(device *dev, const gather_source *source, const step_state *state,
                     uint32_t offset, int n, float *x, uint8_t *labels_out, uint32_t *samples);

    /* Before a forward pass: all weights and biases given to the passes that follow lie in
     * parameters[0, count). A device that reads a copy in another type renews it here. */
    status (*begin_forward)(device *dev, const float *parameters, size_t count);

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

    /* Softmax cross-entropy of logits (n, C) float32 plain. totals () device memory: added to.
     * dlogits (n, C) set: (softmax - one_hot) * grad_scale * step_loss_scale, of
     * device_element_bytes() each; NULL: not wanted, then state is not read. */
    status (*cross_entropy)(device *dev, const float *logits, const uint8_t *labels, int n,
                            int classes, const step_state *state, score *totals, float *dlogits);

    /* Optimizers over flat slices, PyTorch's formulas; lr and adam's factors are in `state`. The
     * gradient is divided by step_loss_scale, then weight_decay is added. With dynamic loss scaling
     * sets scaling.overflow from grad first, and does nothing more if that is set. */
    status (*sgd_step)(device *dev, float *param, const float *grad, float *momentum_buffer,
                       size_t count, step_state *state, const sgd_options *options);
    status (*adam_step)(device *dev, float *param, const float *grad, float *exp_avg,
                        float *exp_avg_sq, size_t count, step_state *state,
                        const adam_options *options);
    status (*adadelta_step)(device *dev, float *param, const float *grad, float *square_avg,
                            float *acc_delta, size_t count, step_state *state,
                            const adadelta_options *options);
};

#endif
