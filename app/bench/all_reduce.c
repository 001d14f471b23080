#include "app/bench/all_reduce.h"

#include "app/bench/stats.h"
#include "base/clock.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>

/* Values repeat after these, so that sums over thousands of ranks stay exact in a float. */
enum { VALUES = 97, RANK_VALUES = 16 };

struct all_reduce_bench {
    process_group *group;
    device *dev; /* NULL: host memory */
    all_reduce_plan plan;
    float *in, *out; /* what is measured: host or device memory */
    float *host;     /* device memory's values are made and looked at here; NULL: at `in`, `out` */
    double *elapsed_s; /* (iterations) */
};

static bool on_accelerator(const all_reduce_bench *b)
{
    return b->dev != NULL && b->dev->stream != NULL;
}

static status open_memory(all_reduce_bench *b)
{
    size_t most = b->plan.max_bytes;
    TRY(memory_alloc(sizeof(double) * (size_t)b->plan.iterations, (void **)&b->elapsed_s));
    if (!on_accelerator(b)) {
        TRY(memory_alloc(most, (void **)&b->in));
        return process_group_alloc(b->group, most, (void **)&b->out);
    }
    TRY(memory_alloc(most, (void **)&b->host));
    TRY(b->dev->ops->alloc(b->dev, most, (void **)&b->in));
    return b->dev->ops->alloc(b->dev, most, (void **)&b->out);
}

status all_reduce_bench_create(process_group *group, device *dev, const all_reduce_plan *plan,
                               all_reduce_bench **out)
{
    all_reduce_bench *b = NULL;
    TRY(memory_alloc(sizeof *b, (void **)&b));
    *b = (all_reduce_bench){.group = group, .dev = dev, .plan = *plan};
    status st = open_memory(b);
    if (st != STATUS_OK) {
        all_reduce_bench_destroy(b);
        return st;
    }
    *out = b;
    return STATUS_OK;
}

void all_reduce_bench_destroy(all_reduce_bench *b)
{
    if (b == NULL)
        return;
    if (on_accelerator(b)) {
        b->dev->ops->free(b->dev, b->in);
        b->dev->ops->free(b->dev, b->out);
    } else {
        free(b->in); /* `out` is the group's */
    }
    free(b->host);
    free(b->elapsed_s);
    free(b);
}

size_t all_reduce_next_size(const all_reduce_plan *plan, size_t size_bytes)
{
    const double whole = sizeof(float);
    double next = size_bytes == 0 ? (double)plan->min_bytes : (double)size_bytes * plan->factor;
    next = fmax(floor(next / whole) * whole, whole);
    if (next <= (double)size_bytes)
        next = (double)size_bytes + whole;
    return next <= (double)plan->max_bytes ? (size_t)next : 0;
}

/* Rank r's element i; only a part of them depends on r, so that a sum is quickly known. */
static float value(size_t i, int rank)
{
    return (float)(i % VALUES) + (float)(rank % RANK_VALUES);
}

static float sum_of_values(size_t i, int world_size)
{
    int64_t ranks = 0;
    for (int rank = 0; rank < world_size; rank++)
        ranks += rank % RANK_VALUES;
    return (float)((int64_t)world_size * (int64_t)(i % VALUES) + ranks);
}

static status fill(all_reduce_bench *b, float *buffer, size_t count)
{
    float *values = on_accelerator(b) ? b->host : buffer;
    int rank = process_group_rank(b->group);
    for (size_t i = 0; i < count; i++)
        values[i] = value(i, rank);
    return values == buffer ? STATUS_OK
                            : b->dev->ops->upload(b->dev, buffer, values, count * sizeof(float));
}

static status count_wrong(all_reduce_bench *b, size_t count, int64_t *out)
{
    int world_size = process_group_world_size(b->group);
    const float *values = on_accelerator(b) ? b->host : b->out;
    float want[VALUES];
    if (on_accelerator(b))
        TRY(b->dev->ops->download(b->dev, b->host, b->out, count * sizeof(float)));
    for (size_t i = 0; i < VALUES; i++)
        want[i] = sum_of_values(i, world_size);
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += !(values[i] == want[i % VALUES]);
    TRY(process_group_all_reduce(b->group, &wrong, 1, DTYPE_I64, REDUCE_SUM, NULL));
    *out = wrong;
    return STATUS_OK;
}

static status sum_once(all_reduce_bench *b, const float *in, size_t count)
{
    work *w;
    device_stream *stream = on_accelerator(b) ? b->dev->stream : NULL;
    TRY(process_group_all_reduce_async(
        b->group, &(reduction){in, b->out, count, DTYPE_F32, REDUCE_SUM, 1}, stream, &w));
    return process_group_wait(b->group, w, NULL);
}

static status settle(all_reduce_bench *b)
{
    return on_accelerator(b) ? b->dev->ops->synchronize(b->dev) : STATUS_OK;
}

/* This rank's time becomes all ranks' mean. */
static status summarize(all_reduce_bench *b, double total_s, all_reduce_time *out)
{
    int n = b->plan.iterations;
    double times[3] = {total_s / n, -1, -1};
    if (!on_accelerator(b)) {
        times[1] = bench_stats_median(b->elapsed_s, n); /* sorts them */
        times[2] = b->elapsed_s[0];
    }
    TRY(process_group_all_reduce(b->group, times, 3, DTYPE_F64, REDUCE_SUM, NULL));
    int world_size = process_group_world_size(b->group);
    *out = (all_reduce_time){.mean_s = times[0] / world_size,
                             .median_s = times[1] / world_size,
                             .least_s = times[2] / world_size,
                             .wrong = -1};
    return STATUS_OK;
}

/* The timed iterations reduce what they find: in place, sums of sums, which nobody looks at. One
 * more, of known values, tells whether it is right. */
static status measure(all_reduce_bench *b, float *in, size_t count, all_reduce_time *out)
{
    TRY(fill(b, in, count));
    for (int i = 0; i < b->plan.warmup; i++)
        TRY(sum_once(b, in, count));
    TRY(settle(b));
    TRY(process_group_barrier(b->group));
    int64_t started_ns = clock_now_ns(), last_ns = started_ns;
    for (int i = 0; i < b->plan.iterations; i++) {
        TRY(sum_once(b, in, count));
        int64_t now_ns = clock_now_ns();
        b->elapsed_s[i] = clock_seconds(now_ns - last_ns);
        last_ns = now_ns;
    }
    TRY(settle(b));
    TRY(summarize(b, clock_seconds(clock_now_ns() - started_ns), out));
    TRY(fill(b, b->out, count)); /* nothing right is left from before */
    TRY(fill(b, in, count));
    TRY(sum_once(b, in, count));
    return count_wrong(b, count, &out->wrong);
}

status all_reduce_measure(all_reduce_bench *b, size_t size_bytes, all_reduce_row *out)
{
    all_reduce_row row = {.count = size_bytes / sizeof(float)};
    row.size_bytes = row.count * sizeof(float);
    if (row.count == 0 || row.size_bytes > b->plan.max_bytes)
        return FAIL(STATUS_INVALID, "an all-reduce of %zu bytes: 4 to %zu were planned", size_bytes,
                    b->plan.max_bytes);
    TRY(measure(b, b->in, row.count, &row.out_of_place));
    TRY(measure(b, b->out, row.count, &row.in_place));
    *out = row;
    return STATUS_OK;
}

double all_reduce_algbw(size_t size_bytes, double elapsed_s)
{
    return elapsed_s > 0 ? (double)size_bytes / elapsed_s * 1e-9 : 0;
}

double all_reduce_busbw(size_t size_bytes, double elapsed_s, int world_size)
{
    return all_reduce_algbw(size_bytes, elapsed_s) * 2 * (world_size - 1) / world_size;
}
