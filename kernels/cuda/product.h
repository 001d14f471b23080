/* One matrix product of cuBLASLt, planned: D = op(A) op(B) + beta D with an epilogue. All matrices
 * are column-major, as the library sees them: a row-major (N, I) is its (I x N). */
#ifndef MNIST_DDP_KERNELS_CUDA_PRODUCT_H
#define MNIST_DDP_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/cuda_state.h"

typedef struct product product;

/* op(A) is m x k, op(B) k x n, D m x n. All are packed: a leading dimension is the number of rows,
 * as stored. */
typedef struct product_shape {
    bool trans_a, trans_b;
    int m, n, k;
    cudaDataType_t in, out; /* of A and B; of D and the bias */
    cublasLtEpilogue_t epilogue;
    int64_t aux_ld; /* bits, where the epilogue writes or reads a relu's mask */
} product_shape;

/* Device memory. */
typedef struct product_arrays {
    const void *a, *b;
    void *d;
    const void *bias; /* of the epilogue: read, or written where it is a bias gradient */
    void *aux;
} product_arrays;

/* Chooses an algorithm for arrays that are aligned like these: the library's first choice that fits
 * the workspace, so the same one in every process. *out = NULL where the library refuses such a
 * product, which is logged and noted once per epilogue and types (choices.h); for
 * CUBLASLT_EPILOGUE_DEFAULT that is STATUS_DEVICE. Enqueues nothing. */
status product_create(device *dev, const product_shape *shape, const product_arrays *like,
                      product **out);
void product_destroy(product *p); /* accepts NULL */

/* Enqueues it. *ran = false where the library refuses only now: as above, nothing is enqueued. */
status product_run(product *p, const product_arrays *arrays, float beta, bool *ran);

/* To what the arrays are all aligned: 4, 8 or 16 bytes, or less. */
unsigned product_alignment(const product_arrays *arrays);

#endif
