/* Emulated cuBLASLt: the product itself. */
#include "cublaslt_problem.h"
#include "cublaslt_product.h"
#include "emulator.h"

#include <cstring>

namespace emulated
{

namespace
{

uint64_t mask_bytes(const product_problem &p)
{
    return static_cast<uint64_t>(p.desc.aux_ld) * p.n / 8;
}

uint64_t bias_count(const product_problem &p)
{
    return p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
}

/* A matrix in device memory as floats, op() and the rounding to TF32 applied. */
class operand
{
  public:
    operand(const void *memory, const cublasLtMatrixLayoutOpaque &layout, bool transposed,
            bool as_tf32)
    {
        bool by_columns = layout.order == CUBLASLT_ORDER_COL;
        size_t lines = by_columns ? layout.cols : layout.rows;
        size_t length = by_columns ? layout.rows : layout.cols;
        size_t line_bytes = static_cast<size_t>(layout.ld) * element_bytes(layout.type);
        values = make_floats(lines * length);
        for (size_t i = 0; i < lines; i++)
            load_floats(static_cast<const char *>(memory) + i * line_bytes, layout.type, length,
                        values.get() + i * length);
        if (as_tf32)
            round_to_tf32(values.get(), lines * length);
        row = by_columns != transposed ? 1 : static_cast<ptrdiff_t>(length);
        col = by_columns != transposed ? static_cast<ptrdiff_t>(length) : 1;
    }

    float at(size_t i, size_t j) const
    {
        return values[i * static_cast<size_t>(row) + j * static_cast<size_t>(col)];
    }

    matrix transpose() const
    {
        return {values.get(), col, row};
    }

  private:
    floats values;
    ptrdiff_t row, col;
};

/* result(i, j) is at [j * m + i]. */
void scale_and_add_c(const product_call &call, float *result)
{
    const product_problem &p = call.problem;
    uint64_t count = p.m * p.n;
    for (uint64_t i = 0; i < count; i++)
        result[i] *= call.alpha;
    if (call.beta == 0.0f)
        return;
    operand c(call.c, p.c, false, false);
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++)
            result[j * p.m + i] += call.beta * c.at(i, j);
}

void add_bias(const product_problem &p, float *result)
{
    floats bias = make_floats(p.m);
    load_floats(p.desc.bias, p.d.type, p.m, bias.get());
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++)
            result[j * p.m + i] += bias[i];
}

/* The mask has a bit per element, aux_ld bits per column: 1 if the element passed the relu. */
void apply_relu(const product_problem &p, float *result, uint8_t *mask)
{
    uint64_t ld = static_cast<uint64_t>(p.desc.aux_ld);
    if (mask != nullptr) {
        std::memset(mask, 0, mask_bytes(p));
        memory_written(mask, mask_bytes(p));
    }
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++) {
            float &value = result[j * p.m + i];
            uint64_t bit = j * ld + i;
            if (!(value > 0.0f))
                value = 0.0f;
            else if (mask != nullptr)
                mask[bit / 8] = static_cast<uint8_t>(mask[bit / 8] | 1u << bit % 8);
        }
}

void apply_mask(const product_problem &p, float *result)
{
    const auto *mask = static_cast<const uint8_t *>(p.desc.aux);
    uint64_t ld = static_cast<uint64_t>(p.desc.aux_ld);
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++) {
            uint64_t bit = j * ld + i;
            if ((mask[bit / 8] >> bit % 8 & 1) == 0)
                result[j * p.m + i] = 0.0f;
        }
}

/* The sums of an input along k, into the bias vector. */
void store_sums(const product_problem &p, const operand &a, const operand &b)
{
    bool of_a = p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    uint64_t count = bias_count(p);
    floats sums = make_floats(count);
    for (uint64_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (uint64_t l = 0; l < p.k; l++)
            sum += of_a ? a.at(i, l) : b.at(l, i);
        sums[i] = sum;
    }
    store_floats(sums.get(), count, p.d.type, p.desc.bias);
    memory_written(p.desc.bias, count * element_bytes(p.d.type));
}

void store_result(const product_problem &p, const float *result, void *memory)
{
    size_t line_bytes = static_cast<size_t>(p.d.ld) * element_bytes(p.d.type);
    auto *line = static_cast<char *>(memory);
    if (p.d.order == CUBLASLT_ORDER_COL) {
        for (uint64_t j = 0; j < p.n; j++, line += line_bytes)
            store_floats(result + j * p.m, p.m, p.d.type, line);
        return;
    }
    floats row = make_floats(p.n);
    for (uint64_t i = 0; i < p.m; i++, line += line_bytes) {
        for (uint64_t j = 0; j < p.n; j++)
            row[j] = result[j * p.m + i];
        store_floats(row.get(), p.n, p.d.type, line);
    }
}

void check_apart(const product_call &call, const void *input, uint64_t size_bytes, const char *name)
{
    auto d = reinterpret_cast<uintptr_t>(call.d), in = reinterpret_cast<uintptr_t>(input);
    if (in < d + matrix_bytes(call.problem.d) && d < in + size_bytes)
        fatal("cublasLtMatmul: D lies on %s", name);
}

} // namespace

void check_product_memory(const product_call &call)
{
    const product_problem &p = call.problem;
    check_device(call.a, matrix_bytes(p.a), "cublasLtMatmul: A");
    check_device(call.b, matrix_bytes(p.b), "cublasLtMatmul: B");
    check_device(call.d, matrix_bytes(p.d), "cublasLtMatmul: D");
    check_apart(call, call.a, matrix_bytes(p.a), "A");
    check_apart(call, call.b, matrix_bytes(p.b), "B");
    if (call.beta != 0.0f)
        check_device(call.c, matrix_bytes(p.c), "cublasLtMatmul: C");
    if (call.workspace_bytes > 0)
        check_device(call.workspace, call.workspace_bytes, "cublasLtMatmul: the workspace");
    if (has_bias_vector(p.desc.epilogue)) {
        uint64_t bias_bytes = bias_count(p) * element_bytes(p.d.type);
        check_device(p.desc.bias, bias_bytes, "cublasLtMatmul: the bias");
        check_apart(call, p.desc.bias, bias_bytes, "the bias");
    }
    if (has_mask(p.desc.epilogue)) {
        check_device(p.desc.aux, mask_bytes(p), "cublasLtMatmul: the auxiliary buffer");
        check_apart(call, p.desc.aux, mask_bytes(p), "the auxiliary buffer");
    }
}

void run_product(const product_call &call)
{
    check_product_memory(call);
    const product_problem &p = call.problem;
    /* Like the real algorithms, overwrites the workspace. */
    if (call.workspace_bytes > 0)
        std::memset(call.workspace, 0xFF, call.workspace_bytes);

    bool as_tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    operand a(call.a, p.a, p.desc.transpose_a != CUBLAS_OP_N, as_tf32);
    operand b(call.b, p.b, p.desc.transpose_b != CUBLAS_OP_N, as_tf32);
    floats result = make_floats(p.m * p.n);
    std::memset(result.get(), 0, p.m * p.n * sizeof(float));
    multiply_add(p.n, p.m, p.k, b.transpose(), a.transpose(), result.get());
    scale_and_add_c(call, result.get());

    switch (p.desc.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        add_bias(p, result.get());
        break;
    case CUBLASLT_EPILOGUE_RELU_BIAS:
        add_bias(p, result.get());
        apply_relu(p, result.get(), nullptr);
        break;
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
        add_bias(p, result.get());
        apply_relu(p, result.get(), static_cast<uint8_t *>(p.desc.aux));
        break;
    case CUBLASLT_EPILOGUE_DRELU:
        apply_mask(p, result.get());
        break;
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        store_sums(p, a, b);
        break;
    default:
        break;
    }
    store_result(p, result.get(), call.d);
    memory_written(call.d, matrix_bytes(p.d));
}

} // namespace emulated
