/* gather, scatter and all_to_all are made of sends and receives of rows. NCCL 2.28 has calls for
 * them, which do the same; older releases, which serve as well, have not. */
#include "dist/backends/nccl/nccl_operation.h"

static ncclDataType_t type_of(dtype type)
{
    static const ncclDataType_t types[DTYPE_COUNT] = {
        [DTYPE_F32] = ncclFloat32,   [DTYPE_F64] = ncclFloat64, [DTYPE_I64] = ncclInt64,
        [DTYPE_BF16] = ncclBfloat16, [DTYPE_F16] = ncclFloat16, [DTYPE_U8] = ncclUint8,
    };
    return types[type];
}

static ncclRedOp_t op_of(reduce_op op)
{
    static const ncclRedOp_t ops[REDUCE_OP_COUNT] = {
        [REDUCE_SUM] = ncclSum,   [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax,
        [REDUCE_PROD] = ncclProd, [REDUCE_AVG] = ncclAvg,
    };
    return ops[op];
}

status nccl_operation_check(const collective *c)
{
    if (collective_is_send_or_recv(c->kind) && c->tag != 0)
        return FAIL(STATUS_INVALID,
                    "backend nccl has no tags: messages between two ranks come in the order in "
                    "which they are sent (tag %d, want 0)",
                    c->tag);
    return STATUS_OK;
}

/* Which rows this rank sends to a peer and gets from it. */
typedef struct row_moves {
    bool sends, gets;
    const char *from;
    char *to;
} row_moves;

static row_moves moves_of(const nccl_place *place, const collective *c, int peer)
{
    size_t at = c->count * dtype_size(c->type) * (size_t)peer;
    row_moves all = {true, true, (const char *)c->in + at, (char *)c->out + at};
    if (c->kind == COLLECTIVE_GATHER)
        return (row_moves){peer == c->root, place->rank == c->root, c->in, all.to};
    if (c->kind == COLLECTIVE_SCATTER)
        return (row_moves){place->rank == c->root, peer == c->root, all.from, c->out};
    return all;
}

/* A row of its own goes through NCCL too, unless it is in its place. */
static ncclResult_t move_rows(const nccl_place *place, const collective *c)
{
    ncclDataType_t type = type_of(c->type);
    for (int peer = 0; peer < place->world_size; peer++) {
        row_moves row = moves_of(place, c, peer);
        ncclResult_t result = ncclSuccess;
        if (peer == place->rank && row.from == row.to)
            continue;
        if (row.sends)
            result = ncclSend(row.from, c->count, type, peer, place->comm, place->stream);
        if (row.gets && (result == ncclSuccess || result == ncclInProgress))
            result = ncclRecv(row.to, c->count, type, peer, place->comm, place->stream);
        if (result != ncclSuccess && result != ncclInProgress)
            return result;
    }
    return ncclSuccess;
}

/* A barrier is an all_reduce of one number. */
ncclResult_t nccl_operation_issue(const nccl_place *place, const collective *c)
{
    ncclComm_t comm = place->comm;
    cudaStream_t stream = place->stream;
    ncclDataType_t type = type_of(c->type);
    ncclRedOp_t op = op_of(c->op);
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return ncclAllReduce(c->in, c->out, c->count, type, op, comm, stream);
    case COLLECTIVE_BARRIER:
        return ncclAllReduce(c->in, c->out, 1, ncclFloat32, ncclSum, comm, stream);
    case COLLECTIVE_BROADCAST:
        return ncclBroadcast(c->in, c->out, c->count, type, c->root, comm, stream);
    case COLLECTIVE_REDUCE:
        return ncclReduce(c->in, c->out, c->count, type, op, c->root, comm, stream);
    case COLLECTIVE_ALL_GATHER:
        return ncclAllGather(c->in, c->out, c->count, type, comm, stream);
    case COLLECTIVE_REDUCE_SCATTER:
        return ncclReduceScatter(c->in, c->out, c->count, type, op, comm, stream);
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return move_rows(place, c);
    case COLLECTIVE_SEND:
        return ncclSend(c->in, c->count, type, c->root, comm, stream);
    case COLLECTIVE_RECV:
        return ncclRecv(c->out, c->count, type, c->root, comm, stream);
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    return ncclInvalidArgument;
}
