/* Two buffers are summed in one pass, into both or into one. For all else, a block that fits the
 * L1 cache beside its sources collects the partial results before it is copied into all of them.
 */
#include "dist/collective/reduce.h"

#include "base/half.h"

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

#ifdef __clang__
#define IN_ANY_ORDER _Pragma("clang loop vectorize(assume_safety)")
#else
#define IN_ANY_ORDER _Pragma("GCC ivdep")
#endif

enum { BLOCK_BYTES = 2048 };

typedef void fold_fn(void *restrict acc, const void *restrict x, size_t n, float prescale);
typedef void pair_fn(void *restrict a, void *restrict b, size_t n, float prescale);
typedef void into_fn(void *out, const void *a, const void *b, size_t n, float prescale);
typedef void divide_fn(void *acc, size_t n, int divisor);
typedef void narrow_fn(void *restrict out, const void *restrict acc, size_t n);

/* Of one type. acc is of that type, or float32 for 16-bit floats. */
typedef struct kernels {
    size_t acc_bytes;
    fold_fn *set;                   /* acc = s * x */
    fold_fn *fold[REDUCE_OP_COUNT]; /* acc = op(acc, s * x) */
    divide_fn *divide;              /* acc = acc / divisor */
    pair_fn *pair_sum;              /* a = b = s * a + s * b; NULL: none */
    into_fn *into_sum;              /* out = s * a + s * b; out may be a or b; NULL: none */
    narrow_fn *narrow;              /* out = acc; NULL: they are of one type */
} kernels;

#define SAME(x) (x)
#define SCALED(x) (s * (x))
#define UNSCALED(x) ((void)s, (x))
#define SUM(a, b) ((a) + (b))
#define PROD(a, b) ((a) * (b))
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((b) > (a) ? (b) : (a))
#define WRAPPING_SUM_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define WRAPPING_PROD_I64(a, b) ((int64_t)((uint64_t)(a) * (uint64_t)(b)))
#define WRAPPING_SUM_U8(a, b) ((uint8_t)((unsigned)(a) + (unsigned)(b)))
#define WRAPPING_PROD_U8(a, b) ((uint8_t)((unsigned)(a) * (unsigned)(b)))

#define DEFINE_FOLD(name, type, acc_type, scaled, load, combine) \
    CLONES static void name(void *restrict acc_, const void *restrict x_, size_t n, \
                            float prescale) \
    { \
        acc_type *restrict acc = acc_; \
        const type *restrict x = x_; \
        const acc_type s = (acc_type)prescale; \
        for (size_t i = 0; i < n; i++) { \
            acc_type value = scaled(load(x[i])); \
            acc[i] = combine(acc[i], value); \
        } \
    }

#define LATTER(a, b) (b)

#define DEFINE_FOLDS(suffix, type, acc_type, scaled, load, sum, prod) \
    DEFINE_FOLD(set_##suffix, type, acc_type, scaled, load, LATTER) \
    DEFINE_FOLD(fold_sum_##suffix, type, acc_type, scaled, load, sum) \
    DEFINE_FOLD(fold_min_##suffix, type, acc_type, scaled, load, MIN) \
    DEFINE_FOLD(fold_max_##suffix, type, acc_type, scaled, load, MAX) \
    DEFINE_FOLD(fold_prod_##suffix, type, acc_type, scaled, load, prod)

#define DEFINE_DIVIDE(suffix, type) \
    CLONES static void divide_##suffix(void *acc_, size_t n, int divisor) \
    { \
        type *acc = acc_; \
        const type by = (type)divisor; \
        for (size_t i = 0; i < n; i++) \
            acc[i] = (type)(acc[i] / by); \
    }

#define DEFINE_PAIR_SUM(suffix, type, scaled, sum) \
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
    }

/* An element of `out` may be one of `a` or `b` at the same place only, so that the order of the
 * loop's steps does not matter. */
#define DEFINE_INTO_SUM(suffix, type, scaled, sum) \
    CLONES static void into_sum_##suffix(void *out_, const void *a_, const void *b_, size_t n, \
                                         float prescale) \
    { \
        type *out = out_; \
        const type *a = a_, *b = b_; \
        const type s = (type)prescale; \
        IN_ANY_ORDER for (size_t i = 0; i < n; i++) \
        { \
            type first = scaled(a[i]), second = scaled(b[i]); \
            out[i] = sum(first, second); \
        } \
    }

#define DEFINE_NARROW(suffix, round) \
    CLONES static void narrow_##suffix(void *restrict out_, const void *restrict acc_, size_t n) \
    { \
        uint16_t *restrict out = out_; \
        const float *restrict acc = acc_; \
        for (size_t i = 0; i < n; i++) \
            out[i] = round(acc[i]); \
    }

DEFINE_FOLDS(f32, float, float, SCALED, SAME, SUM, PROD)
DEFINE_FOLDS(f64, double, double, SCALED, SAME, SUM, PROD)
DEFINE_FOLDS(i64, int64_t, int64_t, UNSCALED, SAME, WRAPPING_SUM_I64, WRAPPING_PROD_I64)
DEFINE_FOLDS(bf16, uint16_t, float, SCALED, bf16_to_f32, SUM, PROD)
DEFINE_FOLDS(f16, uint16_t, float, SCALED, f16_to_f32, SUM, PROD)
DEFINE_FOLDS(u8, uint8_t, uint8_t, UNSCALED, SAME, WRAPPING_SUM_U8, WRAPPING_PROD_U8)
DEFINE_DIVIDE(f32, float)
DEFINE_DIVIDE(f64, double)
DEFINE_DIVIDE(i64, int64_t)
DEFINE_PAIR_SUM(f32, float, SCALED, SUM)
DEFINE_PAIR_SUM(f64, double, SCALED, SUM)
DEFINE_PAIR_SUM(i64, int64_t, UNSCALED, WRAPPING_SUM_I64)
DEFINE_INTO_SUM(f32, float, SCALED, SUM)
DEFINE_INTO_SUM(f64, double, SCALED, SUM)
DEFINE_INTO_SUM(i64, int64_t, UNSCALED, WRAPPING_SUM_I64)
DEFINE_NARROW(bf16, f32_to_bf16)
DEFINE_NARROW(f16, f32_to_f16)

/* Sums have wrapped by now; more ranks than a byte counts make 0 of all. */
static void divide_u8(void *acc_, size_t n, int divisor)
{
    uint8_t *acc = acc_;
    for (size_t i = 0; i < n; i++)
        acc[i] = (uint8_t)(acc[i] / divisor);
}

#define FOLDS(suffix) \
    .set = set_##suffix, .fold = {[REDUCE_SUM] = fold_sum_##suffix, \
                                  [REDUCE_MIN] = fold_min_##suffix, \
                                  [REDUCE_MAX] = fold_max_##suffix, \
                                  [REDUCE_PROD] = fold_prod_##suffix, \
                                  [REDUCE_AVG] = fold_sum_##suffix}

static const kernels KERNELS[DTYPE_COUNT] = {
    [DTYPE_F32] = {sizeof(float), FOLDS(f32), divide_f32, pair_sum_f32, into_sum_f32, NULL},
    [DTYPE_F64] = {sizeof(double), FOLDS(f64), divide_f64, pair_sum_f64, into_sum_f64, NULL},
    [DTYPE_I64] = {sizeof(int64_t), FOLDS(i64), divide_i64, pair_sum_i64, into_sum_i64, NULL},
    [DTYPE_BF16] = {sizeof(float), FOLDS(bf16), divide_f32, NULL, NULL, narrow_bf16},
    [DTYPE_F16] = {sizeof(float), FOLDS(f16), divide_f32, NULL, NULL, narrow_f16},
    [DTYPE_U8] = {sizeof(uint8_t), FOLDS(u8), divide_u8, NULL, NULL, NULL},
};

void reduce_fold(dtype type, reduce_op op, void *acc, const void *x, size_t count)
{
    reduce_parts parts = {(const void *const[]){acc, x}, 2, (void *const[]){acc}, 1};
    if (KERNELS[type].narrow == NULL)
        KERNELS[type].fold[op](acc, x, count, 1);
    else
        reduce_into(type, op == REDUCE_AVG ? REDUCE_SUM : op, 1, &parts, count);
}

void reduce_divide(dtype type, void *data, size_t count, int divisor)
{
    const kernels *k = &KERNELS[type];
    float block[BLOCK_BYTES / sizeof(float)];
    if (k->narrow == NULL) {
        k->divide(data, count, divisor);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        uint16_t *at = (uint16_t *)data + done;
        some =
            count - done < BLOCK_BYTES / sizeof(float) ? count - done : BLOCK_BYTES / sizeof(float);
        k->set(block, at, some, 1);
        k->divide(block, some, divisor);
        k->narrow(at, block, some);
    }
}

/* The reduction of elements done .. done + some - 1, in `acc`. */
static void reduce_block(const kernels *k, reduce_op op, float prescale, const reduce_parts *parts,
                         size_t at_bytes, size_t some, void *acc)
{
    k->set(acc, (const unsigned char *)parts->in[0] + at_bytes, some, prescale);
    for (int i = 1; i < parts->n_in; i++)
        k->fold[op](acc, (const unsigned char *)parts->in[i] + at_bytes, some, prescale);
    if (op == REDUCE_AVG)
        k->divide(acc, some, parts->n_in);
}

void reduce_into(dtype type, reduce_op op, float prescale, const reduce_parts *parts, size_t count)
{
    const kernels *k = &KERNELS[type];
    _Alignas(64) unsigned char acc[BLOCK_BYTES], narrowed[BLOCK_BYTES];
    size_t size = dtype_size(type);
    if (parts->n_in == 2 && parts->n_out == 1 && op == REDUCE_SUM && k->into_sum != NULL) {
        k->into_sum(parts->out[0], parts->in[0], parts->in[1], count, prescale);
        return;
    }
    for (size_t done = 0; done < count;) {
        size_t some = BLOCK_BYTES / k->acc_bytes;
        if (some > count - done)
            some = count - done;
        size_t at = done * size;
        reduce_block(k, op, prescale, parts, at, some, acc);
        if (k->narrow != NULL)
            k->narrow(narrowed, acc, some);
        for (int i = 0; i < parts->n_out; i++)
            memcpy((unsigned char *)parts->out[i] + at, k->narrow != NULL ? narrowed : acc,
                   some * size);
        done += some;
    }
}

void reduce_buffers(dtype type, reduce_op op, float prescale, void *const *buffers, int n,
                    size_t count)
{
    if (n == 2 && op == REDUCE_SUM && KERNELS[type].pair_sum != NULL) {
        KERNELS[type].pair_sum(buffers[0], buffers[1], count, prescale);
        return;
    }
    reduce_parts parts = {(const void *const *)buffers, n, buffers, n};
    reduce_into(type, op, prescale, &parts, count);
}
