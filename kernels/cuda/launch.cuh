/* How kernels are launched and declare shared memory. It is in one place, so that they also build
 * for the emulated device of tests/emulator. Kernels are launched through LAUNCH only. */
#ifndef MNIST_DDP_KERNELS_CUDA_LAUNCH_CUH
#define MNIST_DDP_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

/* LAUNCH(stream, blocks, threads, kernel, arguments...): one-dimensional; followed by
 * CUDA_CALL(cudaGetLastError()). A kernel that is a template stands in parentheses.
 * SHARED(type, name, count): uninitialised shared memory of the block, `name` an array or pointer.
 * UNROLL before a loop: it is unrolled, so that arrays stay in registers. */
#ifdef CUDA_EMULATED
#include <emulated_launch.h>
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#define LAUNCH(stream, blocks, threads, kernel, ...) \
    kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#define SHARED(type, name, count) __shared__ type name[count]
#endif

#endif
