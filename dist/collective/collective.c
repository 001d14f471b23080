#include "dist/collective/collective.h"

#include "base/half.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct dtype_facts {
    const char *name;
    size_t size_bytes;
    bool is_float;
} dtype_facts;

static const dtype_facts DTYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", sizeof(float), true},    [DTYPE_F64] = {"f64", sizeof(double), true},
    [DTYPE_I64] = {"i64", sizeof(int64_t), false}, [DTYPE_BF16] = {"bf16", sizeof(uint16_t), true},
    [DTYPE_F16] = {"f16", sizeof(uint16_t), true}, [DTYPE_U8] = {"u8", sizeof(uint8_t), false},
};

size_t dtype_size(dtype type)
{
    return (size_t)type < DTYPE_COUNT ? DTYPES[type].size_bytes : sizeof(int64_t);
}

bool dtype_is_float(dtype type)
{
    return (size_t)type < DTYPE_COUNT && DTYPES[type].is_float;
}

const char *dtype_name(dtype type)
{
    return (size_t)type < DTYPE_COUNT ? DTYPES[type].name : "?";
}

const char *reduce_op_name(reduce_op op)
{
    static const char *const names[REDUCE_OP_COUNT] = {"sum", "min", "max", "prod", "avg"};
    return (size_t)op < REDUCE_OP_COUNT ? names[op] : "?";
}

const char *collective_kind_name(collective_kind kind)
{
    static const char *const names[COLLECTIVE_KIND_COUNT] = {
        "all_reduce", "broadcast", "barrier",    "reduce", "all_gather", "reduce_scatter",
        "gather",     "scatter",   "all_to_all", "send",   "recv"};
    return (size_t)kind < COLLECTIVE_KIND_COUNT ? names[kind] : "unknown";
}

bool collective_is_send_or_recv(collective_kind kind)
{
    return kind == COLLECTIVE_SEND || kind == COLLECTIVE_RECV;
}

bool collective_has_root(collective_kind kind)
{
    return kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER || collective_is_send_or_recv(kind);
}

bool collective_reduces(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

void collective_describe(const collective *c, char *out, size_t size_bytes)
{
    const char *kind = collective_kind_name(c->kind);
    if (c->label != NULL)
        snprintf(out, size_bytes, "%s #%" PRIu64 " (%s)", kind, c->seq, c->label);
    else if (c->kind == COLLECTIVE_BARRIER)
        snprintf(out, size_bytes, "%s #%" PRIu64, kind, c->seq);
    else
        snprintf(out, size_bytes, "%s #%" PRIu64 " (%zu x %s)", kind, c->seq, c->count,
                 dtype_name(c->type));
}

/* How many rows of c->count elements it reads and sets. */
typedef struct row_counts {
    int in, out;
} row_counts;

static row_counts rows_of(const collective *c, int rank, int world_size)
{
    bool is_root = c->root == rank;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_BROADCAST:
        return (row_counts){1, 1};
    case COLLECTIVE_REDUCE:
        return (row_counts){1, is_root ? 1 : 0};
    case COLLECTIVE_ALL_GATHER:
        return (row_counts){1, world_size};
    case COLLECTIVE_REDUCE_SCATTER:
        return (row_counts){world_size, 1};
    case COLLECTIVE_GATHER:
        return (row_counts){1, is_root ? world_size : 0};
    case COLLECTIVE_SCATTER:
        return (row_counts){is_root ? world_size : 0, 1};
    case COLLECTIVE_ALL_TO_ALL:
        return (row_counts){world_size, world_size};
    case COLLECTIVE_SEND:
        return (row_counts){1, 0};
    case COLLECTIVE_RECV:
        return (row_counts){0, 1};
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    return (row_counts){0, 0};
}

size_t collective_in_bytes(const collective *c, int rank, int world_size)
{
    return c->count * dtype_size(c->type) * (size_t)rows_of(c, rank, world_size).in;
}

size_t collective_out_bytes(const collective *c, int rank, int world_size)
{
    return c->count * dtype_size(c->type) * (size_t)rows_of(c, rank, world_size).out;
}

static status check_other_rank(const collective *c, int rank, int world_size)
{
    const char *name = collective_kind_name(c->kind);
    bool from = c->kind == COLLECTIVE_BROADCAST || c->kind == COLLECTIVE_RECV ||
                c->kind == COLLECTIVE_SCATTER;
    bool has_peer = collective_is_send_or_recv(c->kind);
    if (collective_has_root(c->kind) && (c->root < 0 || c->root >= world_size))
        return FAIL(STATUS_INVALID, "%s %s rank %d of %d", name, from ? "from" : "to", c->root,
                    world_size);
    if (has_peer && c->root == rank)
        return FAIL(STATUS_INVALID, "%s between rank %d and itself", name, rank);
    if (has_peer && c->tag < 0)
        return FAIL(STATUS_INVALID, "%s with tag %d: tags are not negative", name, c->tag);
    return STATUS_OK;
}

static status check_overlap(const collective *c, int rank, int world_size)
{
    row_counts rows = rows_of(c, rank, world_size);
    size_t row = c->count * dtype_size(c->type);
    uintptr_t in = (uintptr_t)c->in, out = (uintptr_t)c->out;
    uintptr_t in_end = in + row * (size_t)rows.in, out_end = out + row * (size_t)rows.out;
    uintptr_t at = row * (size_t)rank; /* where this rank's row is, if in place */
    bool in_place = rows.in == rows.out  ? in == out
                    : rows.in < rows.out ? in == out + at
                                         : out == in + at;
    if (c->kind == COLLECTIVE_BROADCAST && in != out)
        return FAIL(STATUS_INVALID, "broadcast is in place: in and out are to be equal");
    if (rows.in == 0 || rows.out == 0 || in >= out_end || out >= in_end || in_place)
        return STATUS_OK;
    if (rows.in == rows.out)
        return FAIL(STATUS_INVALID, "%s: in and out overlap, and are not equal",
                    collective_kind_name(c->kind));
    return FAIL(STATUS_INVALID, "%s: in and out overlap, and not at row %d",
                collective_kind_name(c->kind), rank);
}

static bool scales(const collective *c)
{
    bool is_given = c->prescale < 0 || c->prescale > 0;
    return is_given && (c->prescale < 1 || c->prescale > 1);
}

status collective_check(const collective *c, int rank, int world_size)
{
    const char *name = collective_kind_name(c->kind);
    size_t rows, size_bytes;
    if ((unsigned)c->kind >= COLLECTIVE_KIND_COUNT)
        return FAIL(STATUS_INVALID, "collective %d does not exist", (int)c->kind);
    TRY(check_other_rank(c, rank, world_size));
    if ((unsigned)c->type >= DTYPE_COUNT || (unsigned)c->op >= REDUCE_OP_COUNT)
        return FAIL(STATUS_INVALID, "%s: dtype %d or reduce_op %d does not exist", name,
                    (int)c->type, (int)c->op);
    if (scales(c) && !collective_reduces(c->kind))
        return FAIL(STATUS_INVALID, "%s has no prescale", name);
    if (scales(c) && !dtype_is_float(c->type))
        return FAIL(STATUS_INVALID, "a prescale of %g is for float types", (double)c->prescale);
    if (!memory_product(dtype_size(c->type), (size_t)world_size, &rows) ||
        !memory_product(c->count, rows, &size_bytes) || size_bytes > PTRDIFF_MAX)
        return FAIL(STATUS_INVALID, "%s of %zu elements: more than memory can hold", name,
                    c->count);
    if ((c->in == NULL && collective_in_bytes(c, rank, world_size) > 0) ||
        (c->out == NULL && collective_out_bytes(c, rank, world_size) > 0))
        return FAIL(STATUS_INVALID, "%s of %zu elements at NULL", name, c->count);
    return check_overlap(c, rank, world_size);
}

rank_traffic collective_star_traffic(const collective *c, int rank, int world_size)
{
    uint64_t bytes = c->count * dtype_size(c->type), n = (uint64_t)world_size;
    uint64_t others = c->root == rank ? n - 1 : 0, self = c->root == rank ? 0 : 1;
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE: /* every rank but one has each part once, and its sum once */
        return (rank_traffic){2 * bytes * (n - 1) / n, 2 * bytes * (n - 1) / n};
    case COLLECTIVE_BROADCAST:
        return (rank_traffic){others * bytes, self * bytes};
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        return (rank_traffic){self * bytes, others * bytes};
    case COLLECTIVE_SCATTER:
        return (rank_traffic){others * bytes, self * bytes};
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return (rank_traffic){(n - 1) * bytes, (n - 1) * bytes};
    case COLLECTIVE_SEND:
        return (rank_traffic){bytes, 0};
    case COLLECTIVE_RECV:
        return (rank_traffic){0, bytes};
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    return (rank_traffic){0};
}

rank_traffic collective_chain_traffic(const collective *c, int rank, int world_size)
{
    uint64_t bytes = c->count * dtype_size(c->type);
    int from_root = (rank - c->root + world_size) % world_size; /* the root's place is 0 */
    bool has_inner = from_root > 0, has_outer = from_root + 1 < world_size;
    if (c->kind == COLLECTIVE_BROADCAST)
        return (rank_traffic){has_outer ? bytes : 0, has_inner ? bytes : 0};
    if (c->kind == COLLECTIVE_REDUCE)
        return (rank_traffic){has_inner ? bytes : 0, has_outer ? bytes : 0};
    return collective_star_traffic(c, rank, world_size);
}

void collective_do_alone(const collective *c)
{
    size_t size_bytes = collective_out_bytes(c, 0, 1);
    if (size_bytes == 0)
        return;
    if (c->out != c->in)
        memmove(c->out, c->in, size_bytes);
    void *out = c->out;
    if (c->prescale < 1 || c->prescale > 1)
        reduce_buffers(c->type, c->op, c->prescale, &out, 1, c->count);
}

/* Two buffers are summed in one pass, into both or into one. For all else, a block that fits the
 * L1 cache beside its sources collects the partial results before it is copied into all of them.
 */

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

enum { LINE_BYTES = 64 };

typedef struct exchange_facts {
    bool root_gives, root_takes; /* alone */
    bool row_per_taker, row_per_giver;
} exchange_facts;

static const exchange_facts FACTS[COLLECTIVE_KIND_COUNT] = {
    [COLLECTIVE_REDUCE] = {.root_takes = true},
    [COLLECTIVE_REDUCE_SCATTER] = {.row_per_taker = true},
    [COLLECTIVE_BROADCAST] = {.root_gives = true},
    [COLLECTIVE_SCATTER] = {.root_gives = true, .row_per_taker = true},
    [COLLECTIVE_ALL_GATHER] = {.row_per_giver = true},
    [COLLECTIVE_GATHER] = {.root_takes = true, .row_per_giver = true},
    [COLLECTIVE_ALL_TO_ALL] = {.row_per_taker = true, .row_per_giver = true},
};

bool exchange_gives(const collective *c, int rank)
{
    return c->count > 0 && (!FACTS[c->kind].root_gives || c->root == rank);
}

bool exchange_takes(const collective *c, int rank)
{
    return c->count > 0 && (!FACTS[c->kind].root_takes || c->root == rank);
}

bool exchange_is_read(const collective *c, int rank)
{
    return exchange_gives(c, rank) && !(FACTS[c->kind].root_takes && c->root == rank);
}

int exchange_rows(const collective *c, int world_size)
{
    return FACTS[c->kind].row_per_taker ? world_size : 1;
}

size_t exchange_row(const collective *c, int rank)
{
    return FACTS[c->kind].row_per_taker ? (size_t)rank : 0;
}

static void copy(void *out, const void *in, size_t size_bytes)
{
    if (out != in)
        memcpy(out, in, size_bytes);
}

void exchange_take(const collective *c, int rank, int world_size, const void *const *given,
                   size_t at, size_t count)
{
    size_t size = dtype_size(c->type);
    unsigned char *out = (unsigned char *)c->out + at * size;
    if (collective_reduces(c->kind)) {
        reduce_parts parts = {given, world_size, (void *const[]){out}, 1};
        reduce_into(c->type, c->op, c->prescale, &parts, count);
    } else if (FACTS[c->kind].root_gives) {
        copy(out, given[c->root], count * size);
    } else {
        for (int step = 0; step < world_size; step++) { /* not all begin with the same giver */
            int from = (rank + step) % world_size;
            copy(out + (size_t)from * c->count * size, given[from], count * size);
        }
    }
}

exchange_part exchange_part_of(const collective *c, size_t count, int rank, int world_size)
{
    size_t per_line = LINE_BYTES / dtype_size(c->type), n = (size_t)world_size, r = (size_t)rank;
    size_t lines = (count + per_line - 1) / per_line;
    size_t begin = lines * r / n * per_line, end = lines * (r + 1) / n * per_line;
    return (exchange_part){begin < count ? begin : count, end < count ? end : count};
}
