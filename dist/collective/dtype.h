/* What collectives move and how they combine it. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_DTYPE_H
#define MNIST_DDP_DIST_COLLECTIVE_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dtype { DTYPE_F32, DTYPE_F64, DTYPE_I64 } dtype;
typedef enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX } reduce_op;

size_t dtype_size(dtype type);            /* bytes */
const char *dtype_name(dtype type);       /* "f32" */
const char *reduce_op_name(reduce_op op); /* "sum" */

#ifdef __cplusplus
}
#endif
#endif
