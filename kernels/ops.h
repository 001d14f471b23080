/* The table of operations that a device implements.
 *
 * The type of a row, such as conv2d_forward_op, stands first, with the contract. Each device
 * declares its functions by these types; those of accelerators alone stand in cuda/cuda_ops.h.
 *
 * Dimension letters: N batch, C channels or classes, H, W, I in-features, O out-features, K kernel
 * side. All arrays are in device memory unless said otherwise, all tensors float32. Activations and
 * their gradients (x, y, z, dy, dx, dz, but not the logits) may be of a shorter type of the
 * device's choice in the room of N*C*H*W floats; if "private", their layout is its choice too. `n`
 * is at most the `max_n` that a plan was made for. Bits depend on shapes and values alone, never on
 * the number of threads.
 *
 * Convolutions and linear layers have a plan (conv2d, linear), made once. It holds the library's
 * primitives and scratch memory. Weights are in the parameter arena in the plan's private layout;
 * import and export convert from and to PyTorch's.
 */
#ifndef MNIST_DDP_KERNELS_OPS_H
#define MNIST_DDP_KERNELS_OPS_H

#include "kernels/augmentation.h"
#include "kernels/device.h"
#include "kernels/step.h"

#include <stdbool.h>

/* Memory, events and graphs of an accelerator; each device defines its own structs. */
typedef struct device_event device_event;
typedef struct device_graph device_graph;

/* What only an accelerator has. */
typedef struct accelerator_ops {
    /* Page-locks host memory, for asynchronous copies. No two pieces may share a page. */
    status (*pin)(device *dev, void *host, size_t size_bytes);
    void (*unpin)(device *dev, void *host);

    /* Pinned host memory, not initialised; free_pinned first waits for all enqueued work. */
    status (*alloc_pinned)(device *dev, size_t size_bytes, void **out);
    void (*free_pinned)(device *dev, void *host); /* accepts NULL */

    /* From the first call on, what is freed of both kinds of memory is kept for the next array of
     * its size, for a job whose rounds need the same again; but not if memory is scarce. Each call
     * frees what was kept at the call before, and has not been used since. Waits for all enqueued
     * work; by the thread that allocates. */
    void (*keep_freed)(device *dev);

    status (*event_create)(device *dev, device_event **out);
    void (*event_destroy)(device_event *event); /* accepts NULL */

    /* A timing event. event_record enqueues it after the work so far. Once both are reached,
     * event_elapsed gives the nanoseconds between them. Not during graph capture. */
    status (*timer_create)(device *dev, device_event **out);
    status (*event_record)(device *dev, device_event *timer);
    status (*event_elapsed)(device *dev, device_event *from, device_event *to, int64_t *ns);

    /* Copies to pinned host memory after the work enqueued so far; work enqueued later overlaps
     * with it. `done` is reached when the copy is complete. */
    status (*copy_out)(device *dev, void *pinned, const void *src, size_t size_bytes,
                       device_event *done);
    /* After dev->interrupted has ended a wait, and its reason was ended (a communicator was
     * aborted): waits until the enqueued work has come to its end, at most timeout_ms. Then the
     * device is as before; else STATUS_DEVICE, and it stays of no use. */
    status (*recover)(device *dev, int64_t timeout_ms);

    /* For floats that travel as 16 bits each, of type BF16 or F16: narrow sets to[i] to
     * factor * from[i], that product rounded once more; widen sets to[i] to from[i]. */
    status (*narrow)(device *dev, precision type, const float *from, size_t count, float factor,
                     void *to);
    status (*widen)(device *dev, precision type, const void *from, size_t count, float *to);

    /* step_offer and step_take (kernels/step.h). */
    status (*commit_offer)(device *dev, const step_vote *vote, step_state *state);
    status (*commit_take)(device *dev, const step_vote *vote, step_state *state);

    /* The host waits for it. */
    status (*event_wait)(device *dev, device_event *event);
    /* Copies from pinned host memory; work enqueued later sees it. */
    status (*copy_in)(device *dev, void *dst, const void *pinned, size_t size_bytes);

    /* Captures work in a graph instead of running it: between the two calls all calls of this
     * thread on this device enqueue into the graph; calls that wait are errors. capture_end with
     * out NULL discards the graph and keeps this thread's error message: for use after a failure.
     * A launch enqueues the whole graph. */
    status (*capture_begin)(device *dev);
    status (*capture_end)(device *dev, device_graph **out);
    status (*graph_launch)(device *dev, device_graph *graph);
    void (*graph_destroy)(device_graph *graph); /* accepts NULL */
} accelerator_ops;

/* A kind of device: what a module exports. */
typedef struct device_kind {
    const char *name; /* as --device spells it */
    status (*create)(const device_options *options, device *dev);
    status (*count)(int *out, char *model); /* as device_count; NULL: there is always one */
} device_kind;

/* Opens trace lanes for threads of the device's own, beside dev->lane. */
typedef status device_trace_op(device *dev, struct trace *t);

/* Each of the device's own threads keeps to a core of its own: the first of them to cores->ids[1],
 * as the thread that calls the device has cores->ids[0]. There are enough. */
struct cores; /* base/thread.h */
typedef void device_bind_op(device *dev, const struct cores *cores);

/* Sets *out to the index-th choice of the device's libraries so far; false: there are no more. */
typedef bool device_choice_op(const device *dev, int index, device_choice *out);

/* Memory of the device: zeroed, 64-byte aligned. upload and download are complete on return; copy,
 * from device to device, is enqueued. */
typedef status alloc_op(device *dev, size_t size_bytes, void **out);
typedef void free_op(device *dev, void *memory); /* accepts NULL */
typedef status upload_op(device *dev, void *dst, const void *host, size_t size_bytes);
typedef status download_op(device *dev, void *host, const void *src, size_t size_bytes);
typedef status copy_op(device *dev, void *dst, const void *src, size_t size_bytes);

/* Waits until all enqueued work is done; returns its errors. */
typedef status synchronize_op(device *dev);

/* step_begin (kernels/step.h) on `state` and `stop_flag`; *plan, host memory, is read before it
 * returns. */
typedef status begin_step_op(device *dev, const step_plan *plan, step_state *state,
                             float *stop_flag);

typedef struct gather_source {
    const uint8_t *images, *labels; /* (count, pixels), (count) */
    const uint32_t *order;          /* indices of images */
    int pixels;
    augmentation augment; /* if on, pixels is AUGMENTATION_SIDE squared */
} gather_source;

typedef struct gather_output {
    float *x; /* device_element_bytes() each */
    uint8_t *labels;
    uint32_t *samples;
} gather_output;

/* With index(i) = order[state->plan.first + offset + i], for n images of `pixels` bytes each:
 * out->x[i] = (image(i) / 255 - mean) / std, out->labels[i] = labels[index(i)],
 * out->samples[i] = index(i). mean 0.1307, std 0.3081. image(i) is images[index(i)] as
 * source->augment changes that sample in epoch state->plan.epoch. */
typedef status gather_op(device *dev, const gather_source *source, const step_state *state,
                         uint32_t offset, int n, const gather_output *out);

/* Before a forward pass: all weights and biases of the passes that follow are in
 * parameters[0, count). A device that reads a copy in another type updates it here. */
typedef status begin_forward_op(device *dev, const float *parameters, size_t count);

/* The gradients of a layer's weight and bias: added to if `accumulate`, else set. */
typedef struct param_gradients {
    float *dw, *db;
    bool accumulate;
} param_gradients;

typedef struct conv2d conv2d; /* a plan; each device defines its own struct */

typedef struct conv2d_shape {
    int channels, height, width; /* the input's */
    int out_channels, kernel;    /* stride 1, no padding */
    bool plain_input;            /* the input is plain NCHW (the batch), not private */
    bool relu;                   /* the output is relu(conv), not conv */
} conv2d_shape;

/* weight (O, C, K, K), bias (O). */
typedef status conv2d_create_op(device *dev, const conv2d_shape *shape, int max_n, conv2d **out);
typedef void conv2d_destroy_op(conv2d *plan);                                     /* accepts NULL */
typedef status conv2d_import_op(conv2d *plan, const float *plain, float *weight); /* host to host */
typedef status conv2d_export_op(conv2d *plan, const float *weight, float *plain);
typedef status conv2d_forward_op(conv2d *plan, int n, const float *x, const float *weight,
                                 const float *bias, float *y);
/* From x and dy; with `relu`, dy counts only for y > 0. */
typedef status conv2d_backward_weights_op(conv2d *plan, int n, const float *x, const float *y,
                                          const float *dy, const param_gradients *out);
/* dx set from dy; with `relu`, dy counts only for y > 0. Not for plain_input. */
typedef status conv2d_backward_data_op(conv2d *plan, int n, const float *weight, const float *y,
                                       const float *dy, float *dx);

/* Which elements a dropout layer keeps. Byte j of the Philox4x32-10 block with key = seed and
 * counter (samples[i], epoch, layer, block), block = position / 16 with channels innermost, belongs
 * to element 16 * block + j of sample i; it is kept if the byte is >= 256 * p. */
typedef struct dropout {
    float p; /* 0: nothing is dropped; a multiple of 1/256, < 1 */
    uint64_t seed;
    uint32_t layer;
    uint32_t first_block;    /* added to each block: of a layer whose first elements others have */
    const uint32_t *samples; /* (n) */
    const step_state *state; /* its plan has the epoch */
    const uint8_t *keep;     /* NULL, or (n, C, H, W) in plain order: 1 keeps, 0 drops; replaces
                            Philox (golden tests) */
} dropout;

/* z (n, C, H, W) -> y (n, C, H/2, W/2): relu, 2x2 max-pooling with stride 2, dropout. */
typedef struct pool_shape {
    int channels, height, width; /* the input's; height and width even, channels % 16 == 0 */
    int n;
} pool_shape;

/* Set by pool_forward, read by pool_backward. */
typedef struct pool_output {
    float *y;
    uint8_t *argmax; /* (n, C, H/2, W/2): which of the four won, first of equals, private layout */
} pool_output;

typedef status pool_forward_op(device *dev, const pool_shape *shape, const float *z,
                               const dropout *drop, const pool_output *out);
/* dz set: dy / (1 - p) for a window's winner if y > 0, else 0. p is the dropout's. */
typedef status pool_backward_op(device *dev, const pool_shape *shape, const pool_output *out,
                                const float *dy, float p, float *dz);

/* The front of a network in one pass over each image, for a device that keeps an image in its
 * cache: a convolution of plain input, relu, a second convolution, and a pool as above. What is
 * between the layers is never in memory. */
typedef struct conv_block conv_block; /* a plan; each device defines its own struct */

enum { CONV_BLOCK_CONVS = 2 };

typedef struct conv_block_shape {
    conv2d_shape conv[CONV_BLOCK_CONVS];
    bool
        pool_between; /* a pool, without dropout, follows the first convolution: relu comes after */
} conv_block_shape;

/* What forward and backward of a batch have in common. */
typedef struct conv_block_batch {
    int n;
    const float *x; /* (n, 1, H, W), plain */
    const float *weight[CONV_BLOCK_CONVS], *bias[CONV_BLOCK_CONVS];
    pool_output out; /* set by forward */
} conv_block_batch;

/* Weights and biases as of conv2d. */
typedef status conv_block_create_op(device *dev, const conv_block_shape *shape, int max_n,
                                    conv_block **out);
typedef void conv_block_destroy_op(conv_block *plan); /* accepts NULL */
/* Of convolution `conv`; host to host. */
typedef status conv_block_import_op(conv_block *plan, int conv, const float *plain, float *weight);
typedef status conv_block_export_op(conv_block *plan, int conv, const float *weight, float *plain);
typedef status conv_block_forward_op(conv_block *plan, const conv_block_batch *batch,
                                     const dropout *drop);
/* Of the batch of the last forward. p is the dropout's; dy is the gradient of out.y, and is read
 * only where that is above 0; out[i] is of convolution i. */
typedef status conv_block_backward_op(conv_block *plan, const conv_block_batch *batch, float p,
                                      const float *dy, const param_gradients *out);

typedef struct linear linear; /* a plan; each device defines its own struct */

typedef struct linear_shape {
    int in_features, out_features;
    /* C, H, W if the input is a private activation flattened (in_features = C*H*W).
     * channels = 0: the input is plain (N, I). */
    int channels, height, width;
    bool logits; /* the output is the network's: float32 plain */
} linear_shape;

/* dropout(relu(x W^T + bias)) */
typedef struct linear_epilogue {
    const float *bias; /* (O) */
    bool relu;
    const dropout *drop; /* NULL: none */
} linear_epilogue;

/* The output of a relu and dropout with this p. */
typedef struct relu_output {
    const float *y;
    float p;
} relu_output;

/* weight (O, I), bias (O). */
typedef status linear_create_op(device *dev, const linear_shape *shape, int max_n, linear **out);
typedef void linear_destroy_op(linear *plan);                                     /* accepts NULL */
typedef status linear_import_op(linear *plan, const float *plain, float *weight); /* host to host */
typedef status linear_export_op(linear *plan, const float *weight, float *plain);
/* y (n, O) = x W^T with the epilogue; NULL: without one, and linear_finish is to follow. */
typedef status linear_forward_op(linear *plan, int n, const float *x, const float *weight,
                                 const linear_epilogue *epilogue, float *y);
/* The epilogue by itself: of a y that is the sum of several forwards'. */
typedef status linear_finish_op(linear *plan, int n, const linear_epilogue *epilogue, float *y);
/* x, as input->y below, is the batch of the last forward. */
typedef status linear_backward_weights_op(linear *plan, int n, const float *x, const float *dy,
                                          const param_gradients *out);
/* dx (n, I) set = dy W. If the layer's input is a relu's output, `input` is not NULL: then dx is
 * the gradient before that relu, dy W / (1 - p) for input->y > 0, else 0. */
typedef status linear_backward_data_op(linear *plan, int n, const float *weight, const float *dy,
                                       const relu_output *input, float *dx);

/* The logits (n, classes), float32 plain, and labels (n) of a batch. */
typedef struct loss_input {
    const float *logits;
    const uint8_t *labels;
    int n, classes;
    float
        smoothing; /* the labels': each class gets smoothing / classes of every sample's target, the
                        label's class the rest. 0: all is the label's */
    int before;    /* samples of the batch in the calls so far; 0: it begins with this one */
} loss_input;

/* Totals of a loss over batches. */
typedef struct score {
    double loss_sum;  /* over samples, in nats */
    double last_loss; /* mean over the last batch, or over as much of it as has come */
    int64_t correct;  /* samples whose largest logit (first of equals) is the label's */
    double grad_norm; /* the last step's, before its gradients were clipped; 0: they are not */
} score;

/* Softmax cross-entropy, torch's CrossEntropyLoss. Adds to *totals, device memory. dlogits (n,
 * classes) set: (softmax - target) * grad_scale * step_loss_scale, of device_element_bytes() each;
 * NULL: no gradient, then `state` is not read. */
typedef status cross_entropy_op(device *dev, const loss_input *in, const step_state *state,
                                score *totals, float *dlogits);

/* Gradients whose norm is to be max_norm at most. */
typedef struct gradient_clip {
    float *grad;
    size_t count; /* at least 1 */
    float max_norm;
    double *norm; /* device memory */
} gradient_clip;

/* torch.nn.utils.clip_grad_norm_: sets *norm = sqrt(sum of grad^2) / step_loss_scale, then
 * grad *= min(1, max_norm / (*norm + 1e-6)). If an element is not finite, neither is *norm, and the
 * element stays so. */
typedef status clip_gradients_op(device *dev, const gradient_clip *clip, const step_state *state);

/* A slice of the arenas of parameters, gradients and optimizer state. */
typedef struct optimizer_slice {
    float *param;
    const float *grad;
    float *state1, *state2; /* as the optimizer needs them, else NULL */
    size_t count;
} optimizer_slice;

typedef struct sgd_options {
    float momentum, weight_decay;
    bool nesterov;
} sgd_options;

typedef struct adam_options {
    float beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW: the decay is no part of the gradient */
} adam_options;

typedef struct adadelta_options {
    float rho, eps, weight_decay;
} adadelta_options;

/* Optimizer steps by PyTorch's formulas; lr and adam's factors are in `state`. The gradient is
 * divided by step_loss_scale, then weight_decay * param is added; if the decay is decoupled, param
 * is first multiplied by 1 - lr * weight_decay instead. With dynamic loss scaling, sets
 * scaling.overflow from grad first, and changes nothing else if that is set.
 * state1, state2: sgd momentum_buffer or NULL; adam exp_avg, exp_avg_sq; adadelta square_avg,
 * acc_delta. */
typedef status sgd_step_op(device *dev, const optimizer_slice *slice, step_state *state,
                           const sgd_options *options);
typedef status adam_step_op(device *dev, const optimizer_slice *slice, step_state *state,
                            const adam_options *options);
typedef status adadelta_step_op(device *dev, const optimizer_slice *slice, step_state *state,
                                const adadelta_options *options);

struct device_ops {
    const char *name;
    void (*destroy)(device *dev);
    device_trace_op *trace;             /* NULL: it has no threads of its own */
    device_bind_op *bind;               /* likewise */
    device_choice_op *choice;           /* NULL: it makes none that are worth reporting */
    const accelerator_ops *accelerator; /* NULL: it works on host memory */

    alloc_op *alloc;
    free_op *free;
    upload_op *upload;
    download_op *download;
    copy_op *copy;
    synchronize_op *synchronize;

    begin_step_op *begin_step;
    gather_op *gather;
    begin_forward_op *begin_forward;

    conv2d_create_op *conv2d_create;
    conv2d_destroy_op *conv2d_destroy;
    conv2d_import_op *conv2d_import;
    conv2d_export_op *conv2d_export;
    conv2d_forward_op *conv2d_forward;
    conv2d_backward_weights_op *conv2d_backward_weights;
    conv2d_backward_data_op *conv2d_backward_data;

    pool_forward_op *pool_forward;
    pool_backward_op *pool_backward;

    /* NULL: the device has none, and does the layers one by one. If it has, conv2d and pool may be
     * NULL. */
    conv_block_create_op *conv_block_create;
    conv_block_destroy_op *conv_block_destroy;
    conv_block_import_op *conv_block_import;
    conv_block_export_op *conv_block_export;
    conv_block_forward_op *conv_block_forward;
    conv_block_backward_op *conv_block_backward;

    linear_create_op *linear_create;
    linear_destroy_op *linear_destroy;
    linear_import_op *linear_import;
    linear_export_op *linear_export;
    linear_forward_op *linear_forward;
    linear_finish_op *linear_finish;
    linear_backward_weights_op *linear_backward_weights;
    linear_backward_data_op *linear_backward_data;

    cross_entropy_op *cross_entropy;

    clip_gradients_op *clip_gradients;
    sgd_step_op *sgd_step;
    adam_step_op *adam_step;
    adadelta_step_op *adadelta_step;
};

#endif
