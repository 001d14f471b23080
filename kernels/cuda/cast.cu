#include "kernels/cuda/half_copy.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

/* A thread's elements: two reads and one write of 16 bytes. */
constexpr int RUN = 8;
constexpr unsigned THREADS = 256;

template <typename T>
static __global__ void cast_kernel(const float *from, size_t count, bool aligned, T *to)
{
    size_t at = thread_index() * RUN;
    if (aligned && at + RUN <= count) {
        pack<float, 4> low = load_pack<4>(from + at), high = load_pack<4>(from + at + 4);
        pack<T, RUN> out;
        for (int j = 0; j < 4; j++) {
            out.v[j] = from_float<T>(low.v[j]);
            out.v[4 + j] = from_float<T>(high.v[j]);
        }
        store_pack(to + at, out);
        return;
    }
    for (size_t end = at + RUN < count ? at + RUN : count; at < end; at++)
        to[at] = from_float<T>(from[at]);
}

template <typename T>
static status cast_to(const cuda_state *s, const float *from, size_t count, T *to)
{
    LAUNCH(s->stream, blocks_for((count + RUN - 1) / RUN, THREADS), THREADS, (cast_kernel<T>), from,
           count, are_aligned(from, to), to);
    return CUDA_CALL(cudaGetLastError());
}

status cuda_cast(device *dev, const float *from, size_t count, void *to)
{
    const cuda_state *s = cuda_state_of(dev);
    if (dev->precision == PRECISION_BF16)
        return cast_to(s, from, count, static_cast<__nv_bfloat16 *>(to));
    ASSERT(dev->precision == PRECISION_F16);
    return cast_to(s, from, count, static_cast<__half *>(to));
}
