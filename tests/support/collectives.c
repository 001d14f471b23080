#include "tests/support/collectives.h"

#include "kernels/ops.h"
#include "tests/support/collective_data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Empty, single, indivisible, whole lines, even, prime, more than a slot of staging. */
static const size_t COUNTS[] = {0, 1, 3, 6, 7, 64, 1000, 7919, 300001};

enum {
    N_COUNTS = sizeof COUNTS / sizeof COUNTS[0],
    MAX_COUNT = 300001,
    MAX_BYTES = MAX_COUNT * 8,
    BARRIERS = 50,
    OUTSTANDING = 150,
    N_BITS = 10007,
};

static status all_reduce_once(process_group *group, collective_data *d, dtype type, reduce_op op,
                              size_t count)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    work *w = NULL;
    for (size_t i = 0; i < count; i++)
        collective_data_put(d->in, type, i, collective_data_value(rank, i));
    TRY(collective_data_send(d));
    TRY(process_group_launch(group,
                             &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                           .in = d->call_in,
                                           .out = d->call_out,
                                           .count = count,
                                           .type = type,
                                           .op = op},
                             d->stream, &w));
    TRY(process_group_wait(group, w, NULL));
    TRY(collective_data_fetch(d));
    for (size_t i = 0; i < count; i++)
        TRY(collective_data_expect(d->out, type, i, collective_data_reduced(op, world_size, i),
                                   "all_reduce"));
    for (size_t i = 0; i < count && d->in != d->out; i++)
        TRY(collective_data_expect(d->in, type, i, collective_data_value(rank, i),
                                   "in of all_reduce"));
    return STATUS_OK;
}

status collectives_all_reduce(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    collective_data d;
    TRY(collective_data_open(group, *(const memory_kind *)arg, MAX_BYTES, &d));
    status st = STATUS_OK;
    for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
        for (int type = DTYPE_F32; type <= DTYPE_I64 && st == STATUS_OK; type++)
            for (int op = REDUCE_SUM; op <= REDUCE_MAX && st == STATUS_OK; op++)
                if (COUNTS[n] < MAX_COUNT || op == type) /* the long ones: each op and type once */
                    st = all_reduce_once(group, &d, (dtype)type, (reduce_op)op, COUNTS[n]);
    collective_data_close(&d);
    return st;
}

static status broadcast_once(process_group *group, collective_data *d, dtype type, size_t count,
                             int root)
{
    int rank = process_group_rank(group);
    for (size_t i = 0; i < count; i++)
        collective_data_put(d->out, type, i, collective_data_value(rank, i));
    TRY(collective_data_send(d));
    TRY(process_group_broadcast(group, d->call_out, count, type, root, d->stream));
    TRY(collective_data_fetch(d));
    for (size_t i = 0; i < count; i++)
        TRY(collective_data_expect(d->out, type, i, collective_data_value(root, i), "broadcast"));
    return STATUS_OK;
}

status collectives_broadcast(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    collective_data d;
    TRY(collective_data_open(group, *(const memory_kind *)arg, MAX_BYTES, &d));
    status st = STATUS_OK;
    for (int root = 0; root < world_size && st == STATUS_OK; root++)
        for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
            st = broadcast_once(group, &d, (dtype)((root + n) % 3), COUNTS[n], root);
    collective_data_close(&d);
    return st;
}

status collectives_barrier(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    _Atomic int *entered = arg;
    for (int round = 1; round <= BARRIERS; round++) {
        atomic_fetch_add(entered, 1);
        TRY(process_group_barrier(group));
        int seen = atomic_load(entered);
        if (seen < round * world_size)
            return FAIL(STATUS_INVALID, "barrier %d passed when %d of %d had come", round, seen,
                        round * world_size);
        TRY(process_group_barrier(group));
    }
    return STATUS_OK;
}

static status start_many(process_group *group, const collective_data *d, work **works)
{
    for (size_t k = 0; k < OUTSTANDING; k++) {
        int64_t *slice = (int64_t *)d->call_out + k * 100;
        TRY(process_group_launch(group,
                                 &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                               .in = slice,
                                               .out = slice,
                                               .count = k % 100,
                                               .type = DTYPE_I64},
                                 d->stream, &works[k]));
    }
    return STATUS_OK;
}

static status check_many(int rank, int world_size, const int64_t *data)
{
    for (int k = 0; k < OUTSTANDING; k++)
        for (int i = 0; i < 100; i++) {
            size_t at = (size_t)(k * 100 + i);
            int64_t want = i < k % 100 ? collective_data_reduced(REDUCE_SUM, world_size, at)
                                       : collective_data_value(rank, at);
            TRY(collective_data_expect(data, DTYPE_I64, at, want, "one of many"));
        }
    return STATUS_OK;
}

static status do_many(process_group *group, collective_data *d)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    work *works[OUTSTANDING];
    for (size_t i = 0; i < OUTSTANDING * 100; i++)
        collective_data_put(d->out, DTYPE_I64, i, collective_data_value(rank, i));
    TRY(collective_data_send(d));
    TRY(start_many(group, d, works));
    for (int k = 0; k < OUTSTANDING; k++)
        TRY(process_group_wait(group, works[k], NULL));
    TRY(collective_data_fetch(d));
    return check_many(rank, world_size, d->out);
}

status collectives_outstanding(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    (void)arg;
    memory_kind kind = ranks_device() != NULL ? MEMORY_DEVICE : MEMORY_SYMMETRIC;
    collective_data d;
    TRY(collective_data_open(group, kind, OUTSTANDING * 100 * sizeof(int64_t), &d));
    status st = do_many(group, &d);
    collective_data_close(&d);
    return st;
}

/* Fractions whose sums round, of both signs and several magnitudes. */
static void fill_fractions(float *data, int rank)
{
    uint32_t x = 2463534242u + (uint32_t)rank;
    for (int i = 0; i < N_BITS; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        data[i] = ((float)(x & 0xffffff) / 16777216.0f - 0.5f) * (i % 3 == 0 ? 100.0f : 0.01f);
    }
}

static status reduce_scaled(process_group *group, collective_data *d, float prescale)
{
    work *w = NULL;
    TRY(collective_data_send(d));
    TRY(process_group_launch(group,
                             &(collective){.kind = COLLECTIVE_ALL_REDUCE,
                                           .in = d->call_in,
                                           .out = d->call_out,
                                           .count = N_BITS,
                                           .prescale = prescale},
                             d->stream, &w));
    TRY(process_group_wait(group, w, NULL));
    return collective_data_fetch(d);
}

static status compare(const float *a, const float *b, const char *what)
{
    for (int i = 0; i < N_BITS; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            return FAIL(STATUS_INVALID, "%s: [%d] is %a, want %a", what, i, (double)a[i],
                        (double)b[i]);
    return STATUS_OK;
}

/* Leaves the sums in `first`. */
static status check_bits(process_group *group, collective_data *d, float *first)
{
    static const float scale = 1.0f / 3.0f;
    int rank = process_group_rank(group);
    float *in = d->in;
    fill_fractions(in, rank);
    TRY(reduce_scaled(group, d, scale));
    memcpy(first, d->out, d->size_bytes);
    fill_fractions(in, rank);
    TRY(reduce_scaled(group, d, scale));
    TRY(compare(d->out, first, "a second run"));
    fill_fractions(in, rank);
    for (int i = 0; i < N_BITS; i++)
        in[i] *= scale;
    TRY(reduce_scaled(group, d, 1));
    TRY(compare(d->out, first, "scaled before"));
    TRY(process_group_broadcast(group, d->call_out, N_BITS, DTYPE_F32, 0, d->stream));
    TRY(collective_data_fetch(d));
    return compare(d->out, first, "rank 0's bits");
}

status collectives_bits_of_a_call(process_group *group, int rank, int world_size, void *arg)
{
    collective_data d;
    float first[N_BITS];
    (void)world_size;
    (void)arg;
    TRY(collective_data_open(group, MEMORY_DEVICE, N_BITS * sizeof(float), &d));
    fill_fractions(d.in, rank);
    TRY(reduce_scaled(group, &d, 1.0f / 3.0f));
    memcpy(first, d.out, d.size_bytes);
    TRY(process_group_broadcast(group, d.call_out, N_BITS, DTYPE_F32, 0, d.stream));
    TRY(collective_data_fetch(&d));
    status st = compare(d.out, first, "rank 0's bits");
    collective_data_close(&d);
    return st;
}

/* The sums are the same for two kinds of memory. */
static status compare_kinds(process_group *group, const memory_kind *kinds)
{
    float *sums[2] = {calloc(N_BITS, sizeof(float)), calloc(N_BITS, sizeof(float))};
    status st = STATUS_OK;
    if (sums[0] == NULL || sums[1] == NULL)
        st = FAIL(STATUS_NO_MEMORY, "test buffers");
    for (int i = 0; i < 2 && st == STATUS_OK; i++) {
        collective_data d;
        st = collective_data_open(group, kinds[i], N_BITS * sizeof(float), &d);
        if (st == STATUS_OK)
            st = check_bits(group, &d, sums[i]);
        if (st == STATUS_OK)
            collective_data_close(&d);
    }
    if (st == STATUS_OK)
        st = compare(sums[1], sums[0], "another kind of memory");
    free(sums[0]);
    free(sums[1]);
    return st;
}

status collectives_bits(process_group *group, int rank, int world_size, void *arg)
{
    static const memory_kind kinds[] = {MEMORY_PLAIN, MEMORY_SYMMETRIC};
    (void)rank;
    (void)world_size;
    (void)arg;
    return compare_kinds(group, kinds);
}

status collectives_bits_on_device(process_group *group, int rank, int world_size, void *arg)
{
    static const memory_kind kinds[] = {MEMORY_DEVICE, MEMORY_DEVICE_OUT_OF_PLACE};
    (void)rank;
    (void)world_size;
    (void)arg;
    return compare_kinds(group, kinds);
}
