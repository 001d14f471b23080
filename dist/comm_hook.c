#include "dist/comm_hook.h"

#include "base/half.h"
#include "base/memory.h"
#include "base/random.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

enum { LANES = 16 };

/* PyTorch's min_compression_rate: what does not become half as large is sent whole. */
static const size_t LEAST_GAIN = 2;

typedef struct slice {
    size_t offset, count;
    work *under_way;
} slice;

struct comm_hook {
    process_group *group;
    comm_hook_options options;
    comm_hook_arena arena; /* its matrices are the hook's own */
    float prescale;
    slice *slices; /* (arena.n): launched in this step */
    size_t n_slices;

    uint16_t *half; /* fp16, bf16: where the arena's floats travel, at their offsets */

    /* powersgd; every matrix's factors are r columns, one after the other */
    int64_t steps;
    float *plain; /* the gradients in PyTorch's order, and with last step's errors */
    float *error; /* what was left out */
    float *whole; /* what is sent whole, what is carried, then all P: one message */
    float *q;     /* all Q: the other one */
    size_t whole_count, p_count, q_count;
};

status comm_hook_parse(const char *word, comm_hook_kind *out)
{
    static const char *const words[] = {"none", "fp16", "bf16", "powersgd"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], word) == 0) {
            *out = (comm_hook_kind)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID,
                "there is no communication hook '%.40s': none, fp16, bf16 or powersgd", word);
}

size_t comm_hook_shared_bytes(comm_hook_kind kind, size_t count, size_t carried)
{
    enum { ROUNDING = 2 * 64 }; /* two pieces are rounded up */
    if (kind == COMM_HOOK_NONE)
        return 0;
    /* what is compressed takes less than half: so both messages together less than the gradients */
    size_t each = kind == COMM_HOOK_POWERSGD ? sizeof(float) : sizeof(uint16_t);
    return each * (count + carried) + ROUNDING;
}

/* The factors' columns; 0: sent whole. */
static size_t rank_of(const comm_hook *h, const comm_hook_matrix *m)
{
    size_t r = (size_t)h->options.rank, least = m->rows < m->columns ? m->rows : m->columns;
    r = r < least ? r : least;
    bool gains = (m->rows + m->columns) * r * LEAST_GAIN < m->rows * m->columns;
    return m->columns > 1 && gains ? r : 0;
}

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double dot_wide(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Modified Gram-Schmidt over r columns of n floats each. What is left of a column that the others
 * span is rounding: it becomes zeros. */
static void orthogonalize(float *columns, size_t n, size_t r)
{
    for (size_t k = 0; k < r; k++) {
        float *x = columns + k * n;
        double whole = norm_of(x, n);
        for (size_t before = 0; before < k; before++) {
            const float *y = columns + before * n;
            float share = (float)dot_wide(x, y, n);
            for (size_t i = 0; i < n; i++)
                x[i] -= share * y[i];
        }
        double norm = norm_of(x, n);
        bool is_noise = norm <= 1e-6 * whole || norm < 1e-30; /* not so of NaN, which spreads */
        float scale = is_noise ? 0 : (float)(1 / norm);
        for (size_t i = 0; i < n; i++)
            x[i] *= scale;
    }
}

/* Alike on all ranks; as good as any directions are. */
static void draw_factors(comm_hook *h)
{
    mt19937 generator;
    mt19937_init(&generator, 0);
    for (size_t i = 0; i < h->q_count; i++)
        h->q[i] = (float)mt19937_u32(&generator) * 0x1p-31f - 1;
}

static status open_powersgd(comm_hook *h)
{
    size_t whole = h->arena.carried;
    for (size_t i = 0; i < h->arena.n; i++) {
        const comm_hook_matrix *m = &h->arena.matrices[i];
        size_t r = rank_of(h, m);
        whole += r == 0 ? m->rows * m->columns : 0;
        h->p_count += r * m->rows;
        h->q_count += r * m->columns;
    }
    h->whole_count = whole;
    size_t bytes = h->arena.count * sizeof(float);
    TRY(memory_alloc(bytes, (void **)&h->plain));
    TRY(memory_alloc(bytes, (void **)&h->error));
    memset(h->error, 0, bytes);
    TRY(process_group_alloc(h->group, (whole + h->p_count) * sizeof(float), (void **)&h->whole));
    TRY(process_group_alloc(h->group, (h->q_count + 1) * sizeof(float), (void **)&h->q));
    draw_factors(h);
    return STATUS_OK;
}

static status open_memory(comm_hook *h, const comm_hook_matrix *matrices)
{
    size_t n = h->arena.n, half_bytes = (h->arena.count + h->arena.carried) * sizeof(uint16_t);
    comm_hook_matrix *copy = NULL;
    TRY(memory_alloc(n * sizeof *copy, (void **)&copy));
    h->arena.matrices = memcpy(copy, matrices, n * sizeof *copy);
    TRY(memory_alloc(n * sizeof *h->slices, (void **)&h->slices));
    device *dev = h->arena.dev;
    ASSERT(dev == NULL || h->options.kind != COMM_HOOK_POWERSGD);
    if (h->options.kind == COMM_HOOK_POWERSGD)
        return open_powersgd(h);
    if (dev != NULL)
        return dev->ops->alloc(dev, half_bytes, (void **)&h->half);
    return process_group_alloc(h->group, half_bytes, (void **)&h->half);
}

status comm_hook_create(process_group *group, const comm_hook_options *options,
                        const comm_hook_arena *arena, comm_hook **out)
{
    comm_hook *h = calloc(1, sizeof *h);
    if (options->kind == COMM_HOOK_NONE || options->rank < 1 || options->start_iter < 0) {
        free(h);
        return FAIL(STATUS_INVALID, "a communication hook of rank %d, from step %lld on",
                    options->rank, (long long)options->start_iter);
    }
    if (h == NULL)
        return FAIL(STATUS_NO_MEMORY, "a communication hook");
    *h = (comm_hook){.group = group,
                     .options = *options,
                     .arena = *arena,
                     .prescale = 1.0f / (float)process_group_world_size(group)};
    h->arena.matrices = NULL;
    status st = open_memory(h, arena->matrices);
    if (st != STATUS_OK) {
        comm_hook_destroy(h);
        return st;
    }
    *out = h;
    return STATUS_OK;
}

void comm_hook_destroy(comm_hook *h)
{
    if (h == NULL)
        return;
    if (h->arena.dev != NULL)
        h->arena.dev->ops->free(h->arena.dev, h->half);
    free((void *)h->arena.matrices);
    free(h->slices);
    free(h->plain);
    free(h->error);
    free(h);
}

/* Does this step's powersgd compress? If not, buckets travel as without a hook. */
static bool compresses(const comm_hook *h)
{
    return h->options.kind == COMM_HOOK_POWERSGD && h->steps >= h->options.start_iter;
}

CLONES static void scale(float *data, size_t n, float s)
{
    for (size_t i = 0; i < n; i++)
        data[i] *= s;
}

static precision half_of(const comm_hook *h)
{
    return h->options.kind == COMM_HOOK_BF16 ? PRECISION_BF16 : PRECISION_F16;
}

/* What a rank sends: rounded to float32 and then to 16 bits. */
static status narrow(comm_hook *h, size_t offset, size_t count)
{
    float *data = h->arena.gradients + offset;
    uint16_t *to = h->half + offset;
    device *dev = h->arena.dev;
    if (dev != NULL)
        return dev->ops->accelerator->narrow(dev, half_of(h), data, count, h->prescale, to);
    scale(data, count, h->prescale);
    (half_of(h) == PRECISION_BF16 ? half_narrow_bf16 : half_narrow_f16)(data, to, count);
    return STATUS_OK;
}

static status widen(comm_hook *h, size_t offset, size_t count)
{
    float *data = h->arena.gradients + offset;
    const uint16_t *from = h->half + offset;
    device *dev = h->arena.dev;
    if (dev != NULL)
        return dev->ops->accelerator->widen(dev, half_of(h), from, count, data);
    (half_of(h) == PRECISION_BF16 ? half_widen_bf16 : half_widen_f16)(from, data, count);
    return STATUS_OK;
}

status comm_hook_launch(comm_hook *h, size_t offset, size_t count, const char *label)
{
    bool first = offset + count == h->arena.count;
    size_t floats = count + (first ? h->arena.carried : 0);
    float *data = h->arena.gradients + offset;
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = REDUCE_SUM,
                    .type = DTYPE_F32,
                    .in = data,
                    .out = data,
                    .count = floats,
                    .prescale = h->prescale,
                    .label = label};
    if (compresses(h))
        return STATUS_OK;
    if (h->half != NULL) {
        TRY(narrow(h, offset, floats));
        c.type = half_of(h) == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F16;
        c.in = c.out = h->half + offset;
        c.prescale = 1;
    }
    ASSERT(h->n_slices < h->arena.n);
    slice *s = &h->slices[h->n_slices];
    *s = (slice){.offset = offset, .count = floats};
    device_stream *stream = h->arena.dev != NULL ? h->arena.dev->stream : NULL;
    TRY(process_group_launch(h->group, &c, stream, &s->under_way));
    h->n_slices++;
    return STATUS_OK;
}

static status wait_for(comm_hook *h, work *w, int64_t *comm_ns)
{
    int64_t elapsed_ns = 0;
    TRY(process_group_wait(h->group, w, &elapsed_ns));
    *comm_ns += elapsed_ns;
    return STATUS_OK;
}

static status wait_for_slices(comm_hook *h, int64_t *comm_ns)
{
    status st = STATUS_OK;
    for (size_t i = 0; i < h->n_slices && st == STATUS_OK; i++) {
        slice *s = &h->slices[i];
        st = wait_for(h, s->under_way, comm_ns);
        if (st == STATUS_OK && h->half != NULL && h->arena.dev == NULL)
            st = widen(h, s->offset, s->count);
    }
    h->n_slices = 0;
    if (st == STATUS_OK && h->arena.dev != NULL) /* all at once: one kernel */
        st = widen(h, 0, h->arena.count + h->arena.carried);
    return st;
}

/* The mean over ranks of one of the two messages. */
static status average(comm_hook *h, float *data, size_t count, const char *label, int64_t *comm_ns)
{
    work *w = NULL;
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = REDUCE_SUM,
                    .type = DTYPE_F32,
                    .in = data,
                    .out = data,
                    .count = count,
                    .prescale = h->prescale,
                    .label = label};
    TRY(process_group_launch(h->group, &c, NULL, &w));
    return wait_for(h, w, comm_ns);
}

CLONES static float dot(const float *restrict x, const float *restrict y, size_t n)
{
    float lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            lanes[k] += x[i + k] * y[i + k];
    for (; i < n; i++)
        sum += x[i] * y[i];
    for (size_t k = 0; k < LANES; k++)
        sum += lanes[k];
    return sum;
}

/* y += a * x */
CLONES static void add_scaled(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* P = M Q */
static void multiply(const comm_hook_matrix *m, const float *data, const float *q, size_t r,
                     float *p)
{
    for (size_t k = 0; k < r; k++)
        for (size_t i = 0; i < m->rows; i++)
            p[k * m->rows + i] = dot(data + i * m->columns, q + k * m->columns, m->columns);
}

/* Q = transpose of M times P */
static void multiply_transposed(const comm_hook_matrix *m, const float *data, const float *p,
                                size_t r, float *q)
{
    memset(q, 0, r * m->columns * sizeof *q);
    for (size_t k = 0; k < r; k++)
        for (size_t i = 0; i < m->rows; i++)
            add_scaled(q + k * m->columns, p[k * m->rows + i], data + i * m->columns, m->columns);
}

/* data becomes P times Q transposed, and error what that leaves out of it. */
static void restore(const comm_hook_matrix *m, const float *p, const float *q, size_t r,
                    float *data, float *error)
{
    for (size_t i = 0; i < m->rows; i++) {
        float *row = data + i * m->columns, *left = error + i * m->columns;
        memcpy(left, row, m->columns * sizeof *row);
        memset(row, 0, m->columns * sizeof *row);
        for (size_t k = 0; k < r; k++)
            add_scaled(row, p[k * m->rows + i], q + k * m->columns, m->columns);
        add_scaled(left, -1, row, m->columns);
    }
}

/* Every matrix's place in the messages, in the arena's order. */
typedef struct cursor {
    float *whole, *p, *q;
} cursor;

typedef void visit_fn(comm_hook *h, const comm_hook_matrix *m, size_t r, const cursor *at);

static void each_matrix(comm_hook *h, visit_fn *visit)
{
    cursor at = {h->whole, h->whole + h->whole_count, h->q};
    for (size_t i = 0; i < h->arena.n; i++) {
        const comm_hook_matrix *m = &h->arena.matrices[i];
        size_t r = rank_of(h, m);
        visit(h, m, r, &at);
        at.whole += r == 0 ? m->rows * m->columns : 0;
        at.p += r * m->rows;
        at.q += r * m->columns;
    }
}

static void make_p(comm_hook *h, const comm_hook_matrix *m, size_t r, const cursor *at)
{
    float *data = h->plain + m->offset;
    if (r == 0) {
        memcpy(at->whole, data, m->rows * m->columns * sizeof *data);
        return;
    }
    add_scaled(data, 1, h->error + m->offset, m->rows * m->columns);
    orthogonalize(at->q, m->columns, r);
    multiply(m, data, at->q, r, at->p);
}

static void make_q(comm_hook *h, const comm_hook_matrix *m, size_t r, const cursor *at)
{
    if (r == 0)
        return;
    orthogonalize(at->p, m->rows, r);
    multiply_transposed(m, h->plain + m->offset, at->p, r, at->q);
}

static void take_result(comm_hook *h, const comm_hook_matrix *m, size_t r, const cursor *at)
{
    float *data = h->plain + m->offset;
    if (r == 0)
        memcpy(data, at->whole, m->rows * m->columns * sizeof *data);
    else
        restore(m, at->p, at->q, r, data, h->error + m->offset);
}

static status reorder(comm_hook *h, comm_hook_order_fn *order, const float *from, float *to)
{
    if (order != NULL)
        return order(h->options.ctx, from, to);
    memcpy(to, from, h->arena.count * sizeof *to);
    return STATUS_OK;
}

static status compress(comm_hook *h, int64_t *comm_ns)
{
    float *gradients = h->arena.gradients, *carried = h->whole + h->whole_count - h->arena.carried;
    size_t carried_bytes = h->arena.carried * sizeof *carried;
    TRY(reorder(h, h->options.to_plain, gradients, h->plain));
    each_matrix(h, make_p);
    memcpy(carried, gradients + h->arena.count, carried_bytes);
    TRY(average(h, h->whole, h->whole_count + h->p_count, "powersgd: P", comm_ns));
    memcpy(gradients + h->arena.count, carried, carried_bytes);
    each_matrix(h, make_q);
    if (h->q_count > 0)
        TRY(average(h, h->q, h->q_count, "powersgd: Q", comm_ns));
    each_matrix(h, take_result);
    return reorder(h, h->options.from_plain, h->plain, gradients);
}

status comm_hook_wait(comm_hook *h, int64_t *comm_ns)
{
    status st = compresses(h) ? compress(h, comm_ns) : wait_for_slices(h, comm_ns);
    h->steps++;
    return st;
}
