/* The kinds that training does not need. */
#include "tests/support/collective_data.h"

static const size_t COUNTS[] = {0, 1, 3, 6, 7, 1000, 7919, 120001};

enum { N_COUNTS = sizeof COUNTS / sizeof COUNTS[0], MAX_COUNT = 120001, MAX_WORLD = 5 };

static void fill(collective_data *d, dtype type, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        collective_data_put(d->in, type, i, collective_data_value(rank, i));
}

/* data[0..count-1] are the reductions of the positions from `first` on. */
static status expect_reduced(process_group *group, const void *data, dtype type, reduce_op op,
                             size_t first, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        TRY(collective_data_expect(
            data, type, i, collective_data_reduced(op, process_group_world_size(group), first + i),
            what));
    return STATUS_OK;
}

static status reduce(process_group *group, collective_data *d, dtype type, size_t count)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    reduce_op op = (reduce_op)(count % 3);
    for (int root = 0; root < world_size; root++) {
        fill(d, type, count, rank);
        TRY(collective_data_send(d));
        collective c = {.kind = COLLECTIVE_REDUCE, .op = op, .type = type, .count = count};
        c.in = d->call_in;
        c.out = rank == root ? d->call_out : NULL;
        c.root = root;
        TRY(process_group_run(group, &c, d->stream));
        TRY(collective_data_fetch(d));
        if (rank == root)
            TRY(expect_reduced(group, d->out, type, op, 0, count, "reduce"));
    }
    return STATUS_OK;
}

static status all_gather(process_group *group, collective_data *d, dtype type, size_t count)
{
    int world_size = process_group_world_size(group);
    fill(d, type, count, process_group_rank(group));
    TRY(collective_data_send(d));
    TRY(process_group_all_gather(group, d->call_in, d->call_out, count, type, d->stream));
    TRY(collective_data_fetch(d));
    for (int rank = 0; rank < world_size; rank++)
        for (size_t i = 0; i < count; i++)
            TRY(collective_data_expect(d->out, type, (size_t)rank * count + i,
                                       collective_data_value(rank, i), "all_gather"));
    return STATUS_OK;
}

static status reduce_scatter(process_group *group, collective_data *d, dtype type, size_t count)
{
    size_t rank = (size_t)process_group_rank(group);
    size_t world_size = (size_t)process_group_world_size(group);
    reduce_op op = (reduce_op)(count % 3);
    fill(d, type, count * world_size, (int)rank);
    TRY(collective_data_send(d));
    collective c = {.kind = COLLECTIVE_REDUCE_SCATTER, .op = op, .type = type, .count = count};
    c.in = d->call_in;
    c.out = d->call_out;
    TRY(process_group_run(group, &c, d->stream));
    TRY(collective_data_fetch(d));
    return expect_reduced(group, d->out, type, op, rank * count, count, "reduce_scatter");
}

/* Every rank sends to the next, in turn. */
static status send_around(process_group *group, collective_data *d, dtype type, size_t count)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    for (int from = 0; from < world_size && world_size > 1; from++) {
        int to = (from + 1) % world_size;
        fill(d, type, count, rank);
        TRY(collective_data_send(d));
        if (rank == from)
            TRY(process_group_send(group, d->call_in, count, type, to, d->stream));
        if (rank == to)
            TRY(process_group_recv(group, d->call_out, count, type, from, d->stream));
        TRY(collective_data_fetch(d));
        for (size_t i = 0; i < count && rank == to; i++)
            TRY(collective_data_expect(d->out, type, i, collective_data_value(from, i), "recv"));
    }
    return STATUS_OK;
}

typedef status kind_fn(process_group *, collective_data *, dtype, size_t);

static status do_kinds(process_group *group, kind_fn *const *kinds, int n_kinds, memory_kind memory)
{
    collective_data d;
    TRY(collective_data_open(group, memory, MAX_COUNT * MAX_WORLD * 8, &d));
    status st = STATUS_OK;
    for (int kind = 0; kind < n_kinds && st == STATUS_OK; kind++)
        for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
            st = kinds[kind](group, &d, (dtype)((kind + n) % 3), COUNTS[n]);
    collective_data_close(&d);
    return st;
}

status collectives_further(process_group *group, int rank, int world_size, void *arg)
{
    static kind_fn *const kinds[] = {reduce, all_gather, reduce_scatter, send_around};
    (void)rank;
    (void)world_size;
    return do_kinds(group, kinds, 4, *(const memory_kind *)arg);
}

status collectives_messages(process_group *group, int rank, int world_size, void *arg)
{
    static kind_fn *const kinds[] = {send_around};
    (void)rank;
    (void)world_size;
    return do_kinds(group, kinds, 1, *(const memory_kind *)arg);
}

/* Large values cancel in one order only. */
static status reduce_in_rank_order(process_group *group, int rank, int world_size)
{
    static const float values[MAX_WORLD] = {1e8f, 3.0f, -1e8f, 5.0f, 0.25f};
    float data[40], sum[40] = {0};
    volatile float want = values[0];
    for (int r = 1; r < world_size; r++)
        want = want + values[r];
    for (int i = 0; i < 40; i++)
        data[i] = values[rank];
    collective c = {.kind = COLLECTIVE_REDUCE, .in = data, .count = 40, .root = world_size - 1};
    c.out = rank == world_size - 1 ? sum : NULL;
    TRY(process_group_run(group, &c, NULL));
    for (int i = 0; i < 40; i++)
        if (rank == world_size - 1 && (sum[i] < want || sum[i] > want))
            return FAIL(STATUS_INVALID, "[%d] is %g, want %g", i, (double)sum[i], (double)want);
    return STATUS_OK;
}

status collectives_reduce(process_group *group, int rank, int world_size, void *arg)
{
    static kind_fn *const kinds[] = {reduce};
    TRY(do_kinds(group, kinds, 1, *(const memory_kind *)arg));
    return reduce_in_rank_order(group, rank, world_size);
}

/* A reduce to the last rank and a broadcast from it: every byte has its sender and its receiver. */
status collectives_traffic(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 1000 };
    float data[COUNT] = {0};
    int64_t moved[2];
    uint64_t sent[2], received[2];
    (void)arg;
    process_group_traffic(group, &sent[0], &received[0]);
    collective c = {.kind = COLLECTIVE_REDUCE, .in = data, .out = data, .count = COUNT};
    c.root = world_size - 1;
    TRY(process_group_run(group, &c, NULL));
    process_group_traffic(group, &sent[1], &received[1]);
    uint64_t want_sent = rank == world_size - 1 ? 0 : sizeof data;
    uint64_t want_got = rank == world_size - 1 ? sizeof data * (uint64_t)(world_size - 1) : 0;
    if (sent[1] - sent[0] != want_sent || received[1] - received[0] != want_got)
        return FAIL(STATUS_INVALID, "rank %d sends %llu and gets %llu bytes in a reduce", rank,
                    (unsigned long long)(sent[1] - sent[0]),
                    (unsigned long long)(received[1] - received[0]));
    TRY(process_group_broadcast(group, data, COUNT, DTYPE_F32, world_size - 1, NULL));
    process_group_traffic(group, &sent[0], &received[0]);
    moved[0] = (int64_t)(sent[0] - sent[1]);
    moved[1] = (int64_t)(received[0] - received[1]);
    TRY(process_group_all_reduce(group, moved, 2, DTYPE_I64, REDUCE_SUM, NULL));
    int64_t want = (int64_t)sizeof data * (world_size - 1);
    if (moved[0] != want || moved[1] != want)
        return FAIL(STATUS_INVALID, "a broadcast sends %lld and gets %lld bytes, want %lld",
                    (long long)moved[0], (long long)moved[1], (long long)want);
    return STATUS_OK;
}
