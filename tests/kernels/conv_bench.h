/* A convolution on one device, for the tests of the cuda device's.
 *
 * All numbers are multiples of 1/64 below 1, so products are multiples of 2^-12 and every sum of
 * the few thousand here is below 2^12: exact in float32, in any order. What may differ is the
 * rounding of results to the activations' type, and on a real GPU what an engine's transform
 * (Winograd's, say) rounds. */
#ifndef MNIST_DDP_TESTS_KERNELS_CONV_BENCH_H
#define MNIST_DDP_TESTS_KERNELS_CONV_BENCH_H

#include "tests/kernels/cuda_tensor.h"

enum { BATCH_MAX = 100 };

static inline int out_area(const conv2d_shape *s)
{
    return (s->height - s->kernel + 1) * (s->width - s->kernel + 1);
}

static inline size_t weight_count(const conv2d_shape *s)
{
    return (size_t)(s->out_channels * s->channels * s->kernel * s->kernel);
}

/* What goes in and comes out, plain, on the host. */
typedef struct data {
    int n;
    float *x, *parameters, *dy; /* weights, then biases */
    float *y, *gradients, *dx;  /* dx: not of a first convolution */
} data;

static inline data make_data(const conv2d_shape *s, int n)
{
    size_t images = (size_t)n;
    size_t xs = images * (size_t)(s->channels * s->height * s->width);
    size_t ys = images * (size_t)(s->out_channels * out_area(s));
    size_t count = weight_count(s) + (size_t)s->out_channels;
    return (data){
        .n = n,
        .x = random_floats(1, xs, 1.0f),
        .parameters = random_floats(2, count, 1.0f),
        .dy = random_floats(3, ys, 1.0f),
    };
}

static inline void free_results(data *d)
{
    free(d->y);
    free(d->gradients);
    free(d->dx);
    d->y = d->gradients = d->dx = NULL;
}

static inline void free_data(data *d)
{
    free_results(d);
    free(d->x);
    free(d->parameters);
    free(d->dy);
}

/* One convolution on one device: parameters and their gradient as arenas, weight first. */
typedef struct bench {
    device *dev;
    conv2d_shape s;
    conv2d *plan;
    size_t weights, count; /* of the arena */
    float *parameters, *gradients, *x, *y, *dy, *dx;
} bench;

static inline bench bench_open(device *dev, const conv2d_shape *s, const data *d)
{
    bench b = {.dev = dev, .s = *s, .weights = weight_count(s)};
    b.count = b.weights + (size_t)s->out_channels;
    float *own = NULL;
    ok(dev->ops->conv2d_create(dev, s, BATCH_MAX, &b.plan));
    ok(memory_alloc(sizeof *own * b.count, (void **)&own));
    ok(dev->ops->conv2d_import(b.plan, d->parameters, own));
    memcpy(own + b.weights, d->parameters + b.weights, sizeof *own * (size_t)s->out_channels);
    b.parameters = put_floats(dev, own, b.count);
    b.gradients = room(dev, sizeof *own * b.count);
    free(own);
    size_t xs = (size_t)d->n * (size_t)(s->channels * s->height * s->width);
    b.x = s->plain_input ? put_activations(dev, d->x, xs)
                         : put_images(dev, d->x, d->n, s->channels, s->height * s->width);
    b.y = room(dev, sizeof(float) * (size_t)(d->n * s->out_channels * out_area(s)));
    b.dy = put_images(dev, d->dy, d->n, s->out_channels, out_area(s));
    b.dx = room(dev, sizeof(float) * xs);
    return b;
}

static inline void bench_close(bench *b)
{
    free_all(b->dev, (void *[]){b->parameters, b->gradients, b->x, b->y, b->dy, b->dx}, 6);
    b->dev->ops->conv2d_destroy(b->plan);
}

/* All three passes. */
static inline status enqueue(const bench *b, int n, bool accumulate)
{
    const device_ops *ops = b->dev->ops;
    const float *weight = b->parameters, *bias = b->parameters + b->weights;
    param_gradients out = {b->gradients, b->gradients + b->weights, accumulate};
    TRY(ops->begin_forward(b->dev, b->parameters, b->count));
    TRY(ops->conv2d_forward(b->plan, n, b->x, weight, bias, b->y));
    TRY(ops->conv2d_backward_weights(b->plan, n, b->x, b->y, b->dy, &out));
    if (!b->s.plain_input)
        TRY(ops->conv2d_backward_data(b->plan, n, weight, b->y, b->dy, b->dx));
    return STATUS_OK;
}

static inline void collect(const bench *b, data *d)
{
    const conv2d_shape *s = &b->s;
    free_results(d);
    d->y = get_images(b->dev, b->y, d->n, s->out_channels, out_area(s));
    float *own = get_floats(b->dev, b->gradients, b->count);
    ok(memory_alloc(sizeof *own * b->count, (void **)&d->gradients));
    ok(b->dev->ops->conv2d_export(b->plan, own, d->gradients));
    memcpy(d->gradients + b->weights, own + b->weights, sizeof *own * (size_t)s->out_channels);
    free(own);
    if (!s->plain_input)
        d->dx = get_images(b->dev, b->dx, d->n, s->channels, s->height * s->width);
}

static inline data run_on(device *dev, const conv2d_shape *s, int n)
{
    data d = make_data(s, n);
    bench b = bench_open(dev, s, &d);
    ok(enqueue(&b, n, false));
    ok(dev->ops->synchronize(dev));
    collect(&b, &d);
    bench_close(&b);
    return d;
}

/* What direct sums may be off by: nothing; a transform of 4x4 pixels to 6x6 multiplies roundings of
 * float32 by some tens, of sums that here are below 2^4 (dw: 2^6). */
static inline double slack(double largest)
{
    return cuda_is_real() ? 64 * 0x1p-24 * largest : 0;
}

/* From this batch on an engine may take it in up to 4 pieces, with dw of each rounded to the
 * activations' type; they are below 2^4 here (1120 products with a deviation of 1/12 have one
 * of 2.8). */
enum { BATCH_OF_PIECES = 33 };

static inline void expect_equal(const conv2d_shape *s, precision p, const data *got,
                                const data *want)
{
    size_t images = (size_t)want->n;
    size_t xs = images * (size_t)(s->channels * s->height * s->width);
    size_t ys = images * (size_t)(s->out_channels * out_area(s));
    size_t weights = weight_count(s);
    /* Rounded once to the activations' type; y also before the bias, below 1, is added to it. */
    double half = is_half(p) ? (double)unit_of(p) / 2 : 0;
    double twice = s->plain_input ? 0 : half;
    expect_close(got->y, want->y, ys, slack(0x1p4) + twice, half + twice);
    /* dw of an inner convolution also is rounded once; db is summed in float32. */
    double dw = s->plain_input ? 0 : half;
    double pieces = want->n < BATCH_OF_PIECES ? 0 : 4 * 0x1p4 * dw;
    expect_close(got->gradients, want->gradients, weights, slack(0x1p6) + pieces, dw);
    expect_close(got->gradients + weights, want->gradients + weights, (size_t)s->out_channels, 0,
                 0);
    if (!s->plain_input)
        expect_close(got->dx, want->dx, xs, slack(0x1p4), half);
}

#endif
