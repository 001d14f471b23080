/* How kernels start and declare shared memory: in one place, so that they also build for the
 * emulated device of tests/emulator. Kernels start through LAUNCH only. */
#ifndef MNIST_DDP_KERNELS_CUDA_LAUNCH_CUH
#define MNIST_DDP_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

/* LAUNCH(stream, blocks, threads, kernel, arguments...): one-dimensional; followed by
 * CUDA_CALL(cudaGetLastError()). A kernel that is a template stands in parentheses.
 * SHARED(type, name, count): uninitialised shared memory of the block, `name` an array or pointer.
 * UNROLL before a loop: its body is written out for every turn, so that arrays stay in registers.
 */
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
