/* Emulated cuBLASLt: what it can do, and what it refuses. */
#include "cublaslt_problem.h"
#include "cublaslt_product.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace emulated
{

namespace
{

struct epilogue_name {
    uint32_t epilogue;
    const char *name;
};

const epilogue_name EPILOGUES[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, "DEFAULT"},     {CUBLASLT_EPILOGUE_BIAS, "BIAS"},
    {CUBLASLT_EPILOGUE_RELU_BIAS, "RELU_BIAS"}, {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, "RELU_AUX_BIAS"},
    {CUBLASLT_EPILOGUE_DRELU, "DRELU"},         {CUBLASLT_EPILOGUE_BGRADA, "BGRADA"},
    {CUBLASLT_EPILOGUE_BGRADB, "BGRADB"},
};

const char *name_of_epilogue(uint32_t epilogue)
{
    for (const epilogue_name &e : EPILOGUES)
        if (e.epilogue == epilogue)
            return e.name;
    return nullptr;
}

bool is_sound_layout(const cublasLtMatrixLayoutOpaque &x)
{
    uint64_t least = x.order == CUBLASLT_ORDER_COL ? x.rows : x.cols;
    return x.rows > 0 && x.cols > 0 && x.ld > 0 && static_cast<uint64_t>(x.ld) >= least;
}

/* Float inputs give float outputs; 16-bit inputs of one type give that type or float. */
bool has_kernel_for_types(const product_problem &p)
{
    cudaDataType_t in = p.a.type, out = p.d.type;
    if (element_bytes(in) == 0 || p.b.type != in || p.c.type != out)
        return false;
    if (in == CUDA_R_32F)
        return out == CUDA_R_32F;
    return (out == in || out == CUDA_R_32F) && p.desc.compute != CUBLAS_COMPUTE_32F_FAST_TF32;
}

cublasStatus_t check_shapes(const product_problem &p)
{
    if (!is_sound_layout(p.a) || !is_sound_layout(p.b) || !is_sound_layout(p.c) ||
        !is_sound_layout(p.d))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an empty matrix, or an ld that is too small");
    uint64_t inner = p.desc.transpose_b == CUBLAS_OP_N ? p.b.rows : p.b.cols;
    if (inner != p.k || p.d.rows != p.m || p.d.cols != p.n || p.c.rows != p.m || p.c.cols != p.n)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the matrices' sizes do not go together");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const product_problem &p)
{
    uint32_t epilogue = p.desc.epilogue;
    const char *name = name_of_epilogue(epilogue);
    if (name == nullptr)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "epilogue %u", epilogue);
    int32_t bias_type = p.desc.bias_type < 0 ? p.d.type : p.desc.bias_type;
    if (has_bias_vector(epilogue) && bias_type != static_cast<int32_t>(p.d.type))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "%s: the bias must be of D's type", name);
    if (has_mask(epilogue) &&
        (p.desc.aux_ld % 128 != 0 || p.desc.aux_ld < static_cast<int64_t>(p.m)))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s: aux ld %lld for %llu rows", name,
                      static_cast<long long>(p.desc.aux_ld), static_cast<unsigned long long>(p.m));
    return CUBLAS_STATUS_SUCCESS;
}

uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x100000001B3u;
}

uint64_t mix(uint64_t hash, const cublasLtMatrixLayoutOpaque &x)
{
    hash = mix(mix(hash, static_cast<uint64_t>(x.type)), x.rows);
    return mix(mix(mix(hash, x.cols), static_cast<uint64_t>(x.ld)), static_cast<uint64_t>(x.order));
}

} // namespace

const char *status_name(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
        return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

cublasStatus_t refuse(cublasStatus_t status, const char *format, ...)
{
    const char *level = std::getenv("CUBLASLT_LOG_LEVEL");
    if (level != nullptr && std::atoi(level) > 0) {
        char reason[160];
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(reason, sizeof reason, format, arguments);
        va_end(arguments);
        std::fprintf(stderr, "emulated cuBLASLt: %s: %s\n", status_name(status), reason);
    }
    return status;
}

bool has_bias_vector(uint32_t epilogue)
{
    return epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_DRELU;
}

bool has_mask(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DRELU;
}

cublasStatus_t describe_product(const cublasLtMatmulDescOpaque &desc,
                                const cublasLtMatrixLayoutOpaque &a,
                                const cublasLtMatrixLayoutOpaque &b,
                                const cublasLtMatrixLayoutOpaque &c,
                                const cublasLtMatrixLayoutOpaque &d, product_problem *out)
{
    bool a_plain = desc.transpose_a == CUBLAS_OP_N, b_plain = desc.transpose_b == CUBLAS_OP_N;
    *out = {desc,
            a,
            b,
            c,
            d,
            a_plain ? a.rows : a.cols,
            b_plain ? b.cols : b.rows,
            a_plain ? a.cols : a.rows};
    if (cublasStatus_t status = check_shapes(*out))
        return status;
    if (desc.scale != CUDA_R_32F || !has_kernel_for_types(*out))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types A %d, B %d, C %d, D %d, compute %d",
                      a.type, b.type, c.type, d.type, desc.compute);
    return check_epilogue(*out);
}

int wanted_refusal(const product_problem &p, bool is_call)
{
    refusal r = find_refusal(name_of_epilogue(p.desc.epilogue));
    if (!r.wanted || (r.at_call && !is_call))
        return -1;
    bool unsaid = r.code < 0 || (r.code == 0 && is_call);
    return refuse(unsaid ? CUBLAS_STATUS_NOT_SUPPORTED : static_cast<cublasStatus_t>(r.code),
                  "MNIST_DDP_EMULATED_REFUSE has %s", name_of_epilogue(p.desc.epilogue));
}

uint64_t fingerprint(const product_problem &p)
{
    uint64_t hash = 0xCBF29CE484222325u;
    hash = mix(mix(mix(mix(hash, p.a), p.b), p.c), p.d);
    for (uint64_t value :
         {static_cast<uint64_t>(p.desc.compute), static_cast<uint64_t>(p.desc.transpose_a),
          static_cast<uint64_t>(p.desc.transpose_b), static_cast<uint64_t>(p.desc.epilogue),
          static_cast<uint64_t>(p.desc.aux_ld)})
        hash = mix(hash, value);
    return hash;
}

uint64_t matrix_bytes(const cublasLtMatrixLayoutOpaque &x)
{
    uint64_t lines = x.order == CUBLASLT_ORDER_COL ? x.cols : x.rows;
    uint64_t length = x.order == CUBLASLT_ORDER_COL ? x.rows : x.cols;
    return ((lines - 1) * static_cast<uint64_t>(x.ld) + length) * element_bytes(x.type);
}

} // namespace emulated
