/* Elements that are read and written together. */
#ifndef MNIST_DDP_KERNELS_CUDA_VECTOR_CUH
#define MNIST_DDP_KERNELS_CUDA_VECTOR_CUH

#include "kernels/cuda/element.cuh"

#include <stddef.h>
#include <stdint.h>

/* N neighbours, aligned as a whole: at most 16 bytes, so that they are one access. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};

/* How many elements make one access of 16 bytes. */
template <typename T> constexpr int PACKED = 16 / (int)sizeof(T);

template <int N, typename T> static __device__ inline pack<T, N> load_pack(const T *from)
{
    return *reinterpret_cast<const pack<T, N> *>(from);
}

template <int N, typename T> static __device__ inline void store_pack(T *to, const pack<T, N> &p)
{
    *reinterpret_cast<pack<T, N> *>(to) = p;
}

/* Whether all of the arrays may be accessed 16 bytes at a time. NULL counts as such. */
template <typename... Pointers> static inline bool are_aligned(const Pointers *...arrays)
{
    return ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
}

/* Blocks of `threads` for one thread per item. */
static inline unsigned blocks_for(size_t items, unsigned threads)
{
    return (unsigned)((items + threads - 1) / threads);
}

/* The place of this thread among all of the launch, and how many they are. */
static __device__ inline size_t thread_index(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline size_t thread_count(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

#endif
