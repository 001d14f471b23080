/* MPI has no 16-bit floats: they travel as 16-bit integers, with reductions of our own. */
#include "dist/backends/mpi/mpi_types.h"

#include "dist/backends/mpi/mpi_process.h"
#include "dist/collective/reduce.h"

#define DEFINE_HALF(name, type, op) \
    static void name(void *in, void *inout, int *count, MPI_Datatype *of) \
    { \
        (void)of; \
        reduce_fold(type, op, inout, in, (size_t)*count); \
    }

DEFINE_HALF(sum_bf16, DTYPE_BF16, REDUCE_SUM)
DEFINE_HALF(min_bf16, DTYPE_BF16, REDUCE_MIN)
DEFINE_HALF(max_bf16, DTYPE_BF16, REDUCE_MAX)
DEFINE_HALF(prod_bf16, DTYPE_BF16, REDUCE_PROD)
DEFINE_HALF(sum_f16, DTYPE_F16, REDUCE_SUM)
DEFINE_HALF(min_f16, DTYPE_F16, REDUCE_MIN)
DEFINE_HALF(max_f16, DTYPE_F16, REDUCE_MAX)
DEFINE_HALF(prod_f16, DTYPE_F16, REDUCE_PROD)

static MPI_User_function *const HALVES[2][REDUCE_OP_COUNT] = {
    {sum_bf16, min_bf16, max_bf16, prod_bf16, sum_bf16},
    {sum_f16, min_f16, max_f16, prod_f16, sum_f16}};
static MPI_Op halves[2][REDUCE_OP_COUNT];

status mpi_types_make(void)
{
    for (int type = 0; type < 2; type++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            TRY(MPI_CALL(MPI_Op_create(HALVES[type][op], 1, &halves[type][op])));
    return STATUS_OK;
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
