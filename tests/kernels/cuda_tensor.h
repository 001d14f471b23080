/* Arrays in a cuda device's memory, as the tests of its operations see them: host floats that the
 * device's types can hold, and what comes back. Activations there are channels innermost and of the
 * precision's type. */
#ifndef MNIST_DDP_TESTS_KERNELS_CUDA_TENSOR_H
#define MNIST_DDP_TESTS_KERNELS_CUDA_TENSOR_H

#include "base/half.h"
#include "base/memory.h"
#include "base/random.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "tests/support/cuda.h"

#include <math.h>
#include <string.h>

static const precision PRECISIONS[] = {PRECISION_F32, PRECISION_TF32, PRECISION_BF16,
                                       PRECISION_F16};
enum { N_PRECISIONS = sizeof PRECISIONS / sizeof PRECISIONS[0] };

static inline void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static inline device *open_device(const char *name, precision p)
{
    device *dev = NULL;
    device_options wanted = {.name = name, .threads = 1, .precision = p};
    ok(device_create(&wanted, &dev));
    return dev;
}

static inline bool is_half(precision p)
{
    return p == PRECISION_BF16 || p == PRECISION_F16;
}

/* x as the type of activations holds it. */
static inline float rounded(precision p, float x)
{
    return p == PRECISION_BF16  ? bf16_to_f32(f32_to_bf16(x))
           : p == PRECISION_F16 ? f16_to_f32(f32_to_f16(x))
                                : x;
}

/* The distance of neighbouring values of this type from 1 on: what rounding changes at most, twice
 * over. */
static inline float unit_of(precision p)
{
    return p == PRECISION_BF16 ? 0x1p-7f : p == PRECISION_F16 ? 0x1p-10f : 0x1p-23f;
}

/* Uniform multiples of 1/64 in [-range/2, range/2): every precision's products take them exactly.
 */
static inline float *random_floats(uint32_t seed, size_t count, float range)
{
    float *out = NULL;
    mt19937 generator;
    ok(memory_alloc(sizeof *out * count, (void **)&out));
    mt19937_init(&generator, seed);
    for (size_t i = 0; i < count; i++)
        out[i] = ((float)(mt19937_u32(&generator) >> 26) / 64.0f - 0.5f) * range;
    return out;
}

static inline void *room(device *dev, size_t size_bytes)
{
    void *memory = NULL;
    ok(dev->ops->alloc(dev, size_bytes, &memory));
    return memory;
}

/* New device memory with these bytes. */
static inline void *put_bytes(device *dev, const void *host, size_t size_bytes)
{
    void *memory = room(dev, size_bytes);
    ok(dev->ops->upload(dev, memory, host, size_bytes));
    return memory;
}

static inline float *put_floats(device *dev, const float *host, size_t count)
{
    return put_bytes(dev, host, sizeof *host * count);
}

static inline float *get_floats(device *dev, const float *from, size_t count)
{
    float *host = NULL;
    ok(memory_alloc(sizeof *host * count, (void **)&host));
    ok(dev->ops->download(dev, host, from, sizeof *host * count));
    return host;
}

/* The same for activations, in the room of as many floats. */
static inline float *put_activations(device *dev, const float *host, size_t count)
{
    if (!is_half(dev->precision))
        return put_floats(dev, host, count);
    uint16_t *halves = NULL;
    ok(memory_alloc(sizeof *halves * count, (void **)&halves));
    for (size_t i = 0; i < count; i++)
        halves[i] = dev->precision == PRECISION_BF16 ? f32_to_bf16(host[i]) : f32_to_f16(host[i]);
    void *memory = room(dev, sizeof(float) * count);
    ok(dev->ops->upload(dev, memory, halves, sizeof *halves * count));
    free(halves);
    return memory;
}

static inline float *get_activations(device *dev, const float *from, size_t count)
{
    if (!is_half(dev->precision))
        return get_floats(dev, from, count);
    uint16_t *halves = NULL;
    float *host = NULL;
    ok(memory_alloc(sizeof *halves * count, (void **)&halves));
    ok(memory_alloc(sizeof *host * count, (void **)&host));
    ok(dev->ops->download(dev, halves, from, sizeof *halves * count));
    for (size_t i = 0; i < count; i++)
        host[i] = dev->precision == PRECISION_BF16 ? bf16_to_f32(halves[i]) : f16_to_f32(halves[i]);
    free(halves);
    return host;
}

static inline bool is_cuda(const device *dev)
{
    return strcmp(dev->ops->name, "cuda") == 0;
}

/* Element at of channel c of image i: channels innermost, or plain. */
static inline size_t innermost(size_t i, size_t c, size_t at, size_t channels, size_t area)
{
    return (i * area + at) * channels + c;
}

static inline size_t plain(size_t i, size_t c, size_t at, size_t channels, size_t area)
{
    return (i * channels + c) * area + at;
}

typedef size_t (*place_fn)(size_t i, size_t c, size_t at, size_t channels, size_t area);

static inline float *reordered(const float *host, int n, int channels, int area, place_fn from,
                               place_fn to)
{
    size_t all = (size_t)n, cs = (size_t)channels, length = (size_t)area;
    float *out = NULL;
    ok(memory_alloc(sizeof *out * all * cs * length, (void **)&out));
    for (size_t i = 0; i < all; i++)
        for (size_t c = 0; c < cs; c++)
            for (size_t at = 0; at < length; at++)
                out[to(i, c, at, cs, length)] = host[from(i, c, at, cs, length)];
    return out;
}

/* Images (n, channels, area), plain on the host, to and from the device's order. */
static inline float *put_images(device *dev, const float *host, int n, int channels, int area)
{
    float *own = reordered(host, n, channels, area, plain, is_cuda(dev) ? innermost : plain);
    float *memory = put_activations(dev, own, (size_t)n * (size_t)(channels * area));
    free(own);
    return memory;
}

static inline float *get_images(device *dev, const float *from, int n, int channels, int area)
{
    float *own = get_activations(dev, from, (size_t)n * (size_t)(channels * area));
    float *host = reordered(own, n, channels, area, is_cuda(dev) ? innermost : plain, plain);
    free(own);
    return host;
}

/* NULL counts as nothing. */
static inline void free_all(device *dev, void **memory, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dev->ops->free(dev, memory[i]);
}

/* |got - want| <= absolute + relative |want|, element by element. (An assertion of Check's is a
 * system call: only a failure becomes one.) */
static inline void expect_close(const float *got, const float *want, size_t count, double absolute,
                                double relative)
{
    for (size_t i = 0; i < count; i++) {
        double most = absolute + relative * fabs((double)want[i]);
        if (!(fabs((double)got[i] - (double)want[i]) <= most))
            ck_abort_msg("[%zu]: %.9g, want %.9g within %.3g", i, (double)got[i], (double)want[i],
                         most);
    }
}

static inline void expect_same(const void *got, const void *want, size_t size_bytes)
{
    const unsigned char *g = got, *w = want;
    for (size_t i = 0; i < size_bytes; i++)
        if (g[i] != w[i])
            ck_abort_msg("byte %zu of %zu differs", i, size_bytes);
}

#endif
