#include "dist/collective/collective.h"

#include "base/memory.h"
#include "dist/collective/reduce.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *collective_kind_name(collective_kind kind)
{
    static const char *const names[] = {"all_reduce", "broadcast",      "barrier", "reduce",
                                        "all_gather", "reduce_scatter", "send",    "recv"};
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
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

size_t collective_in_bytes(const collective *c, int world_size)
{
    size_t bytes = c->count * dtype_size(c->type);
    if (c->kind == COLLECTIVE_REDUCE_SCATTER)
        return bytes * (size_t)world_size;
    return c->kind == COLLECTIVE_BARRIER || c->kind == COLLECTIVE_RECV ? 0 : bytes;
}

size_t collective_out_bytes(const collective *c, int rank, int world_size)
{
    size_t bytes = c->count * dtype_size(c->type);
    if (c->kind == COLLECTIVE_ALL_GATHER)
        return bytes * (size_t)world_size;
    bool nothing = c->kind == COLLECTIVE_BARRIER || c->kind == COLLECTIVE_SEND ||
                   (c->kind == COLLECTIVE_REDUCE && c->root != rank);
    return nothing ? 0 : bytes;
}

static status check_other_rank(const collective *c, int rank, int world_size)
{
    const char *name = collective_kind_name(c->kind);
    bool has_root = c->kind == COLLECTIVE_BROADCAST || c->kind == COLLECTIVE_REDUCE;
    bool has_peer = c->kind == COLLECTIVE_SEND || c->kind == COLLECTIVE_RECV;
    if ((has_root || has_peer) && (c->root < 0 || c->root >= world_size))
        return FAIL(STATUS_INVALID, "%s %s rank %d of %d", name,
                    c->kind == COLLECTIVE_BROADCAST || c->kind == COLLECTIVE_RECV ? "from" : "to",
                    c->root, world_size);
    if (has_peer && c->root == rank)
        return FAIL(STATUS_INVALID, "%s between rank %d and itself", name, rank);
    return STATUS_OK;
}

/* If one array has a row per rank, the other may be this rank's row of it; else they must not
 * overlap.
 */
static status check_overlap(const collective *c, int rank, int world_size)
{
    size_t row = c->count * dtype_size(c->type);
    uintptr_t in = (uintptr_t)c->in, out = (uintptr_t)c->out;
    uintptr_t in_end = in + collective_in_bytes(c, world_size);
    uintptr_t out_end = out + collective_out_bytes(c, rank, world_size);
    uintptr_t many = c->kind == COLLECTIVE_ALL_GATHER ? out : in,
              one = c->kind == COLLECTIVE_ALL_GATHER ? in : out;
    if (in >= out_end || out >= in_end || one == many + row * (size_t)rank)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: in and out overlap, and not at row %d",
                collective_kind_name(c->kind), rank);
}

status collective_check(const collective *c, int rank, int world_size)
{
    const char *name = collective_kind_name(c->kind);
    size_t rows, size_bytes;
    TRY(check_other_rank(c, rank, world_size));
    if ((unsigned)c->type > DTYPE_I64 || (unsigned)c->op > REDUCE_MAX)
        return FAIL(STATUS_INVALID, "%s: dtype %d or reduce_op %d does not exist", name,
                    (int)c->type, (int)c->op);
    if (c->type == DTYPE_I64 && (c->prescale < 1 || c->prescale > 1))
        return FAIL(STATUS_INVALID, "a prescale of %g is for float types", (double)c->prescale);
    bool has_rows = c->kind == COLLECTIVE_ALL_GATHER || c->kind == COLLECTIVE_REDUCE_SCATTER;
    if (!memory_product(dtype_size(c->type), has_rows ? (size_t)world_size : 1, &rows) ||
        !memory_product(c->count, rows, &size_bytes) || size_bytes > PTRDIFF_MAX)
        return FAIL(STATUS_INVALID, "%s of %zu elements: more than memory can hold", name,
                    c->count);
    if ((c->in == NULL && collective_in_bytes(c, world_size) > 0) ||
        (c->out == NULL && collective_out_bytes(c, rank, world_size) > 0))
        return FAIL(STATUS_INVALID, "%s of %zu elements at NULL", name, c->count);
    return has_rows ? check_overlap(c, rank, world_size) : STATUS_OK;
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
        return (rank_traffic){self * bytes, others * bytes};
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
        return (rank_traffic){(n - 1) * bytes, (n - 1) * bytes};
    case COLLECTIVE_SEND:
        return (rank_traffic){bytes, 0};
    case COLLECTIVE_RECV:
        return (rank_traffic){0, bytes};
    case COLLECTIVE_BARRIER:
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
