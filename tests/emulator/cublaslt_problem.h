/* Emulated cuBLASLt: its descriptors, and one matrix product as they describe it together. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CUBLASLT_PROBLEM_H
#define MNIST_DDP_TESTS_EMULATOR_CUBLASLT_PROBLEM_H

#include <cublasLt.h>

struct cublasLtContext {
    int device;
};

struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t bias_type = -1; /* D's */
};

struct cublasLtMatrixLayoutOpaque {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t order = CUBLASLT_ORDER_COL;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace_bytes = 0;
    uint32_t alignment[4] = {256, 256, 256, 256}; /* of A, B, C, D */
};

namespace emulated
{

/* D (m, n) = epilogue(alpha op(A) (m, k) op(B) (k, n) + beta C). */
struct product_problem {
    cublasLtMatmulDescOpaque desc;
    cublasLtMatrixLayoutOpaque a, b, c, d;
    uint64_t m, n, k;
};

/* What a cublasLtMatmulAlgo_t holds. */
struct product_algorithm {
    uint64_t magic;
    uint64_t workspace_bytes;
    uint64_t problem;      /* its fingerprint */
    uint32_t alignment[4]; /* that A, B, C, D need at least */
    uint32_t bias_alignment, aux_alignment;
};

static_assert(sizeof(product_algorithm) <= sizeof(cublasLtMatmulAlgo_t), "must fit");

/* The arguments of one cublasLtMatmul call. */
struct product_call {
    product_problem problem;
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    uint64_t workspace_bytes; /* that the algorithm uses */
};

/* CUBLAS_STATUS_SUCCESS; or INVALID_VALUE for a problem that makes no sense, NOT_SUPPORTED for one
 * that cuBLASLt has no kernel for. Either says why if CUBLASLT_LOG_LEVEL is set. */
cublasStatus_t describe_product(const cublasLtMatmulDescOpaque &desc,
                                const cublasLtMatrixLayoutOpaque &a,
                                const cublasLtMatrixLayoutOpaque &b,
                                const cublasLtMatrixLayoutOpaque &c,
                                const cublasLtMatrixLayoutOpaque &d, product_problem *out);

/* The code with which MNIST_DDP_EMULATED_REFUSE wants the epilogue refused, at algorithm selection
 * or at the call; 0: no algorithm is found; -1: it is not refused. */
int wanted_refusal(const product_problem &problem, bool is_call);

/* Hash of everything that an algorithm is chosen for, without pointers. */
uint64_t fingerprint(const product_problem &problem);

/* The elements from a matrix's first to its last, with the gaps between. */
uint64_t matrix_bytes(const cublasLtMatrixLayoutOpaque &layout);

bool has_bias_vector(uint32_t epilogue); /* as an input or an output */
bool has_mask(uint32_t epilogue);

const char *status_name(cublasStatus_t status);

/* Says why a call is refused, if CUBLASLT_LOG_LEVEL is set, and returns `status`. */
cublasStatus_t refuse(cublasStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends the process if something is not live device memory, or D covers an input. */
void check_product_memory(const product_call &call);

/* On the device thread. */
void run_product(const product_call &call);

} // namespace emulated

#endif
