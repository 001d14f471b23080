/* A planned matmul of cuBLASLt: D = op(A) op(B) + beta D with an epilogue. All matrices are
 * column-major: a row-major (N, I) is its (I x N). */
#ifndef MNIST_DDP_KERNELS_CUDA_MATMUL_H
#define MNIST_DDP_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda_state.h"

typedef struct matmul matmul;

/* op(A) is m x k, op(B) k x n, D m x n. All are packed: a leading dimension is the number of rows,
 * as stored. */
typedef struct matmul_shape {
    bool trans_a, trans_b;
    int m, n, k;
    cudaDataType_t in, out; /* of A and B; of D and the bias */
    cublasLtEpilogue_t epilogue;
    int64_t aux_ld; /* bits, if the epilogue writes or reads a relu mask */
} matmul_shape;

/* Device memory. */
typedef struct matmul_arrays {
    const void *a, *b;
    void *d;
    const void *bias; /* of the epilogue: read, or written if it is a bias gradient */
    void *aux;
} matmul_arrays;

/* Chooses an algorithm for arrays that are aligned like these: the library's first choice that fits
 * the workspace, so the same one in every process. *out = NULL if the library refuses such a
 * matmul, which is logged and noted once per epilogue and types (choices.h); for
 * CUBLASLT_EPILOGUE_DEFAULT that is STATUS_DEVICE. Enqueues nothing. */
status matmul_create(device *dev, const matmul_shape *shape, const matmul_arrays *like,
                     matmul **out);
void matmul_destroy(matmul *p); /* accepts NULL */

/* Enqueues it. *ran = false if the library refuses only now: then nothing is enqueued. */
status matmul_run(matmul *p, const matmul_arrays *arrays, float beta, bool *ran);

/* The alignment of all arrays: 4, 8 or 16 bytes, or less. */
unsigned matmul_alignment(const matmul_arrays *arrays);

#endif
