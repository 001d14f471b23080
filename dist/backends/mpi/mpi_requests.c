/* What is reduced or broadcast goes in pieces, all under way at once: while one is added up, others
 * travel. */
#include "dist/backends/mpi/mpi_requests.h"

#include "base/memory.h"
#include "dist/backends/mpi/mpi_process.h"
#include "dist/backends/mpi/mpi_types.h"
#include "dist/collective/collective.h"

#include <limits.h>
#include <stdlib.h>

enum { PIECE_BYTES = 256 << 10 };

/* What one call moves. */
typedef struct span {
    const void *in; /* or MPI_IN_PLACE */
    void *out;
    int count;
} span;

/* The input times the prescale, at `out`, which may be the input's place. */
static void copy_scaled(const collective *c, void *out, size_t count)
{
    const void *in = c->in;
    reduce_parts parts = {&in, 1, &out, 1};
    reduce_into(c->type, REDUCE_SUM, c->prescale, &parts, count);
}

static bool lies_in(const void *at, const void *begin, size_t size_bytes)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)begin;
    return (uintptr_t)at >= (uintptr_t)begin && offset < size_bytes;
}

/* Sets *in to what MPI is to read of a reduction: the input as it is, scaled, or in place. */
static status prepare_input(const mpi_place *p, const collective *c, mpi_requests *r,
                            const void **in)
{
    bool is_scaled = c->prescale < 1 || c->prescale > 1;
    bool has_whole_out =
        c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && c->root == p->rank);
    size_t size_bytes = collective_in_bytes(c, p->rank, p->world_size);
    bool overlaps = c->kind == COLLECTIVE_REDUCE_SCATTER && lies_in(c->out, c->in, size_bytes);
    *in = c->in;
    if (has_whole_out) {
        if (is_scaled)
            copy_scaled(c, c->out, c->count);
        if (is_scaled || c->in == c->out)
            *in = MPI_IN_PLACE;
    } else if (is_scaled || overlaps) {
        TRY(memory_alloc(size_bytes, &r->scratch));
        copy_scaled(c, r->scratch, size_bytes / dtype_size(c->type));
        *in = r->scratch;
    }
    return STATUS_OK;
}

static int start_piece(const mpi_place *p, const collective *c, span s, MPI_Request *out)
{
    MPI_Datatype type = mpi_types_data(c->type);
    MPI_Op op = mpi_types_op(c->type, c->op);
    if (c->kind == COLLECTIVE_ALL_REDUCE)
        return MPI_Iallreduce(s.in, s.out, s.count, type, op, p->comm, out);
    if (c->kind == COLLECTIVE_REDUCE)
        return MPI_Ireduce(s.in, s.out, s.count, type, op, c->root, p->comm, out);
    return MPI_Ibcast(s.out, s.count, type, c->root, p->comm, out);
}

static void *moved_on(const void *at, size_t offset)
{
    return at == NULL ? NULL : (unsigned char *)(uintptr_t)at + offset;
}

/* The pieces are the same on all ranks. */
static status start_pieces(const mpi_place *p, const collective *c, const void *in,
                           mpi_requests *out)
{
    size_t size = dtype_size(c->type), some;
    size_t piece = PIECE_BYTES / size, least = c->count / MPI_REQUESTS_MOST + 1;
    if (piece < least)
        piece = least;
    if (piece > INT_MAX)
        return FAIL(STATUS_INVALID, "backend mpi: %s of %zu elements in %d pieces",
                    collective_kind_name(c->kind), c->count, (int)MPI_REQUESTS_MOST);
    for (size_t at = 0; at < c->count; at += some) {
        some = c->count - at < piece ? c->count - at : piece;
        span s = {in == MPI_IN_PLACE ? in : moved_on(in, at * size), moved_on(c->out, at * size),
                  (int)some};
        TRY(MPI_CALL(start_piece(p, c, s, &out->list[out->n])));
        out->n++;
    }
    return STATUS_OK;
}

/* The row of this rank, in an array of all ranks' rows. */
static const void *own_row(const mpi_place *p, const collective *c, const void *rows)
{
    return (const unsigned char *)rows + c->count * dtype_size(c->type) * (size_t)p->rank;
}

static int start_rows(const mpi_place *p, const collective *c, const void *in, MPI_Request *out)
{
    MPI_Datatype t = mpi_types_data(c->type);
    int n = (int)c->count;
    bool is_root = c->root == p->rank;
    switch (c->kind) {
    case COLLECTIVE_ALL_GATHER:
        if (c->in == own_row(p, c, c->out))
            in = MPI_IN_PLACE;
        return MPI_Iallgather(in, n, t, c->out, n, t, p->comm, out);
    case COLLECTIVE_GATHER:
        if (is_root && c->in == own_row(p, c, c->out))
            in = MPI_IN_PLACE;
        return MPI_Igather(in, n, t, c->out, n, t, c->root, p->comm, out);
    case COLLECTIVE_SCATTER:
        return MPI_Iscatter(in, n, t,
                            is_root && c->out == own_row(p, c, c->in) ? MPI_IN_PLACE : c->out, n, t,
                            c->root, p->comm, out);
    case COLLECTIVE_ALL_TO_ALL:
        return MPI_Ialltoall(c->in == c->out ? MPI_IN_PLACE : in, n, t, c->out, n, t, p->comm, out);
    default: /* reduce_scatter */
        return MPI_Ireduce_scatter_block(in, c->out, n, t, mpi_types_op(c->type, c->op), p->comm,
                                         out);
    }
}

static status start_call(const mpi_place *p, const collective *c, const void *in, mpi_requests *out)
{
    MPI_Datatype type = mpi_types_data(c->type);
    MPI_Request *request = &out->list[0];
    int count = (int)c->count;
    if (c->count > INT_MAX)
        return FAIL(STATUS_INVALID, "backend mpi: %s of %zu elements: MPI counts to %d",
                    collective_kind_name(c->kind), c->count, INT_MAX);
    out->n = 1;
    switch (c->kind) {
    case COLLECTIVE_BARRIER:
        return MPI_CALL(MPI_Ibarrier(p->comm, request));
    case COLLECTIVE_SEND:
        return MPI_CALL(MPI_Isend(in, count, type, c->root, c->tag, p->comm, request));
    case COLLECTIVE_RECV:
        return MPI_CALL(MPI_Irecv(c->out, count, type, c->root, c->tag, p->comm, request));
    default:
        return MPI_CALL(start_rows(p, c, in, request));
    }
}

status mpi_requests_start(const mpi_place *place, const collective *c, mpi_requests *out)
{
    const void *in = c->in;
    if (collective_reduces(c->kind))
        TRY(prepare_input(place, c, out, &in));
    bool in_pieces = c->kind == COLLECTIVE_ALL_REDUCE || c->kind == COLLECTIVE_REDUCE ||
                     c->kind == COLLECTIVE_BROADCAST;
    return in_pieces ? start_pieces(place, c, in, out) : start_call(place, c, in, out);
}

status mpi_requests_test(mpi_requests *r, bool *done)
{
    for (int flag = 1; r->done < r->n && flag != 0; r->done += flag)
        TRY(MPI_CALL(MPI_Test(&r->list[r->done], &flag, &r->latest)));
    *done = r->done == r->n;
    return STATUS_OK;
}

status mpi_requests_finish(const mpi_place *place, const collective *c, mpi_requests *r)
{
    int got = 0;
    free(r->scratch);
    r->scratch = NULL;
    if (collective_reduces(c->kind) && c->op == REDUCE_AVG &&
        collective_out_bytes(c, place->rank, place->world_size) > 0)
        reduce_divide(c->type, c->out, c->count, place->world_size);
    if (c->kind != COLLECTIVE_RECV)
        return STATUS_OK;
    TRY(MPI_CALL(MPI_Get_count(&r->latest, mpi_types_data(c->type), &got)));
    if (got >= 0 && (size_t)got == c->count)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "rank %d has sent %d elements, but this rank takes %zu", c->root,
                got, c->count);
}
