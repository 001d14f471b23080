/* The kinds that training does not need. */
#include "tests/support/collective_data.h"

static const size_t COUNTS[] = {0, 1, 7, 1000, 7919, 120001};

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
        TRY(process_group_reduce(group, d->call_in, rank == root ? d->call_out : NULL, count, type,
                                 op, root, d->stream));
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
    TRY(process_group_reduce_scatter(group, d->call_in, d->call_out, count, type, op, d->stream));
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

status collectives_further(process_group *group, int rank, int world_size, void *arg)
{
    typedef status kind_fn(process_group *, collective_data *, dtype, size_t);
    static kind_fn *const kinds[] = {reduce, all_gather, reduce_scatter, send_around};
    (void)rank;
    (void)world_size;
    collective_data d;
    TRY(collective_data_open(group, *(const memory_kind *)arg, MAX_COUNT * MAX_WORLD * 8, &d));
    status st = STATUS_OK;
    for (int kind = 0; kind < 4 && st == STATUS_OK; kind++)
        for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
            st = kinds[kind](group, &d, (dtype)((kind + n) % 3), COUNTS[n]);
    collective_data_close(&d);
    return st;
}
