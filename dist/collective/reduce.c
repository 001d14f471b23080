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
typedef void widen_fn(const uint16_t *restrict from, float *restrict to, size_t n);
typedef void narrow_fn(const float *restrict from, uint16_t *restrict to, size_t n);

/* Of one type; 16-bit floats have those of float32, and are widened before and narrowed after. */
typedef struct kernels {
    size_t size_bytes;
    fold_fn *set;                   /* acc = s * x */
    fold_fn *fold[REDUCE_OP_COUNT]; /* acc = op(acc, s * x) */
    divide_fn *divide;              /* acc = acc / divisor */
    pair_fn *pair_sum;              /* a = b = s * a + s * b; NULL: none */
    into_fn *into_sum;              /* out = s * a + s * b; out may be a or b; NULL: none */
    widen_fn *widen;                /* NULL: they are of the type that is computed with */
    narrow_fn *narrow;
} kernels;

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

#define LATTER(a, b) (b)

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

#define DEFINE_FOLDS(suffix, type, scaled, sum, prod) \
    DEFINE_FOLD(set_##suffix, type, scaled, LATTER) \
    DEFINE_FOLD(fold_sum_##suffix, type, scaled, sum) \
    DEFINE_FOLD(fold_min_##suffix, type, scaled, MIN) \
    DEFINE_FOLD(fold_max_##suffix, type, scaled, MAX) \
    DEFINE_FOLD(fold_prod_##suffix, type, scaled, prod)

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

DEFINE_FOLDS(f32, float, SCALED, SUM, PROD)
DEFINE_FOLDS(f64, double, SCALED, SUM, PROD)
DEFINE_FOLDS(i64, int64_t, UNSCALED, WRAPPING_SUM_I64, WRAPPING_PROD_I64)
DEFINE_FOLDS(u8, uint8_t, UNSCALED, WRAPPING_SUM_U8, WRAPPING_PROD_U8)
DEFINE_DIVIDE(f32, float)
DEFINE_DIVIDE(f64, double)
DEFINE_DIVIDE(i64, int64_t)
DEFINE_PAIR_SUM(f32, float, SCALED, SUM)
DEFINE_PAIR_SUM(f64, double, SCALED, SUM)
DEFINE_PAIR_SUM(i64, int64_t, UNSCALED, WRAPPING_SUM_I64)
DEFINE_INTO_SUM(f32, float, SCALED, SUM)
DEFINE_INTO_SUM(f64, double, SCALED, SUM)
DEFINE_INTO_SUM(i64, int64_t, UNSCALED, WRAPPING_SUM_I64)

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

#define FLOATS FOLDS(f32), divide_f32

static const kernels KERNELS[DTYPE_COUNT] = {
    [DTYPE_F32] = {sizeof(float), FLOATS, pair_sum_f32, into_sum_f32, NULL, NULL},
    [DTYPE_F64] = {sizeof(double), FOLDS(f64), divide_f64, pair_sum_f64, into_sum_f64, NULL, NULL},
    [DTYPE_I64] = {sizeof(int64_t), FOLDS(i64), divide_i64, pair_sum_i64, into_sum_i64, NULL, NULL},
    [DTYPE_BF16] = {sizeof(float), FLOATS, NULL, NULL, half_widen_bf16, half_narrow_bf16},
    [DTYPE_F16] = {sizeof(float), FLOATS, NULL, NULL, half_widen_f16, half_narrow_f16},
    [DTYPE_U8] = {sizeof(uint8_t), FOLDS(u8), divide_u8, NULL, NULL, NULL, NULL},
};

void reduce_fold(dtype type, reduce_op op, void *acc, const void *x, size_t count)
{
    reduce_parts parts = {(const void *const[]){acc, x}, 2, (void *const[]){acc}, 1};
    if (KERNELS[type].widen == NULL)
        KERNELS[type].fold[op](acc, x, count, 1);
    else
        reduce_into(type, op == REDUCE_AVG ? REDUCE_SUM : op, 1, &parts, count);
}

void reduce_divide(dtype type, void *data, size_t count, int divisor)
{
    const kernels *k = &KERNELS[type];
    float block[BLOCK_BYTES / sizeof(float)];
    size_t most = BLOCK_BYTES / sizeof(float);
    if (k->widen == NULL) {
        k->divide(data, count, divisor);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        uint16_t *at = (uint16_t *)data + done;
        some = count - done < most ? count - done : most;
        k->widen(at, block, some);
        k->divide(block, some, divisor);
        k->narrow(block, at, some);
    }
}

/* in[i] from its element `at` on, as what is computed with. */
static const void *operand(const kernels *k, const void *in, size_t at, size_t some, float *wide)
{
    if (k->widen == NULL)
        return (const unsigned char *)in + at * k->size_bytes;
    k->widen((const uint16_t *)in + at, wide, some);
    return wide;
}

/* The reduction of elements at .. at + some - 1, in `acc`. */
static void reduce_block(const kernels *k, reduce_op op, float prescale, const reduce_parts *parts,
                         size_t at, size_t some, void *acc)
{
    float wide[BLOCK_BYTES / sizeof(float)];
    k->set(acc, operand(k, parts->in[0], at, some, wide), some, prescale);
    for (int i = 1; i < parts->n_in; i++)
        k->fold[op](acc, operand(k, parts->in[i], at, some, wide), some, prescale);
    if (op == REDUCE_AVG)
        k->divide(acc, some, parts->n_in);
}

void reduce_into(dtype type, reduce_op op, float prescale, const reduce_parts *parts, size_t count)
{
    const kernels *k = &KERNELS[type];
    _Alignas(64) unsigned char acc[BLOCK_BYTES];
    uint16_t narrowed[BLOCK_BYTES / sizeof(float)];
    size_t size = dtype_size(type), most = BLOCK_BYTES / k->size_bytes;
    if (parts->n_in == 2 && parts->n_out == 1 && op == REDUCE_SUM && k->into_sum != NULL) {
        k->into_sum(parts->out[0], parts->in[0], parts->in[1], count, prescale);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        some = count - done < most ? count - done : most;
        reduce_block(k, op, prescale, parts, done, some, acc);
        if (k->narrow != NULL)
            k->narrow((const float *)(const void *)acc, narrowed, some);
        for (int i = 0; i < parts->n_out; i++)
            memcpy((unsigned char *)parts->out[i] + done * size,
                   k->narrow != NULL ? (void *)narrowed : acc, some * size);
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
