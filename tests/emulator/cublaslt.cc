/* Emulated cuBLASLt: its entry points. */
#include "cublaslt_problem.h"
#include "emulator.h"

#include <algorithm>
#include <cstring>

using namespace emulated;

namespace
{

/* The first algorithm wants a workspace, the second none. */
enum : uint64_t { MAGIC = 0x454D554C4154454Cu, WORKSPACE_BYTES = 1 << 20, LEAST_SPLIT = 256 };
enum : uint32_t { MOST_ALIGNMENT = 16 };

template <typename T> cublasStatus_t set_attribute(T *to, const void *value, size_t size_bytes)
{
    if (value == nullptr || size_bytes != sizeof *to)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of %zu bytes, not %zu", sizeof *to,
                      size_bytes);
    std::memcpy(to, value, sizeof *to);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename... Arguments>
cublasStatus_t create(T **out, const char *kind, Arguments... arguments)
{
    if (out == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = new T{arguments...};
    account(kind, +1);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t destroy(T *object, const char *kind, int code)
{
    if (object != nullptr) {
        account(kind, -1);
        delete object;
    }
    return static_cast<cublasStatus_t>(code);
}

uint32_t alignment_of(const void *pointer)
{
    auto address = reinterpret_cast<uintptr_t>(pointer);
    uint32_t alignment = MOST_ALIGNMENT;
    while (address % alignment != 0)
        alignment /= 2;
    return alignment;
}

product_algorithm make_algorithm(const product_problem &problem, const uint32_t *alignment,
                                 uint64_t workspace_bytes)
{
    product_algorithm algorithm = {};
    algorithm.magic = MAGIC;
    algorithm.workspace_bytes = workspace_bytes;
    algorithm.problem = fingerprint(problem);
    for (int i = 0; i < 4; i++)
        algorithm.alignment[i] = std::min<uint32_t>(alignment[i], MOST_ALIGNMENT);
    algorithm.bias_alignment = alignment_of(problem.desc.bias);
    algorithm.aux_alignment = alignment_of(problem.desc.aux);
    return algorithm;
}

/* Whether the pointers are at least as aligned as the algorithm was promised. */
cublasStatus_t check_alignment(const product_call &call, const product_algorithm &algorithm)
{
    const void *const pointers[] = {call.a, call.b, call.c, call.d};
    for (int i = 0; i < 4; i++)
        if (alignment_of(pointers[i]) < algorithm.alignment[i])
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "%c is aligned to less than %u bytes",
                          "ABCD"[i], algorithm.alignment[i]);
    const cublasLtMatmulDescOpaque &desc = call.problem.desc;
    if (has_bias_vector(desc.epilogue) &&
        (desc.bias == nullptr || alignment_of(desc.bias) < algorithm.bias_alignment))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "bias %p, aligned to less than %u bytes",
                      desc.bias, algorithm.bias_alignment);
    if (has_mask(desc.epilogue) &&
        (desc.aux == nullptr || alignment_of(desc.aux) < algorithm.aux_alignment))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "aux %p, aligned to less than %u bytes",
                      desc.aux, algorithm.aux_alignment);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_call(const product_call &call, const product_algorithm &algorithm,
                          size_t workspace_bytes)
{
    if (algorithm.magic != MAGIC || algorithm.problem != fingerprint(call.problem))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was not chosen for this problem");
    if (workspace_bytes < algorithm.workspace_bytes)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace of %zu bytes, needed are %llu",
                      workspace_bytes, static_cast<unsigned long long>(algorithm.workspace_bytes));
    if (workspace_bytes > 0 && (call.workspace == nullptr || alignment_of(call.workspace) < 16))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "workspace %p", call.workspace);
    return check_alignment(call, algorithm);
}

} // namespace

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    (void)entry_point(__func__);
    return status_name(status);
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)entry_point(__func__);
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the emulated cuBLASLt";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    if (device_status() != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return create(handle, "cublasLt handle", current_device());
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle, "cublasLt handle", entry_point(__func__));
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    return create(desc, "cublasLt matmul descriptor", compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc, "cublasLt matmul descriptor", entry_point(__func__));
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size_bytes)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set_attribute(&desc->transpose_a, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set_attribute(&desc->transpose_b, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set_attribute(&desc->epilogue, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set_attribute(&desc->bias, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set_attribute(&desc->aux, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set_attribute(&desc->aux_ld, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set_attribute(&desc->bias_type, value, size_bytes);
    }
    fatal("%s: attribute %d is not emulated", __func__, static_cast<int>(attribute));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    return create(layout, "cublasLt matrix layout", type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout, "cublasLt matrix layout", entry_point(__func__));
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size_bytes)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    if (attribute != CUBLASLT_MATRIX_LAYOUT_ORDER)
        fatal("%s: attribute %d is not emulated", __func__, static_cast<int>(attribute));
    return set_attribute(&layout->order, value, size_bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    return create(preference, "cublasLt preference");
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference, "cublasLt preference", entry_point(__func__));
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size_bytes)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set_attribute(&preference->workspace_bytes, value, size_bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set_attribute(
            &preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
            size_bytes);
    }
    fatal("%s: attribute %d is not emulated", __func__, static_cast<int>(attribute));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *returned)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    if (handle == nullptr)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (requested < 1 || results == nullptr || returned == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returned = 0;
    product_problem problem;
    if (cublasStatus_t status = describe_product(*desc, *a, *b, *c, *d, &problem))
        return status;
    if (int code = wanted_refusal(problem, false); code >= 0)
        return static_cast<cublasStatus_t>(code);
    for (uint64_t workspace_bytes : {uint64_t{WORKSPACE_BYTES}, uint64_t{0}}) {
        bool possible = workspace_bytes <= preference->workspace_bytes &&
                        (workspace_bytes == 0 || problem.k >= LEAST_SPLIT);
        if (!possible || *returned == requested)
            continue;
        product_algorithm algorithm =
            make_algorithm(problem, preference->alignment, workspace_bytes);
        cublasLtMatmulHeuristicResult_t &result = results[(*returned)++];
        result = {};
        std::memcpy(&result.algo, &algorithm, sizeof algorithm);
        result.workspaceSize = workspace_bytes;
        result.state = CUBLAS_STATUS_SUCCESS;
        result.wavesCount = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<cublasStatus_t>(code);
    if (handle == nullptr)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (alpha == nullptr || beta == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (stream_device(stream) != handle->device)
        fatal("%s: the stream is of device %d, the handle of device %d", __func__,
              stream_device(stream), handle->device);
    product_call call = {};
    if (cublasStatus_t status = describe_product(*desc, *a, *b, *c, *d, &call.problem))
        return status;
    if (int code = wanted_refusal(call.problem, true); code >= 0)
        return static_cast<cublasStatus_t>(code);
    call.alpha = *static_cast<const float *>(alpha);
    call.beta = *static_cast<const float *>(beta);
    call.a = A;
    call.b = B;
    call.c = C;
    call.d = D;
    call.workspace = workspace;
    const uint32_t no_alignment[4] = {1, 1, 1, 1};
    product_algorithm algorithm = make_algorithm(call.problem, no_alignment, 0);
    if (algo != nullptr)
        std::memcpy(&algorithm, algo, sizeof algorithm);
    call.workspace_bytes = algorithm.workspace_bytes;
    if (cublasStatus_t status = check_call(call, algorithm, workspace_bytes))
        return status;
    check_product_memory(call);
    load_kernel(stream, "cublasLtMatmul " + std::to_string(algorithm.problem));
    if (enqueue(stream, "cublasLtMatmul", [call] { run_product(call); }) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}
