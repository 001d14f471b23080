#include "kernels/cuda/conv2d.h"

#include "base/memory.h"
#include "kernels/cuda/conv_cudnn.h"
#include "kernels/cuda/conv_first.h"

#include <stdlib.h>

enum { CHANNELS_MULTIPLE = 8, MAX_CHANNELS = 1024 }; /* between layers */

typedef struct plan_state {
    device *dev;
    conv2d_shape s;
    int out_h, out_w;
    size_t weights;
    conv_sums sums;    /* dw and db of the first convolution, else db */
    conv_cudnn *cudnn; /* NULL: the first convolution */
    void *dw;          /* of the activations' type: cuDNN's output, converted into the arena
                          afterwards */
} plan_state;

static plan_state *state(conv2d *plan)
{
    return (plan_state *)(void *)plan;
}

static status check(const conv2d_shape *s, int max_n)
{
    if (s->plain_input)
        return conv_first_check(s, max_n);
    if (s->kernel < 1 || s->kernel > s->height || s->kernel > s->width || s->relu)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution between layers has no relu and a kernel inside its "
                    "input; not %dx%d on %dx%d",
                    s->kernel, s->kernel, s->height, s->width);
    if (s->channels % CHANNELS_MULTIPLE != 0 || s->out_channels % CHANNELS_MULTIPLE != 0 ||
        s->channels < 1 || s->out_channels < 1 || s->channels > MAX_CHANNELS ||
        s->out_channels > MAX_CHANNELS)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution between layers has multiples of %d channels up to "
                    "%d; not %d -> %d",
                    CHANNELS_MULTIPLE, MAX_CHANNELS, s->channels, s->out_channels);
    return STATUS_OK;
}

static status open_first(plan_state *p)
{
    return conv_sums_create(p->dev, (int)p->weights + p->s.out_channels, CONV_FIRST_BLOCKS,
                            &p->sums);
}

/* Room for the bias gradient that the pool's backward pass sums. */
static status reserve_pool_sums(device *dev, int channels)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_pool_sums *sums = &s->pool_sums;
    if (channels <= sums->room)
        return STATUS_OK;
    size_t count = (size_t)channels * (size_t)(CUDA_POOL_BLOCKS * s->multiprocessors);
    cuda_free(dev, sums->partial);
    *sums = (cuda_pool_sums){0};
    TRY(cuda_alloc(dev, sizeof *sums->partial * count, (void **)&sums->partial));
    sums->room = channels;
    return STATUS_OK;
}

static status open_cudnn(plan_state *p)
{
    TRY(reserve_pool_sums(p->dev, p->s.out_channels));
    TRY(conv_sums_create(p->dev, p->s.out_channels, CONV_SUMS_COLUMNS_BLOCKS, &p->sums));
    TRY(cuda_alloc(p->dev, sizeof(float) * p->weights, &p->dw));
    return conv_cudnn_create(p->dev, &p->s, &p->cudnn);
}

status cuda_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out)
{
    TRY(check(shape, max_n));
    plan_state *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    *p = (plan_state){
        .dev = dev,
        .s = *shape,
        .out_h = shape->height - shape->kernel + 1,
        .out_w = shape->width - shape->kernel + 1,
        .weights = (size_t)(shape->out_channels * shape->channels * shape->kernel * shape->kernel),
    };
    status st = shape->plain_input ? open_first(p) : open_cudnn(p);
    if (st != STATUS_OK) {
        cuda_conv2d_destroy((conv2d *)(void *)p);
        return st;
    }
    *out = (conv2d *)(void *)p;
    return STATUS_OK;
}

void cuda_conv2d_destroy(conv2d *plan)
{
    if (plan == NULL)
        return;
    plan_state *p = state(plan);
    conv_cudnn_destroy(p->cudnn);
    conv_sums_free(p->dev, &p->sums);
    cuda_free(p->dev, p->dw);
    free(p);
}

/* (O, C, K, K) to (O, K, K, C), or back. */
static void reorder(const conv2d_shape *s, const float *from, float *to, bool import)
{
    int taps = s->kernel * s->kernel;
    for (int o = 0; o < s->out_channels; o++)
        for (int c = 0; c < s->channels; c++)
            for (int k = 0; k < taps; k++) {
                int plain = (o * s->channels + c) * taps + k;
                int ours = (o * taps + k) * s->channels + c;
                to[import ? ours : plain] = from[import ? plain : ours];
            }
}

status cuda_conv2d_import(conv2d *plan, const float *plain, float *weight)
{
    reorder(&state(plan)->s, plain, weight, true);
    return STATUS_OK;
}

status cuda_conv2d_export(conv2d *plan, const float *weight, float *plain)
{
    reorder(&state(plan)->s, weight, plain, false);
    return STATUS_OK;
}

static size_t rows_of(const plan_state *p, int n)
{
    return (size_t)n * (size_t)(p->out_h * p->out_w);
}

/* The whole batch, in pieces. *count = 0: there is no engine for it. */
static status run_all(plan_state *p, conv_pass pass, int n, const conv_arrays *arrays, int *count)
{
    for (int first = 0; first < n; first += *count) {
        TRY(conv_cudnn_run(p->cudnn, pass, n, first, arrays, count));
        if (*count == 0)
            break;
    }
    return STATUS_OK;
}

/* cuDNN adds the bias if it has an engine for that at this batch size and the bias, or its copy, is
 * aligned. */
status cuda_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                           const float *bias, float *y)
{
    plan_state *p = state(plan);
    if (p->cudnn == NULL) {
        conv_first_pass pass = {p->dev, &p->s, n};
        return conv_first_forward(&pass, x, weight, bias, y);
    }
    conv_arrays a = {x, cuda_half_weights(p->dev, weight), y, cuda_half_weights(p->dev, bias)};
    int count = 0;
    cuda_forget_pool_sums(p->dev, y);
    if ((uintptr_t)a.bias % CONV_ALIGNMENT == 0)
        TRY(run_all(p, CONV_PASS_FORWARD_BIAS, n, &a, &count));
    if (count > 0)
        return STATUS_OK;
    TRY(run_all(p, CONV_PASS_FORWARD, n, &a, &count));
    return conv_sums_add_bias(p->dev, bias, rows_of(p, n), p->s.out_channels, y);
}

/* cuDNN sets gradients in the activations' type. If another type or accumulation is wanted, they go
 * through p->dw. */
static status weights_by_cudnn(plan_state *p, int n, const float *x, const float *dy, float *dw,
                               bool accumulate)
{
    for (int first = 0, count = 0; first < n; first += count) {
        bool add = accumulate || first > 0, direct = !add && !cuda_is_half(p->dev);
        conv_arrays a = {.x = x, .w = direct ? dw : p->dw, .y = dy};
        TRY(conv_cudnn_run(p->cudnn, CONV_PASS_WEIGHTS, n, first, &a, &count));
        if (!direct)
            TRY(conv_sums_take(p->dev, p->dw, p->weights, dw, add));
    }
    return STATUS_OK;
}

/* From the pool's sums if they are of this dy (used once); else dy is read again. */
static status bias_gradient(plan_state *p, int n, const float *dy, const conv_gradient *out)
{
    cuda_pool_sums *pool = &cuda_state_of(p->dev)->pool_sums;
    size_t rows = rows_of(p, n);
    if (pool->dz != dy || pool->rows != rows || pool->channels != p->s.out_channels)
        return conv_sums_columns(p->dev, &p->sums, dy, rows, out);
    const conv_sums sums = {pool->partial, pool->blocks};
    pool->dz = NULL;
    return conv_sums_finish(p->dev, &sums, pool->blocks, out);
}

status cuda_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                    const float *dy, const param_gradients *out)
{
    plan_state *p = state(plan);
    conv_gradient sums = {
        .db = out->db, .db_count = p->s.out_channels, .accumulate = out->accumulate};
    if (p->cudnn == NULL) {
        conv_first_pass pass = {p->dev, &p->s, n};
        sums.dw = out->dw;
        sums.dw_count = (int)p->weights;
        return conv_first_backward_weights(&pass, x, y, dy, &p->sums, &sums);
    }
    TRY(weights_by_cudnn(p, n, x, dy, out->dw, out->accumulate));
    return bias_gradient(p, n, dy, &sums);
}

status cuda_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                 const float *dy, float *dx)
{
    (void)y;
    plan_state *p = state(plan);
    ASSERT(p->cudnn != NULL);
    conv_arrays a = {.x = dx, .w = cuda_half_weights(p->dev, weight), .y = dy};
    int count = 0;
    return run_all(p, CONV_PASS_DATA, n, &a, &count);
}
