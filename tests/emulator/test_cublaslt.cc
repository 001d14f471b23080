/* The emulated cuBLASLt against plain loops in double. */
#include "library_test.h"

#include <cublasLt.h>

#include <chrono>

using namespace library_test;

namespace
{

struct product {
    cudaDataType_t in, out;
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    float beta;
    size_t m, n, k;
    bool d_by_rows;
};

enum : size_t { GAP = 3 /* elements between columns */, AUX_LD = 128 };

size_t rows_a(const product &p)
{
    return p.op_a == CUBLAS_OP_N ? p.m : p.k;
}

size_t cols_a(const product &p)
{
    return p.op_a == CUBLAS_OP_N ? p.k : p.m;
}

size_t rows_b(const product &p)
{
    return p.op_b == CUBLAS_OP_N ? p.k : p.n;
}

size_t cols_b(const product &p)
{
    return p.op_b == CUBLAS_OP_N ? p.n : p.k;
}

size_t ld_d(const product &p)
{
    return (p.d_by_rows ? p.n : p.m) + GAP;
}

size_t count_d(const product &p)
{
    return ld_d(p) * (p.d_by_rows ? p.m : p.n);
}

/* Everything that one call of cublasLtMatmul needs. */
class plan
{
  public:
    explicit plan(const product &p) : shape(p)
    {
        good = cublasLtCreate(&handle) == 0 &&
               cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F) == 0 &&
               cublasLtMatmulPreferenceCreate(&preference) == 0;
        layout(&a, p.in, rows_a(p), cols_a(p), rows_a(p) + GAP);
        layout(&b, p.in, rows_b(p), cols_b(p), rows_b(p) + GAP);
        layout(&d, p.out, p.m, p.n, ld_d(p));
        cublasLtOrder_t by_rows = CUBLASLT_ORDER_ROW;
        if (p.d_by_rows)
            good = good && cublasLtMatrixLayoutSetAttribute(d, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                                            &by_rows, sizeof by_rows) == 0;
        uint64_t workspace_bytes = 4 << 20;
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof workspace_bytes);
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.op_a);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.op_b);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    }

    ~plan()
    {
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatrixLayoutDestroy(a);
        cublasLtMatrixLayoutDestroy(b);
        cublasLtMatrixLayoutDestroy(d);
        cublasLtMatmulDescDestroy(desc);
        cublasLtDestroy(handle);
    }

    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;

    template <typename T> void set(cublasLtMatmulDescAttributes_t attribute, T value)
    {
        good = good && cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) == 0;
    }

    void use_tf32()
    {
        cublasLtMatmulDescDestroy(desc);
        cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F);
    }

    cublasStatus_t choose()
    {
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference,
                                                               4, results, &found);
        return status;
    }

    cublasStatus_t run(const void *A, const void *B, void *D, void *workspace,
                       size_t workspace_bytes, cudaStream_t stream, int nth = 0)
    {
        float alpha = 2.0f;
        return cublasLtMatmul(handle, desc, &alpha, A, a, B, b, &shape.beta, D, d, D, d,
                              &results[nth].algo, workspace, workspace_bytes, stream);
    }

    bool good = false;
    int found = 0;
    cublasLtMatmulHeuristicResult_t results[4];

  private:
    void layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, size_t rows, size_t cols,
                size_t ld)
    {
        good = good &&
               cublasLtMatrixLayoutCreate(out, type, rows, cols, static_cast<int64_t>(ld)) == 0;
    }

    product shape;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
};

/* The operands of a product on the host; bias and mask are inputs or outputs. */
struct operands {
    std::vector<float> a, b, d, bias;
    std::vector<uint8_t> mask;
};

operands make_operands(const product &p)
{
    operands o;
    o.a = small_integers((rows_a(p) + GAP) * cols_a(p), 1);
    o.b = small_integers((rows_b(p) + GAP) * cols_b(p), 2);
    o.d = small_integers(count_d(p), 3);
    o.bias = small_integers(p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m, 4);
    o.mask.resize(AUX_LD * p.n / 8);
    for (size_t i = 0; i < o.mask.size(); i++)
        o.mask[i] = static_cast<uint8_t>(i * 37);
    return o;
}

double element_a(const product &p, const operands &o, size_t i, size_t l)
{
    size_t ld = rows_a(p) + GAP;
    return static_cast<double>(p.op_a == CUBLAS_OP_N ? o.a[l * ld + i] : o.a[i * ld + l]);
}

double element_b(const product &p, const operands &o, size_t l, size_t j)
{
    size_t ld = rows_b(p) + GAP;
    return static_cast<double>(p.op_b == CUBLAS_OP_N ? o.b[j * ld + l] : o.b[l * ld + j]);
}

size_t place_d(const product &p, size_t i, size_t j)
{
    return p.d_by_rows ? i * ld_d(p) + j : j * ld_d(p) + i;
}

/* The epilogue of one element; sets its bit of the mask if that is an output. */
double after(const product &p, operands *o, size_t i, size_t j, double value)
{
    size_t bit = j * AUX_LD + i;
    bool adds = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
                p.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
    if (adds)
        value += static_cast<double>(o->bias[i]);
    if (p.epilogue == CUBLASLT_EPILOGUE_DRELU)
        return (o->mask[bit / 8] >> bit % 8 & 1) != 0 ? value : 0.0;
    if (!adds || p.epilogue == CUBLASLT_EPILOGUE_BIAS)
        return value;
    if (p.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS && value > 0)
        o->mask[bit / 8] = static_cast<uint8_t>(o->mask[bit / 8] | 1u << bit % 8);
    return value > 0 ? value : 0.0;
}

/* Sets what is to come out. */
void multiply_plainly(const product &p, operands *o)
{
    if (p.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS)
        std::fill(o->mask.begin(), o->mask.end(), uint8_t{0});
    for (size_t i = 0; i < p.m; i++)
        for (size_t j = 0; j < p.n; j++) {
            double sum = 0;
            for (size_t l = 0; l < p.k; l++)
                sum += element_a(p, *o, i, l) * element_b(p, *o, l, j);
            float &d = o->d[place_d(p, i, j)];
            double value = 2 * sum + static_cast<double>(p.beta) * static_cast<double>(d);
            d = rounded(after(p, o, i, j, value), p.out);
        }
    bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    if (!of_a && p.epilogue != CUBLASLT_EPILOGUE_BGRADB)
        return;
    for (size_t i = 0; i < o->bias.size(); i++) {
        double sum = 0;
        for (size_t l = 0; l < p.k; l++)
            sum += of_a ? element_a(p, *o, i, l) : element_b(p, *o, l, i);
        o->bias[i] = rounded(sum, p.out);
    }
}

/* Compares every byte that the product may write, and those between. */
void check_product(const queue &q, const product &p)
{
    operands o = make_operands(p);
    plan matmul(p);
    device_floats a(q, p.in, o.a), b(q, p.in, o.b), d(q, p.out, o.d), bias(q, p.out, o.bias);
    device_bytes mask(q, o.mask.size()), workspace(q, 1 << 20);
    mask.set(o.mask.data());
    if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_DRELU)
        matmul.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.memory());
    matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, mask.memory);
    matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(AUX_LD));
    EXPECT(matmul.good);
    EXPECT(matmul.choose() == CUBLAS_STATUS_SUCCESS);
    EXPECT(matmul.found == (p.k >= 256 ? 2 : 1));
    EXPECT(matmul.run(a.memory(), b.memory(), d.memory(), workspace.memory, 1 << 20, q.stream) ==
           CUBLAS_STATUS_SUCCESS);
    q.wait();
    multiply_plainly(p, &o);
    std::vector<uint8_t> mask_now(o.mask.size());
    mask.get(mask_now.data());
    EXPECT(d.get() == o.d);
    EXPECT(bias.get() == o.bias);
    EXPECT(mask_now == o.mask);
}

const cublasLtEpilogue_t EPILOGUES[] = {
    CUBLASLT_EPILOGUE_DEFAULT,       CUBLASLT_EPILOGUE_BIAS,  CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU, CUBLASLT_EPILOGUE_BGRADA,
    CUBLASLT_EPILOGUE_BGRADB};

template <cudaDataType_t in, cudaDataType_t out> void products()
{
    queue q;
    for (cublasLtEpilogue_t epilogue : EPILOGUES)
        for (cublasOperation_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T})
            for (cublasOperation_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T})
                for (float beta : {0.0f, 3.0f})
                    for (bool by_rows : {false, true})
                        check_product(q,
                                      {in, out, op_a, op_b, epilogue, beta, 37, 29, 300, by_rows});
}

void odd_products()
{
    queue q;
    check_product(q, {CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_RELU_BIAS,
                      0.0f, 1, 1, 1, false});
    check_product(q, {CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                      0.0f, 10, 1100, 700, false});
}

const product PLAIN = {CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                       0.0f,       16,         16,          256,         false};

product with_epilogue(cublasLtEpilogue_t epilogue, cudaDataType_t in = CUDA_R_32F,
                      cudaDataType_t out = CUDA_R_32F)
{
    product p = PLAIN;
    p.epilogue = epilogue;
    p.in = in;
    p.out = out;
    return p;
}

void tf32_is_seen()
{
    queue q;
    product p = PLAIN;
    std::vector<float> ones((p.m + GAP) * p.k, 1.0f), fine((p.k + GAP) * p.n, 1.0f + 0x1p-12f);
    device_floats a(q, p.in, ones), b(q, p.in, fine), d(q, p.out, count_d(p));
    float first[2];
    for (int tf32 = 0; tf32 < 2; tf32++) {
        plan matmul(p);
        if (tf32 == 1)
            matmul.use_tf32();
        matmul.choose();
        matmul.run(a.memory(), b.memory(), d.memory(), nullptr, 0, q.stream, matmul.found - 1);
        q.wait();
        first[tf32] = d.get()[0];
    }
    EXPECT(first[0] == 512.125f && first[1] == 512.0f);
}

void refusals()
{
    queue q;
    plan narrow(with_epilogue(CUBLASLT_EPILOGUE_RELU_AUX_BIAS));
    narrow.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{64});
    EXPECT(narrow.choose() == CUBLAS_STATUS_INVALID_VALUE && narrow.found == 0);
    plan wide_bias(with_epilogue(CUBLASLT_EPILOGUE_BIAS, CUDA_R_16BF, CUDA_R_16BF));
    wide_bias.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_32F));
    EXPECT(wide_bias.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
    plan mixed(with_epilogue(CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF, CUDA_R_16F));
    EXPECT(mixed.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
    plan half(with_epilogue(CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF, CUDA_R_16BF));
    half.use_tf32();
    EXPECT(half.choose() == CUBLAS_STATUS_NOT_SUPPORTED);
    plan empty(PLAIN);
    empty.set(CUBLASLT_MATMUL_DESC_TRANSA, int64_t{0});
    EXPECT(!empty.good);

    plan matmul(PLAIN);
    EXPECT(matmul.choose() == CUBLAS_STATUS_SUCCESS && matmul.found == 2 &&
           matmul.results[0].workspaceSize == 1 << 20 && matmul.results[1].workspaceSize == 0);
    device_floats x(q, CUDA_R_32F, 8192), y(q, CUDA_R_32F, 8192);
    device_bytes workspace(q, 2 << 20);
    auto *base = static_cast<char *>(workspace.memory);
    auto run = [&](void *at, size_t size_bytes, const void *a) {
        return matmul.run(a, x.memory(), y.memory(), at, size_bytes, q.stream);
    };
    EXPECT(run(base, (1 << 20) - 1, x.memory()) == CUBLAS_STATUS_INVALID_VALUE);
    EXPECT(run(base + 8, 1 << 20, x.memory()) == CUBLAS_STATUS_INVALID_VALUE);
    EXPECT(run(base, 1 << 20, static_cast<char *>(x.memory()) + 4) == CUBLAS_STATUS_NOT_SUPPORTED);
    plan other(with_epilogue(CUBLASLT_EPILOGUE_BIAS));
    other.choose();
    other.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    EXPECT(other.run(x.memory(), x.memory(), y.memory(), base, 1 << 20, q.stream) ==
           CUBLAS_STATUS_INVALID_VALUE);
}

void refused_epilogues()
{
    queue q;
    for (cublasLtEpilogue_t epilogue : EPILOGUES) {
        plan matmul(with_epilogue(epilogue));
        matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{128});
        EXPECT(matmul.choose() == (epilogue == CUBLASLT_EPILOGUE_DRELU ? CUBLAS_STATUS_NOT_SUPPORTED
                                   : epilogue == CUBLASLT_EPILOGUE_BGRADB
                                       ? CUBLAS_STATUS_INVALID_VALUE
                                       : CUBLAS_STATUS_SUCCESS));
    }
}

/* Null: x, which is also b. */
void multiply(const void *a, void *d)
{
    queue q;
    plan matmul(PLAIN);
    matmul.choose();
    device_floats x(q, CUDA_R_32F, 8192);
    matmul.run(a != nullptr ? a : x.memory(), x.memory(), d != nullptr ? d : x.memory(), nullptr, 0,
               q.stream, 1);
}

void host_memory_is_refused()
{
    std::vector<float> host(8192);
    multiply(host.data(), nullptr);
}

void overlap_is_refused()
{
    multiply(nullptr, nullptr);
}

void measure()
{
    queue q;
    product p = PLAIN;
    p.m = 512;
    p.n = 64;
    p.k = 784;
    operands o = make_operands(p);
    device_floats a(q, p.in, o.a), b(q, p.in, o.b), d(q, p.out, o.d);
    plan matmul(p);
    matmul.choose();
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; i++)
        matmul.run(a.memory(), b.memory(), d.memory(), nullptr, 0, q.stream, 1);
    q.wait();
    std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    std::printf("a product of 512 x 64 x 784 takes %.2f ms\n", taken.count() / 20);
}

} // namespace

int main(int argc, char **argv)
{
    std::vector<check> checks = {
        {"f32 products, all epilogues, transposes, orders", products<CUDA_R_32F, CUDA_R_32F>},
        {"bf16 -> bf16 products", products<CUDA_R_16BF, CUDA_R_16BF>},
        {"bf16 -> f32 products", products<CUDA_R_16BF, CUDA_R_32F>},
        {"f16 -> f16 products", products<CUDA_R_16F, CUDA_R_16F>},
        {"f16 -> f32 products", products<CUDA_R_16F, CUDA_R_32F>},
        {"products of one element, and of several runs and strips", odd_products},
        {"tf32 rounds what f32 does not", tf32_is_seen},
        {"what cuBLASLt refuses", refusals},
        {"epilogues that are to be refused", refused_epilogues, ending::succeeds, nullptr,
         "MNIST_DDP_EMULATED_REFUSE=DRELU,BGRADB:7"},
        {"host memory ends the process", host_memory_is_refused, ending::dies,
         "cublasLtMatmul: A needs device memory"},
        {"a result on an operand ends the process", overlap_is_refused, ending::dies, "D lies on"},
        {"a product's time", measure},
    };
    for (check &c : checks)
        if (c.environment == nullptr)
            c.environment = "MNIST_DDP_EMULATED_STRICT=1";
    return run_checks(checks, argc, argv);
}
