/* The types of activations: read and written as float. */
#ifndef MNIST_DDP_KERNELS_CUDA_ELEMENT_CUH
#define MNIST_DDP_KERNELS_CUDA_ELEMENT_CUH

#include "kernels/device.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

static __device__ inline float to_float(float x)
{
    return x;
}

static __device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ inline float to_float(__half x)
{
    return __half2float(x);
}

/* Rounds to nearest even. */
template <typename T> static __device__ inline T from_float(float x);

template <> __device__ inline float from_float<float>(float x)
{
    return x;
}

template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16(x);
}

template <> __device__ inline __half from_float<__half>(float x)
{
    return __float2half(x);
}

/* Rounds two neighbours: 16-bit ones by one instruction. */
static __device__ inline void round_pair(float low, float high, float *to)
{
    to[0] = low;
    to[1] = high;
}

static __device__ inline void round_pair(float low, float high, __nv_bfloat16 *to)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    to[0] = both.x;
    to[1] = both.y;
}

static __device__ inline void round_pair(float low, float high, __half *to)
{
    __half2 both = __floats2half2_rn(low, high);
    to[0] = both.x;
    to[1] = both.y;
}

/* Calls fn with a null pointer to the type of activations that `p` stands for. */
template <typename Fn> static inline auto with_element(precision p, Fn fn)
{
    if (p == PRECISION_BF16)
        return fn(static_cast<__nv_bfloat16 *>(nullptr));
    if (p == PRECISION_F16)
        return fn(static_cast<__half *>(nullptr));
    return fn(static_cast<float *>(nullptr));
}

#endif
