#include "dist/collective/collective.h"

#include "base/memory.h"
#include "dist/collective/reduce.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
    uintptr_t at = row * (size_t)rank; /* of the row that in place is */
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
