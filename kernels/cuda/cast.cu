/* float32 to 16 bits and back. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

/* A thread's elements: two accesses of 16 bytes to the floats and one to the others. */
constexpr int RUN = 8;
constexpr unsigned THREADS = 256;

/* Rounds the product to float32 first, as the host does. */
template <typename T>
static __global__ void cast_kernel(const float *from, size_t count, bool aligned, float factor,
                                   T *to)
{
    size_t at = thread_index() * RUN;
    if (aligned && at + RUN <= count) {
        pack<float, 4> low = load_pack<4>(from + at), high = load_pack<4>(from + at + 4);
        pack<T, RUN> out;
        for (int j = 0; j < 4; j++) {
            out.v[j] = from_float<T>(factor * low.v[j]);
            out.v[4 + j] = from_float<T>(factor * high.v[j]);
        }
        store_pack(to + at, out);
        return;
    }
    for (size_t end = at + RUN < count ? at + RUN : count; at < end; at++)
        to[at] = from_float<T>(factor * from[at]);
}

template <typename T>
static __global__ void widen_kernel(const T *from, size_t count, bool aligned, float *to)
{
    size_t at = thread_index() * RUN;
    if (aligned && at + RUN <= count) {
        pack<T, RUN> in = load_pack<RUN>(from + at);
        pack<float, 4> low, high;
        for (int j = 0; j < 4; j++) {
            low.v[j] = to_float(in.v[j]);
            high.v[j] = to_float(in.v[4 + j]);
        }
        store_pack(to + at, low);
        store_pack(to + at + 4, high);
        return;
    }
    for (size_t end = at + RUN < count ? at + RUN : count; at < end; at++)
        to[at] = to_float(from[at]);
}

static unsigned blocks_of(size_t count)
{
    return blocks_for((count + RUN - 1) / RUN, THREADS);
}

template <typename T>
static status narrow_to(const cuda_state *s, const float *from, size_t count, float factor, T *to)
{
    LAUNCH(s->stream, blocks_of(count), THREADS, (cast_kernel<T>), from, count,
           are_aligned(from, to), factor, to);
    return CUDA_CALL(cudaGetLastError());
}

template <typename T>
static status widen_from(const cuda_state *s, const T *from, size_t count, float *to)
{
    LAUNCH(s->stream, blocks_of(count), THREADS, (widen_kernel<T>), from, count,
           are_aligned(from, to), to);
    return CUDA_CALL(cudaGetLastError());
}

status cuda_narrow(device *dev, precision type, const float *from, size_t count, float factor,
                   void *to)
{
    const cuda_state *s = cuda_state_of(dev);
    if (type == PRECISION_BF16)
        return narrow_to(s, from, count, factor, static_cast<__nv_bfloat16 *>(to));
    ASSERT(type == PRECISION_F16);
    return narrow_to(s, from, count, factor, static_cast<__half *>(to));
}

status cuda_widen(device *dev, precision type, const void *from, size_t count, float *to)
{
    const cuda_state *s = cuda_state_of(dev);
    if (type == PRECISION_BF16)
        return widen_from(s, static_cast<const __nv_bfloat16 *>(from), count, to);
    ASSERT(type == PRECISION_F16);
    return widen_from(s, static_cast<const __half *>(from), count, to);
}
