/* Golden values of tests/golden, and the input that they were computed from, made again. */
#ifndef MNIST_DDP_TESTS_MODEL_GOLDEN_H
#define MNIST_DDP_TESTS_MODEL_GOLDEN_H

#include "base/digest.h"
#include "base/random.h"
#include "model/network.h"
#include "model/optimizer.h"
#include "model/safetensors.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GOLDEN_BATCH = 16,
    GOLDEN_PIXELS = 28 * 28,
    GOLDEN_INPUT_SEED = 100,
    GOLDEN_SIGN_SEED = 4242,
    GOLDEN_SAMPLE = 512,
    GOLDEN_DOTS = 4,
};

typedef struct golden {
    safetensors *file;
} golden;

static double golden_worst; /* largest error so far, as a share of what is allowed */

static inline double golden_worst_ratio(void)
{
    return golden_worst;
}

/* $SOURCE_DIR/tests/golden/<model>.safetensors; ctest sets the variable. */
static inline void golden_read(const char *model, golden *out)
{
    char path[4096];
    const char *source = getenv("SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/%s.safetensors", source ? source : ".", model);
    if (safetensors_open(path, &out->file) != STATUS_OK) {
        fprintf(stderr, "%s (is $SOURCE_DIR set?)\n", status_text());
        exit(EXIT_FAILURE);
    }
}

static inline void golden_free(golden *gold)
{
    safetensors_close(gold->file);
}

/* Per image 784 pixels of two draws each (a grey value; shown only if the second draw's low two
 * bits are 0), then one draw for the label. */
static inline void golden_make_batch(mt19937 *generator, int n, float *x, uint8_t *labels)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < GOLDEN_PIXELS; j++) {
            uint32_t grey = mt19937_u32(generator) >> 24;
            bool shown = (mt19937_u32(generator) & 3) == 0;
            float value = shown ? (float)grey : 0.0f;
            *x++ = (value / 255.0f - 0.1307f) / 0.3081f;
        }
        labels[i] = (uint8_t)(mt19937_u32(generator) % 10);
    }
}

/* Bytes of the mask of dropout layer 0 or 1 for n samples. */
static inline size_t golden_mask_size(int layer, int n)
{
    return (size_t)n * (layer == 0 ? 64 * 12 * 12 : 128);
}

/* torch's mask: 53 random bits per element, kept if they are below 1 - p as a fraction. */
static inline void golden_make_mask(mt19937 *generator, int layer, int n, uint8_t *keep)
{
    double p = layer == 0 ? 0.25 : 0.5;
    size_t size = golden_mask_size(layer, n);
    for (size_t i = 0; i < size; i++) {
        uint64_t bits = mt19937_u64(generator) & (((uint64_t)1 << 53) - 1);
        keep[i] = (double)bits * 0x1p-53 < 1.0 - p;
    }
}

static inline const safetensors_tensor *golden_tensor(const golden *gold, const char *name)
{
    const safetensors_tensor *tensor = safetensors_lookup(gold->file, name);
    ck_assert_msg(tensor != NULL, "no golden value %s", name);
    return tensor;
}

/* Element i of "<prefix>/<name>", a float64 as the sum of two float32. */
static inline double golden_number(const golden *gold, const char *prefix, const char *name, int i)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", prefix, name);
    const safetensors_tensor *tensor = golden_tensor(gold, path);
    ck_assert(tensor->rank == 2 && i < tensor->shape[0] && tensor->shape[1] == 2);
    return (double)tensor->data[2 * i] + (double)tensor->data[2 * i + 1];
}

static inline void golden_check_number(const char *what, double have, double want, double allowed)
{
    double error = fabs(have - want);
    ck_assert_msg(error <= allowed, "%s: %.9g, torch has %.9g: off by %.2g, allowed %.2g", what,
                  have, want, error, allowed);
    golden_worst = fmax(golden_worst, error / allowed);
}

static inline void golden_check_hash(const golden *gold, const char *name, const void *data,
                                     size_t size_bytes)
{
    const char *want = safetensors_metadata(gold->file, name);
    char have[17];
    snprintf(have, sizeof have, "%016" PRIx64, fnv1a(FNV1A_START, data, size_bytes));
    ck_assert_msg(want != NULL, "no golden hash %s", name);
    ck_assert_msg(strcmp(have, want) == 0, "%s differs from torch's", name);
}

static inline void golden_check_first(const golden *gold, const char *name, const float *values,
                                      int n)
{
    const safetensors_tensor *tensor = golden_tensor(gold, name);
    ck_assert(tensor->rank == 1 && tensor->shape[0] == n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(values[i] == tensor->data[i], "%s[%d]: %a, torch has %a", name, i,
                      (double)values[i], (double)tensor->data[i]);
}

/* All of a (rows, columns) tensor: the error's norm against tol times the tensor's. */
static inline void golden_check_all(const golden *gold, const char *name, const float *values,
                                    int rows, int columns, double tol)
{
    const safetensors_tensor *tensor = golden_tensor(gold, name);
    ck_assert(tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns);
    double error = 0.0, norm = 0.0;
    for (int i = 0; i < rows * columns; i++) {
        error += pow((double)values[i] - (double)tensor->data[i], 2.0);
        norm += pow((double)tensor->data[i], 2.0);
    }
    golden_check_number(name, sqrt(error), 0.0, tol * sqrt(norm));
}

/* What golden_check compares: the norm, the sum and dot products with random signs. */
typedef struct golden_stats {
    double norm, sum, dots[GOLDEN_DOTS];
    double change; /* norm of the difference from `before` */
} golden_stats;

static inline golden_stats golden_stats_of(const float *values, const float *before, size_t count)
{
    golden_stats out = {0};
    mt19937 signs;
    mt19937_init(&signs, GOLDEN_SIGN_SEED);
    for (size_t i = 0; i < count; i++) {
        double value = (double)values[i], change = value - (before ? (double)before[i] : 0.0);
        uint32_t bits = mt19937_u32(&signs) >> 28;
        out.norm += value * value;
        out.change += change * change;
        out.sum += value;
        for (int d = 0; d < GOLDEN_DOTS; d++)
            out.dots[d] += bits >> d & 1 ? -value : value;
    }
    out.norm = sqrt(out.norm);
    out.change = sqrt(out.change);
    return out;
}

/* A tensor against "<name>/stats" and "<name>/sample". The error allowed, as a norm, is tol times
 * the norm of the change from `before` (NULL: zeros) plus the rounding of the values as stored.
 * Signs that know nothing of the errors make sums of a few times their norm; equal signs of up to
 * sqrt(count) times. */
static inline void golden_check(const golden *gold, const char *name, const float *values,
                                const float *before, size_t count, double tol)
{
    char path[128];
    golden_stats stats = golden_stats_of(values, before, count);
    double rounding = before ? 4.0 * 0x1p-24 : 0.0;
    double allowed = tol * stats.change + rounding * stats.norm;
    golden_check_number(name, stats.norm, golden_number(gold, name, "stats", 0), allowed);
    golden_check_number(name, stats.sum, golden_number(gold, name, "stats", 1),
                        sqrt((double)count) * allowed);
    for (int d = 0; d < GOLDEN_DOTS; d++)
        golden_check_number(name, stats.dots[d], golden_number(gold, name, "stats", 2 + d),
                            6.0 * allowed);
    snprintf(path, sizeof path, "%s/sample", name);
    const safetensors_tensor *sample = golden_tensor(gold, path);
    size_t stride = (count + GOLDEN_SAMPLE - 1) / GOLDEN_SAMPLE | 1;
    ck_assert_int_eq(sample->shape[0], (int)((count + stride - 1) / stride));
    double error = 0.0, change = 0.0, norm = 0.0;
    for (size_t i = 0, at = 0; at < count; i++, at += stride) {
        double want = (double)sample->data[i];
        error += pow((double)values[at] - want, 2.0);
        change += pow(want - (before ? (double)before[at] : 0.0), 2.0);
        norm += want * want;
    }
    golden_check_number(path, sqrt(error), 0.0, tol * sqrt(change) + rounding * sqrt(norm));
}

#endif
