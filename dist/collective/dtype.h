/* What collectives move and how they combine it. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_DTYPE_H
#define MNIST_DDP_DIST_COLLECTIVE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dtype {
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_BF16, /* base/half.h */
    DTYPE_F16,
    DTYPE_U8,
    DTYPE_COUNT,
} dtype;

/* REDUCE_AVG is the sum divided by the number of ranks; integers are cut towards zero. */
typedef enum reduce_op {
    REDUCE_SUM,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_PROD,
    REDUCE_AVG,
    REDUCE_OP_COUNT,
} reduce_op;

size_t dtype_size(dtype type); /* bytes */
bool dtype_is_float(dtype type);
const char *dtype_name(dtype type);       /* "f32" */
const char *reduce_op_name(reduce_op op); /* "sum" */

#ifdef __cplusplus
}
#endif
#endif
