#include "dist/collective/dtype.h"

#include <stdint.h>

size_t dtype_size(dtype type)
{
    return type == DTYPE_F32 ? sizeof(float) : sizeof(int64_t);
}

const char *dtype_name(dtype type)
{
    static const char *const names[] = {"f32", "f64", "i64"};
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "?";
}

const char *reduce_op_name(reduce_op op)
{
    static const char *const names[] = {"sum", "min", "max"};
    return (size_t)op < sizeof names / sizeof names[0] ? names[op] : "?";
}
