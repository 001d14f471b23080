#include "app/bench/collective_bench.h"

#include "app/bench/measure.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/memory.h"
#include "dist/collective/collective.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Values repeat after these. They are so small that each type adds them up exactly. */
enum { VALUES = 96, RANK_VALUES = 16, WIDEST = 8 };

typedef enum way { OUT_OF_PLACE, IN_PLACE } way;

struct collective_bench {
    process_group *group;
    device *dev; /* NULL: host memory */
    collective_plan plan;
    unsigned char *a,
        *b;              /* what is measured: host or device memory; b is the group's on the host */
    unsigned char *host; /* device memory's values are made and looked at here; NULL: in place */
    double *elapsed_s;   /* (iterations) */
};

/* One call. Shapes are those of dist/collective/collective.h. */
typedef struct call {
    unsigned char *in, *out;
    size_t in_bytes, out_bytes, count;
} call;

/* COLLECTIVE_RECV is the other half of a send. */
static const struct {
    const char *name;
    bool has_rows; /* one side is as large as all ranks' together */
} CASES[COLLECTIVE_KIND_COUNT] = {
    [COLLECTIVE_ALL_REDUCE] = {"all-reduce", false},
    [COLLECTIVE_BROADCAST] = {"broadcast", false},
    [COLLECTIVE_REDUCE] = {"reduce", false},
    [COLLECTIVE_ALL_GATHER] = {"all-gather", true},
    [COLLECTIVE_REDUCE_SCATTER] = {"reduce-scatter", true},
    [COLLECTIVE_GATHER] = {"gather", true},
    [COLLECTIVE_SCATTER] = {"scatter", true},
    [COLLECTIVE_ALL_TO_ALL] = {"all-to-all", true},
    [COLLECTIVE_SEND] = {"send-recv", false},
    [COLLECTIVE_BARRIER] = {"barrier", false},
};

const char *collective_bench_name(collective_kind kind)
{
    return CASES[kind].name;
}

bool collective_bench_find(const char *benchmark, collective_kind *out)
{
    for (int kind = 0; kind < COLLECTIVE_KIND_COUNT; kind++)
        if (benchmark != NULL && CASES[kind].name != NULL &&
            strcmp(CASES[kind].name, benchmark) == 0) {
            *out = (collective_kind)kind;
            return true;
        }
    return false;
}

static bool on_accelerator(const collective_bench *b)
{
    return b->dev != NULL && b->dev->stream != NULL;
}

/* The smallest message: an element of, or for, every rank. */
static size_t whole_bytes(const collective_plan *plan, int world_size)
{
    return dtype_size(plan->what.type) * (CASES[plan->what.kind].has_rows ? (size_t)world_size : 1);
}

size_t collective_bench_bytes(const collective_plan *plan, int world_size)
{
    size_t whole = whole_bytes(plan, world_size);
    return plan->max_bytes > whole ? plan->max_bytes : whole;
}

static status open_memory(collective_bench *b)
{
    size_t most = collective_bench_bytes(&b->plan, process_group_world_size(b->group));
    TRY(memory_alloc(sizeof(double) * (size_t)b->plan.iterations, (void **)&b->elapsed_s));
    if (!on_accelerator(b)) {
        TRY(memory_alloc(most, (void **)&b->a));
        return process_group_alloc(b->group, most, (void **)&b->b);
    }
    TRY(memory_alloc(most, (void **)&b->host));
    TRY(b->dev->ops->alloc(b->dev, most, (void **)&b->a));
    return b->dev->ops->alloc(b->dev, most, (void **)&b->b);
}

status collective_bench_create(process_group *group, device *dev, const collective_plan *plan,
                               collective_bench **out)
{
    collective_bench *b = NULL;
    TRY(memory_alloc(sizeof *b, (void **)&b));
    *b = (collective_bench){.group = group, .dev = dev, .plan = *plan};
    status st = open_memory(b);
    if (st != STATUS_OK) {
        collective_bench_destroy(b);
        return st;
    }
    *out = b;
    return STATUS_OK;
}

void collective_bench_destroy(collective_bench *b)
{
    if (b == NULL)
        return;
    if (on_accelerator(b)) {
        b->dev->ops->free(b->dev, b->a);
        b->dev->ops->free(b->dev, b->b);
    } else {
        free(b->a); /* b->b is the group's */
    }
    free(b->host);
    free(b->elapsed_s);
    free(b);
}

size_t collective_next_size(const collective_plan *plan, int world_size, size_t size_bytes)
{
    const double whole = (double)whole_bytes(plan, world_size);
    if (plan->what.kind == COLLECTIVE_BARRIER)
        return size_bytes == 0 ? (size_t)whole : 0;
    double next = size_bytes == 0 ? (double)plan->min_bytes : (double)size_bytes * plan->factor;
    next = fmax(floor(next / whole) * whole, whole);
    if (next <= (double)size_bytes)
        next = (double)size_bytes + whole;
    return next <= (double)collective_bench_bytes(plan, world_size) ? (size_t)next : 0;
}

/* The collective of a size, as this rank calls it; false: there is no such way. */
static bool make_call(const collective_bench *b, size_t size_bytes, way how, call *out)
{
    const collective_case *c = &b->plan.what;
    int rank = process_group_rank(b->group), n = process_group_world_size(b->group);
    bool rows = CASES[c->kind].has_rows;
    size_t row_bytes = rows ? size_bytes / (size_t)n : size_bytes, at = row_bytes * (size_t)rank;
    collective as = {.kind = c->kind, .type = c->type, .root = c->root};
    if (c->kind == COLLECTIVE_BARRIER) {
        *out = (call){0};
        return how == OUT_OF_PLACE;
    }
    if (how == IN_PLACE && c->kind == COLLECTIVE_SEND)
        return false;
    as.count = row_bytes / dtype_size(c->type);
    *out = (call){.in = how == IN_PLACE ? b->b : b->a, .out = b->b, .count = as.count};
    out->in_bytes = c->kind == COLLECTIVE_SEND ? size_bytes : collective_in_bytes(&as, rank, n);
    out->out_bytes = c->kind == COLLECTIVE_SEND ? size_bytes : collective_out_bytes(&as, rank, n);
    if (how == IN_PLACE && rows && c->kind != COLLECTIVE_ALL_TO_ALL) {
        bool gathers = c->kind == COLLECTIVE_ALL_GATHER || c->kind == COLLECTIVE_GATHER;
        *(gathers ? &out->in : &out->out) += at; /* its row of the larger side */
    }
    return true;
}

static int value(const collective_case *c, size_t i, int rank)
{
    int element = (int)(i % VALUES), who = rank % RANK_VALUES;
    bool narrow = dtype_size(c->type) <= 2;
    if (collective_reduces(c->kind) && c->op == REDUCE_PROD)
        return 1 + (element + who) % 2;
    return narrow ? (element + who) % 3 : element + who;
}

static void put(dtype type, unsigned char *at, int number)
{
    const float f32 = (float)number;
    const double f64 = number;
    const int64_t i64 = number;
    const uint16_t bf16 = f32_to_bf16(f32), f16 = f32_to_f16(f32);
    const uint8_t u8 = (uint8_t)number;
    const void *const as[DTYPE_COUNT] = {
        [DTYPE_F32] = &f32,   [DTYPE_F64] = &f64, [DTYPE_I64] = &i64,
        [DTYPE_BF16] = &bf16, [DTYPE_F16] = &f16, [DTYPE_U8] = &u8};
    memcpy(at, as[type], dtype_size(type));
}

/* VALUES elements of rank `rank`. */
static void make_pattern(const collective_case *c, int rank, unsigned char *out)
{
    for (size_t i = 0; i < VALUES; i++)
        put(c->type, out + i * dtype_size(c->type), value(c, i, rank));
}

/* VALUES elements of the reduction over all ranks. */
static status make_reduced(const collective_bench *b, unsigned char *out)
{
    const collective_case *c = &b->plan.what;
    int n = process_group_world_size(b->group);
    unsigned char *patterns = NULL;
    const void **in = NULL;
    TRY(memory_alloc((size_t)n * VALUES * WIDEST, (void **)&patterns));
    status st = memory_alloc((size_t)n * sizeof *in, (void **)&in);
    for (int rank = 0; rank < n && st == STATUS_OK; rank++) {
        in[rank] = patterns + (size_t)rank * VALUES * WIDEST;
        make_pattern(c, rank, patterns + (size_t)rank * VALUES * WIDEST);
    }
    if (st == STATUS_OK)
        reduce_into(c->type, c->op, 1, &(reduce_parts){in, n, (void *const[]){out}, 1}, VALUES);
    free(in);
    free(patterns);
    return st;
}

/* Repeats `pattern` from its element `first` on. */
static void repeat(const unsigned char *pattern, size_t size, size_t first, unsigned char *to,
                   size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * size, pattern + (first + i) % VALUES * size, size);
}

static int64_t differing(const unsigned char *pattern, size_t size, size_t first,
                         const unsigned char *data, size_t count)
{
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += memcmp(data + i * size, pattern + (first + i) % VALUES * size, size) != 0;
    return wrong;
}

static status fill(collective_bench *b, unsigned char *buffer, size_t size_bytes, int rank)
{
    unsigned char pattern[VALUES * WIDEST], *values = on_accelerator(b) ? b->host : buffer;
    size_t size = dtype_size(b->plan.what.type);
    make_pattern(&b->plan.what, rank, pattern);
    repeat(pattern, size, 0, values, size_bytes / size);
    return values == buffer || size_bytes == 0
               ? STATUS_OK
               : b->dev->ops->upload(b->dev, buffer, values, size_bytes);
}

/* What came from `from`, which lies at element `first` of its data. */
static int64_t count_moved(const collective_bench *b, const unsigned char *data, int from,
                           size_t first, size_t count)
{
    unsigned char pattern[VALUES * WIDEST];
    make_pattern(&b->plan.what, from, pattern);
    return differing(pattern, dtype_size(b->plan.what.type), first, data, count);
}

static status count_here(const collective_bench *b, const call *how, const unsigned char *data,
                         int64_t *wrong)
{
    const collective_case *c = &b->plan.what;
    int rank = process_group_rank(b->group), n = process_group_world_size(b->group);
    size_t size = dtype_size(c->type), row = how->count * size, own = (size_t)rank * how->count;
    bool rows_out = how->out_bytes > row;
    *wrong = 0;
    if (how->out_bytes == 0)
        return STATUS_OK;
    if (collective_reduces(c->kind)) {
        unsigned char reduced[VALUES * WIDEST];
        TRY(make_reduced(b, reduced));
        size_t first = c->kind == COLLECTIVE_REDUCE_SCATTER ? own : 0;
        *wrong = differing(reduced, size, first, data, how->count);
    } else if (c->kind == COLLECTIVE_SEND) {
        *wrong = count_moved(b, data, (rank + n - 1) % n, 0, how->count);
    } else if (!rows_out && !CASES[c->kind].has_rows) {
        *wrong = count_moved(b, data, c->root, 0, how->count);
    } else if (c->kind == COLLECTIVE_SCATTER) {
        *wrong = count_moved(b, data, c->root, own, how->count);
    } else {
        for (int from = 0; from < n; from++)
            *wrong += count_moved(b, data + (size_t)from * row, from,
                                  c->kind == COLLECTIVE_ALL_TO_ALL ? own : 0, how->count);
    }
    return STATUS_OK;
}

static status count_wrong(collective_bench *b, const call *how, int64_t *out)
{
    const unsigned char *data = on_accelerator(b) ? b->host : how->out;
    int64_t wrong = 0;
    if (on_accelerator(b) && how->out_bytes > 0)
        TRY(b->dev->ops->download(b->dev, b->host, how->out, how->out_bytes));
    TRY(count_here(b, how, data, &wrong));
    TRY(process_group_all_reduce(b->group, &wrong, 1, DTYPE_I64, REDUCE_SUM, NULL));
    *out = wrong;
    return STATUS_OK;
}

static status copy(collective_bench *b, const call *how)
{
    if (on_accelerator(b))
        return b->dev->ops->copy(b->dev, how->out, how->in, how->out_bytes);
    memcpy(how->out, how->in, how->out_bytes);
    return STATUS_OK;
}

/* Every rank sends to the next; a world of one copies. */
static status pass_on(collective_bench *b, const call *how, device_stream *stream)
{
    int rank = process_group_rank(b->group), n = process_group_world_size(b->group);
    collective pair[] = {{.kind = COLLECTIVE_SEND,
                          .type = b->plan.what.type,
                          .in = how->in,
                          .count = how->count,
                          .root = (rank + 1) % n},
                         {.kind = COLLECTIVE_RECV,
                          .type = b->plan.what.type,
                          .out = how->out,
                          .count = how->count,
                          .root = (rank + n - 1) % n}};
    work *works[2];
    if (n == 1)
        return copy(b, how);
    TRY(process_group_batch_isend_irecv(b->group, pair, 2, stream, works));
    TRY(process_group_wait(b->group, works[0], NULL));
    return process_group_wait(b->group, works[1], NULL);
}

static status do_once(collective_bench *b, const call *how)
{
    const collective_case *c = &b->plan.what;
    device_stream *stream = on_accelerator(b) ? b->dev->stream : NULL;
    bool broadcasts = c->kind == COLLECTIVE_BROADCAST;
    if (c->kind == COLLECTIVE_SEND)
        return pass_on(b, how, stream);
    /* A broadcast is in place: out of it, the root first takes a copy, as NCCL's root does. */
    if (broadcasts && how->in != how->out && process_group_rank(b->group) == c->root)
        TRY(copy(b, how));
    collective what = {.kind = c->kind,
                       .type = c->type,
                       .op = c->op,
                       .root = collective_has_root(c->kind) ? c->root : 0,
                       .in = broadcasts ? how->out : how->in,
                       .out = how->out,
                       .count = how->count};
    if (c->kind == COLLECTIVE_BARRIER)
        stream = NULL;
    return process_group_run(b->group, &what, stream);
}

bool collective_bench_captures(const collective_bench *b)
{
    return b->plan.graph && on_accelerator(b) && b->plan.what.kind != COLLECTIVE_BARRIER &&
           process_group_can_be_captured(b->group);
}

static status settle(collective_bench *b)
{
    return on_accelerator(b) ? b->dev->ops->synchronize(b->dev) : STATUS_OK;
}

/* This rank's time becomes all ranks' mean. */
static status summarize(collective_bench *b, double total_s, collective_time *out)
{
    int n = b->plan.iterations;
    double times[3] = {total_s / n, -1, -1};
    if (!on_accelerator(b)) {
        times[1] = bench_stats_median(b->elapsed_s, n); /* sorts them */
        times[2] = b->elapsed_s[0];
    }
    TRY(process_group_all_reduce(b->group, times, 3, DTYPE_F64, REDUCE_SUM, NULL));
    int world_size = process_group_world_size(b->group);
    *out = (collective_time){.exists = true,
                             .mean_s = times[0] / world_size,
                             .median_s = times[1] / world_size,
                             .least_s = times[2] / world_size,
                             .wrong = -1};
    return STATUS_OK;
}

/* The timed iterations, one after the other as the host asks for them. */
static status run_each(collective_bench *b, const call *how, double *total_s)
{
    TRY(process_group_barrier(b->group));
    int64_t started_ns = clock_now_ns(), last_ns = started_ns;
    for (int i = 0; i < b->plan.iterations; i++) {
        TRY(do_once(b, how));
        int64_t now_ns = clock_now_ns();
        b->elapsed_s[i] = clock_seconds(now_ns - last_ns);
        last_ns = now_ns;
    }
    TRY(settle(b));
    *total_s = clock_seconds(clock_now_ns() - started_ns);
    return STATUS_OK;
}

static status record(collective_bench *b, const call *how, device_graph **out)
{
    const accelerator_ops *ops = b->dev->ops->accelerator;
    status st = STATUS_OK;
    TRY(ops->capture_begin(b->dev));
    for (int i = 0; i < b->plan.iterations && st == STATUS_OK; i++)
        st = do_once(b, how);
    if (st == STATUS_OK)
        return ops->capture_end(b->dev, out);
    (void)ops->capture_end(b->dev, NULL);
    return st;
}

/* The same as a graph's second run. */
static status replay(collective_bench *b, device_graph *graph, double *total_s)
{
    const accelerator_ops *ops = b->dev->ops->accelerator;
    TRY(ops->graph_launch(b->dev, graph));
    TRY(settle(b));
    TRY(process_group_barrier(b->group));
    int64_t started_ns = clock_now_ns();
    TRY(ops->graph_launch(b->dev, graph));
    TRY(settle(b));
    *total_s = clock_seconds(clock_now_ns() - started_ns);
    return STATUS_OK;
}

/* What is recorded has been done before: that connects the ranks, and takes memory. */
static status run_recorded(collective_bench *b, const call *how, double *total_s)
{
    device_graph *graph = NULL;
    TRY(do_once(b, how));
    TRY(record(b, how, &graph));
    status st = replay(b, graph, total_s);
    b->dev->ops->accelerator->graph_destroy(graph);
    return st;
}

/* The timed iterations take what they find: in place, sums of sums, which nobody looks at. One
 * more, of known values, tells whether it is right. */
static status measure(collective_bench *b, size_t size_bytes, way as, collective_time *out)
{
    call how;
    double total_s = 0;
    int rank = process_group_rank(b->group);
    *out = (collective_time){.exists = false};
    if (!make_call(b, size_bytes, as, &how))
        return STATUS_OK;
    TRY(fill(b, how.in, how.in_bytes, rank));
    for (int i = 0; i < b->plan.warmup; i++)
        TRY(do_once(b, &how));
    TRY(settle(b));
    TRY((collective_bench_captures(b) ? run_recorded : run_each)(b, &how, &total_s));
    TRY(summarize(b, total_s, out));
    if (!b->plan.check)
        return STATUS_OK;
    TRY(fill(b, how.out, how.out_bytes, rank + 1)); /* nothing right is left from before */
    TRY(fill(b, how.in, how.in_bytes, rank));
    TRY(do_once(b, &how));
    return count_wrong(b, &how, &out->wrong);
}

status collective_measure(collective_bench *b, size_t size_bytes, collective_row *out)
{
    int world_size = process_group_world_size(b->group);
    size_t whole = whole_bytes(&b->plan, world_size);
    collective_row row = {.size_bytes = size_bytes / whole * whole};
    size_t most = collective_bench_bytes(&b->plan, world_size);
    if (row.size_bytes == 0 || row.size_bytes > most)
        return FAIL(STATUS_INVALID, "a message of %zu bytes: %zu to %zu were planned", size_bytes,
                    whole, most);
    row.count = row.size_bytes / whole;
    TRY(measure(b, row.size_bytes, OUT_OF_PLACE, &row.out_of_place));
    TRY(measure(b, row.size_bytes, IN_PLACE, &row.in_place));
    if (b->plan.what.kind == COLLECTIVE_BARRIER)
        row.size_bytes = row.count = 0;
    *out = row;
    return STATUS_OK;
}

double collective_algbw(size_t size_bytes, double elapsed_s)
{
    return elapsed_s > 0 ? (double)size_bytes / elapsed_s * 1e-9 : 0;
}

double collective_busbw(collective_kind kind, size_t size_bytes, double elapsed_s, int world_size)
{
    double others = (double)(world_size - 1) / world_size, factor = 1;
    if (kind == COLLECTIVE_ALL_REDUCE)
        factor = 2 * others;
    else if (CASES[kind].has_rows)
        factor = others;
    return collective_algbw(size_bytes, elapsed_s) * factor;
}
