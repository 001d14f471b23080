/* Two buffers are reduced in one pass. For more, a block that fits the L1 cache beside its sources
 * collects the partial results before it is copied into all of them.
 */
#include "dist/collective/reduce.h"

#include <stdint.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* The loader picks the widest version that the processor has. Sanitizers do not support its ifuncs.
 */
#if defined(__x86_64__) && !defined(SANITIZED)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

enum { BLOCK_BYTES = 2048 };

typedef void fold_fn(void *restrict acc, const void *restrict x, size_t n, float prescale);
typedef void pair_fn(void *restrict a, void *restrict b, size_t n, float prescale);

typedef struct kernels {
    fold_fn *set;      /* acc = s * x */
    fold_fn *fold[3];  /* by reduce_op: acc = op(acc, s * x) */
    pair_fn *pair_sum; /* a = b = s * a + s * b */
} kernels;

#define SCALED(x) (s * (x))
#define UNSCALED(x) ((void)s, (x))
#define WRAPPING_SUM(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define SUM(a, b) ((a) + (b))
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((b) > (a) ? (b) : (a))

#define DEFINE_FOLD(name, type, scaled, combine) \
    CLONES static void name(void *restrict acc_, const void *restrict x_, size_t n, \
                            float prescale) \
    { \
        type *restrict acc = acc_; \
        const type *restrict x = x_; \
        const type s = (type)prescale; \
        for (size_t i = 0; i < n; i++) { \
            type value = scaled(x[i]); \
            acc[i] = combine(acc[i], value); \
        } \
    }

#define DEFINE_KERNELS(suffix, type, scaled, sum) \
    CLONES static void set_##suffix(void *restrict acc_, const void *restrict x_, size_t n, \
                                    float prescale) \
    { \
        type *restrict acc = acc_; \
        const type *restrict x = x_; \
        const type s = (type)prescale; \
        for (size_t i = 0; i < n; i++) \
            acc[i] = scaled(x[i]); \
    } \
    CLONES static void pair_sum_##suffix(void *restrict a_, void *restrict b_, size_t n, \
                                         float prescale) \
    { \
        type *restrict a = a_; \
        type *restrict b = b_; \
        const type s = (type)prescale; \
        for (size_t i = 0; i < n; i++) { \
            type first = scaled(a[i]), second = scaled(b[i]); \
            type total = sum(first, second); \
            a[i] = total; \
            b[i] = total; \
        } \
    } \
    DEFINE_FOLD(fold_sum_##suffix, type, scaled, sum) \
    DEFINE_FOLD(fold_min_##suffix, type, scaled, MIN) \
    DEFINE_FOLD(fold_max_##suffix, type, scaled, MAX) \
    static const kernels kernels_##suffix = { \
        set_##suffix, \
        {fold_sum_##suffix, fold_min_##suffix, fold_max_##suffix}, \
        pair_sum_##suffix};

DEFINE_KERNELS(f32, float, SCALED, SUM)
DEFINE_KERNELS(f64, double, SCALED, SUM)
DEFINE_KERNELS(i64, int64_t, UNSCALED, WRAPPING_SUM)

static const kernels *kernels_of(dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return &kernels_f32;
    case DTYPE_F64:
        return &kernels_f64;
    case DTYPE_I64:
        break;
    }
    return &kernels_i64;
}

void reduce_fold(dtype type, reduce_op op, void *acc, const void *x, size_t count)
{
    kernels_of(type)->fold[op](acc, x, count, 1);
}

void reduce_into(dtype type, reduce_op op, float prescale, const reduce_parts *parts, size_t count)
{
    const kernels *k = kernels_of(type);
    _Alignas(64) unsigned char block[BLOCK_BYTES];
    size_t size = dtype_size(type);
    for (size_t done = 0; done < count;) {
        size_t some = BLOCK_BYTES / size;
        if (some > count - done)
            some = count - done;
        size_t at = done * size;
        k->set(block, (const unsigned char *)parts->in[0] + at, some, prescale);
        for (int i = 1; i < parts->n_in; i++)
            k->fold[op](block, (const unsigned char *)parts->in[i] + at, some, prescale);
        for (int i = 0; i < parts->n_out; i++)
            memcpy((unsigned char *)parts->out[i] + at, block, some * size);
        done += some;
    }
}

void reduce_buffers(dtype type, reduce_op op, float prescale, void *const *buffers, int n,
                    size_t count)
{
    if (n == 2 && op == REDUCE_SUM) {
        kernels_of(type)->pair_sum(buffers[0], buffers[1], count, prescale);
        return;
    }
    reduce_parts parts = {(const void *const *)buffers, n, buffers, n};
    reduce_into(type, op, prescale, &parts, count);
}
