/* Matrix products of the emulated libraries: float32, blocked, in a fixed order of sums. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CUBLASLT_PRODUCT_H
#define MNIST_DDP_TESTS_EMULATOR_CUBLASLT_PRODUCT_H

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

namespace emulated
{

/* An array of floats that are not set. */
using floats = std::unique_ptr<float[]>;
floats make_floats(size_t count);

/* Element (i, j) is at[i * row + j * col]. */
struct matrix {
    const float *at;
    ptrdiff_t row, col;
};

/* c (m, n), rows of n floats without gaps, += a (m, k) b (k, n). Products are summed in runs of 256
 * along k, runs in their order: same inputs, same bits. */
void multiply_add(size_t m, size_t n, size_t k, matrix a, matrix b, float *c);

/* Bytes of one element of CUDA_R_32F, CUDA_R_16BF or CUDA_R_16F; 0 for other types. */
size_t element_bytes(cudaDataType_t type);

/* Converts `count` elements that lie side by side. store_floats rounds to nearest even. */
void load_floats(const void *from, cudaDataType_t type, size_t count, float *to);
void store_floats(const float *from, size_t count, cudaDataType_t type, void *to);

/* Keeps 10 bits of each fraction, rounded to nearest even: what a tensor core sees of a float. */
void round_to_tf32(float *values, size_t count);

/* What a library is to refuse so that its callers must do without stands in
 * MNIST_DDP_EMULATED_REFUSE: names parted by commas. "name:code": with that code, 0: it answers
 * that it has nothing. "name:code@call": it promises to do it, and refuses when it is called. */
struct refusal {
    bool wanted, at_call;
    int code; /* -1: not said */
};
refusal find_refusal(const char *name);

} // namespace emulated

#endif
