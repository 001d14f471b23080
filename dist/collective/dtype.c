#include "dist/collective/dtype.h"

#include <stdint.h>

typedef struct dtype_facts {
    const char *name;
    size_t size_bytes;
    bool is_float;
} dtype_facts;

static const dtype_facts DTYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", sizeof(float), true},    [DTYPE_F64] = {"f64", sizeof(double), true},
    [DTYPE_I64] = {"i64", sizeof(int64_t), false}, [DTYPE_BF16] = {"bf16", sizeof(uint16_t), true},
    [DTYPE_F16] = {"f16", sizeof(uint16_t), true}, [DTYPE_U8] = {"u8", sizeof(uint8_t), false},
};

size_t dtype_size(dtype type)
{
    return (size_t)type < DTYPE_COUNT ? DTYPES[type].size_bytes : sizeof(int64_t);
}

bool dtype_is_float(dtype type)
{
    return (size_t)type < DTYPE_COUNT && DTYPES[type].is_float;
}

const char *dtype_name(dtype type)
{
    return (size_t)type < DTYPE_COUNT ? DTYPES[type].name : "?";
}

const char *reduce_op_name(reduce_op op)
{
    static const char *const names[REDUCE_OP_COUNT] = {"sum", "min", "max", "prod", "avg"};
    return (size_t)op < REDUCE_OP_COUNT ? names[op] : "?";
}
