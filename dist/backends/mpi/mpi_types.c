/* MPI has no 16-bit floats: they travel as 16-bit integers, with reductions of our own. So do sums
 * of bytes: Open MPI's stay at 255 on processors with AVX, and ours wrap. */
#include "dist/backends/mpi/mpi_types.h"

#include "dist/backends/mpi/mpi_process.h"
#include "dist/collective/collective.h"

#define DEFINE_OP(name, type, op) \
    static void name(void *in, void *inout, int *count, MPI_Datatype *of) \
    { \
        (void)of; \
        reduce_fold(type, op, inout, in, (size_t)*count); \
    }

DEFINE_OP(sum_bf16, DTYPE_BF16, REDUCE_SUM)
DEFINE_OP(min_bf16, DTYPE_BF16, REDUCE_MIN)
DEFINE_OP(max_bf16, DTYPE_BF16, REDUCE_MAX)
DEFINE_OP(prod_bf16, DTYPE_BF16, REDUCE_PROD)
DEFINE_OP(sum_f16, DTYPE_F16, REDUCE_SUM)
DEFINE_OP(min_f16, DTYPE_F16, REDUCE_MIN)
DEFINE_OP(max_f16, DTYPE_F16, REDUCE_MAX)
DEFINE_OP(prod_f16, DTYPE_F16, REDUCE_PROD)

DEFINE_OP(sum_u8, DTYPE_U8, REDUCE_SUM)

static MPI_User_function *const HALVES[2][REDUCE_OP_COUNT] = {
    {sum_bf16, min_bf16, max_bf16, prod_bf16, sum_bf16},
    {sum_f16, min_f16, max_f16, prod_f16, sum_f16}};
static MPI_Op halves[2][REDUCE_OP_COUNT], sum_of_bytes;

status mpi_types_make(void)
{
    for (int type = 0; type < 2; type++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            TRY(MPI_CALL(MPI_Op_create(HALVES[type][op], 1, &halves[type][op])));
    return MPI_CALL(MPI_Op_create(sum_u8, 1, &sum_of_bytes));
}

MPI_Datatype mpi_types_data(dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return MPI_FLOAT;
    case DTYPE_F64:
        return MPI_DOUBLE;
    case DTYPE_I64:
        return MPI_INT64_T;
    case DTYPE_BF16:
    case DTYPE_F16:
        return MPI_UINT16_T;
    case DTYPE_U8:
    case DTYPE_COUNT:
        break;
    }
    return MPI_UINT8_T;
}

MPI_Op mpi_types_op(dtype type, reduce_op op)
{
    if (type == DTYPE_BF16 || type == DTYPE_F16)
        return halves[type == DTYPE_F16][op];
    if (type == DTYPE_U8 && (op == REDUCE_SUM || op == REDUCE_AVG))
        return sum_of_bytes;
    switch (op) {
    case REDUCE_MIN:
        return MPI_MIN;
    case REDUCE_MAX:
        return MPI_MAX;
    case REDUCE_PROD:
        return MPI_PROD;
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_OP_COUNT:
        break;
    }
    return MPI_SUM;
}
