#include "nccl_reduce.h"
#include "cublaslt_product.h"

#include <algorithm>
#include <type_traits>

namespace emulated
{

namespace
{

enum : size_t { BLOCK = 4096 /* elements */ };

template <typename T> T combine(T a, T b, ncclRedOp_t op)
{
    if (op == ncclSum || op == ncclAvg)
        return a + b;
    if (op == ncclProd)
        return a * b;
    if (op == ncclMax)
        return b > a ? b : a;
    return b < a ? b : a;
}

/* Sums of integers wrap. */
int64_t combine(int64_t a, int64_t b, ncclRedOp_t op)
{
    if (op == ncclSum || op == ncclAvg)
        return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    if (op == ncclProd)
        return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    return op == ncclMax ? std::max(a, b) : std::min(a, b);
}

uint8_t combine(uint8_t a, uint8_t b, ncclRedOp_t op)
{
    return static_cast<uint8_t>(combine(int64_t(a), int64_t(b), op));
}

template <typename T>
void reduce(const std::vector<const void *> &pieces, ncclRedOp_t op, size_t count, void *out)
{
    auto *to = static_cast<T *>(out);
    T ranks = static_cast<T>(pieces.size());
    bool averages = op == ncclAvg, is_float = std::is_floating_point_v<T>;
    T factor = static_cast<T>(averages && is_float ? 1 / ranks : T(1));
    T divisor = averages && !is_float ? ranks : T(1);
    for (size_t piece = 0; piece < pieces.size(); piece++) {
        auto *from = static_cast<const T *>(pieces[piece]);
        for (size_t i = 0; i < count; i++) {
            T value = static_cast<T>(from[i] * factor);
            to[i] = piece == 0 ? value : combine(to[i], value, op);
        }
    }
    for (size_t i = 0; i < count && divisor != 1; i++)
        to[i] = static_cast<T>(to[i] / divisor);
}

void reduce_half(const std::vector<const void *> &pieces, cudaDataType_t type, ncclRedOp_t op,
                 size_t count, void *out)
{
    floats sums = make_floats(BLOCK), values = make_floats(BLOCK);
    size_t width = element_bytes(type);
    char rounded[4];
    float factor = op == ncclAvg ? 1.0f / static_cast<float>(pieces.size()) : 1;
    store_floats(&factor, 1, type, rounded);
    load_floats(rounded, type, 1, &factor);
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t now = std::min<size_t>(BLOCK, count - first);
        for (size_t piece = 0; piece < pieces.size(); piece++) {
            float *to = piece == 0 ? sums.get() : values.get();
            load_floats(static_cast<const char *>(pieces[piece]) + first * width, type, now, to);
            for (size_t i = 0; i < now; i++)
                to[i] *= factor;
            for (size_t i = 0; i < now && piece > 0; i++)
                sums[i] = combine(sums[i], values[i], op);
        }
        store_floats(sums.get(), now, type, static_cast<char *>(out) + first * width);
    }
}

} // namespace

size_t nccl_type_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    case ncclFloat32:
        return 4;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    }
    return 0;
}

void nccl_reduce(const std::vector<const void *> &pieces, ncclDataType_t type, ncclRedOp_t op,
                 size_t count, void *out)
{
    switch (type) {
    case ncclUint8:
        return reduce<uint8_t>(pieces, op, count, out);
    case ncclInt64:
        return reduce<int64_t>(pieces, op, count, out);
    case ncclFloat64:
        return reduce<double>(pieces, op, count, out);
    case ncclFloat32:
        return reduce<float>(pieces, op, count, out);
    case ncclFloat16:
        return reduce_half(pieces, CUDA_R_16F, op, count, out);
    case ncclBfloat16:
        return reduce_half(pieces, CUDA_R_16BF, op, count, out);
    }
}

} // namespace emulated
