/* The ceilings of the GPU that it runs on, measured: fused multiply-adds of plain float32, large
 * matrix products through cuBLASLt in each precision, and a copy that no cache can hold. One line
 * per figure, "table=peak<TAB>what=...<TAB>value=...<TAB>unit=...", on stdout.
 *
 * Products of zeros can run faster than others, so all inputs are random.
 */
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

static void check(bool fine, const char *call, const char *reason)
{
    if (!fine) {
        std::fprintf(stderr, "gpu_peak: %s: %s\n", call, reason);
        std::exit(1);
    }
}

#define CUDA(call) check_cuda((call), #call)
#define BLAS(call) check_blas((call), #call)

static void check_cuda(cudaError_t code, const char *call)
{
    check(code == cudaSuccess, call, cudaGetErrorString(code));
}

static void check_blas(cublasStatus_t code, const char *call)
{
    check(code == CUBLAS_STATUS_SUCCESS, call, cublasLtGetStatusString(code));
}

static void print(const char *what, double value, const char *unit)
{
    std::printf("table=peak\twhat=%s\tvalue=%.1f\tunit=%s\n", what, value, unit);
    std::fflush(stdout);
}

enum { SAMPLES = 5, REPEATS = 5 };

/* Milliseconds of one call of `work`: the median of SAMPLES times REPEATS calls. */
template <typename Work> static double median_ms(Work work)
{
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    float sample[SAMPLES];
    for (int i = 0; i < 3; i++)
        work();
    for (float &ms : sample) {
        CUDA(cudaEventRecord(begin, nullptr));
        for (int i = 0; i < REPEATS; i++)
            work();
        CUDA(cudaEventRecord(end, nullptr));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    std::sort(sample, sample + SAMPLES);
    return static_cast<double>(sample[SAMPLES / 2]) / REPEATS;
}

enum { CHAINS = 16, ROUNDS = 4096, FMA_THREADS = 256 };

/* Independent chains of multiply-adds in registers; what it stores keeps them alive. */
static __global__ void multiply_add(float *out, float factor, float addend)
{
    float chain[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        chain[c] = static_cast<float>(threadIdx.x + static_cast<unsigned>(c));
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++)
            chain[c] = fmaf(chain[c], factor, addend);
    float sum = 0.0f;
    for (int c = 0; c < CHAINS; c++)
        sum += chain[c];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void measure_multiply_add(int multiprocessors)
{
    int blocks = multiprocessors * 16;
    float *out = nullptr;
    CUDA(cudaMalloc(&out, sizeof(float) * FMA_THREADS * static_cast<size_t>(blocks)));
    double ms = median_ms([=] {
        multiply_add<<<blocks, FMA_THREADS>>>(out, 0.999f, 0.25f);
        CUDA(cudaGetLastError());
    });
    double operations = 2.0 * CHAINS * ROUNDS * FMA_THREADS * blocks;
    print("fma_f32", operations / ms / 1e9, "TFLOP/s");
    CUDA(cudaFree(out));
}

/* Random numbers: floats in [-1, 1), or the 16-bit types' in +-[0.5, 1), by their bits. */
static __global__ void fill(void *memory, size_t count, cudaDataType_t type)
{
    size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += stride) {
        uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15u;
        uint32_t bits = static_cast<uint32_t>((mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u >> 32);
        if (type == CUDA_R_32F)
            static_cast<float *>(memory)[i] = static_cast<float>(bits) * 0x1p-31f - 1.0f;
        else if (type == CUDA_R_16BF)
            static_cast<uint16_t *>(memory)[i] =
                static_cast<uint16_t>((bits & 0x8000u) | 0x3f00u | (bits & 0x7fu));
        else
            static_cast<uint16_t *>(memory)[i] =
                static_cast<uint16_t>((bits & 0x8000u) | 0x3800u | (bits & 0x3ffu));
    }
}

static void *random_numbers(size_t count, cudaDataType_t type)
{
    void *memory = nullptr;
    CUDA(cudaMalloc(&memory, count * (type == CUDA_R_32F ? 4 : 2)));
    fill<<<1024, 256>>>(memory, count, type);
    CUDA(cudaGetLastError());
    return memory;
}

enum { SIDE = 8192, WORKSPACE_BYTES = 64 << 20 };

static void measure_product(cublasLtHandle_t blas, const char *what, cudaDataType_t type,
                            cublasComputeType_t compute)
{
    size_t count = static_cast<size_t>(SIDE) * SIDE, workspace_bytes = WORKSPACE_BYTES;
    void *a = random_numbers(count, type), *b = random_numbers(count, type);
    void *c = random_numbers(count, type), *workspace = nullptr;
    CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));

    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasOperation_t transposed = CUBLAS_OP_T;
    BLAS(cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F));
    BLAS(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof transposed));
    BLAS(cublasLtMatrixLayoutCreate(&layout, type, SIDE, SIDE, SIDE));
    BLAS(cublasLtMatmulPreferenceCreate(&preference));
    BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace_bytes, sizeof workspace_bytes));
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    BLAS(cublasLtMatmulAlgoGetHeuristic(blas, product, layout, layout, layout, layout, preference,
                                        1, &found, &n_found));
    check(n_found == 1, what, "cuBLASLt knows no algorithm");

    float one = 1.0f, zero = 0.0f;
    double ms = median_ms([&] {
        BLAS(cublasLtMatmul(blas, product, &one, a, layout, b, layout, &zero, c, layout, c, layout,
                            &found.algo, workspace, workspace_bytes, nullptr));
    });
    print(what, 2.0 * SIDE * SIDE * SIDE / ms / 1e9, "TFLOP/s");

    BLAS(cublasLtMatmulPreferenceDestroy(preference));
    BLAS(cublasLtMatrixLayoutDestroy(layout));
    BLAS(cublasLtMatmulDescDestroy(product));
    for (void *memory : {a, b, c, workspace})
        CUDA(cudaFree(memory));
}

static void measure_copy(size_t total_bytes)
{
    size_t size_bytes = std::min<size_t>(total_bytes / 8, size_t{1} << 30) & ~size_t{255};
    void *from = random_numbers(size_bytes / 4, CUDA_R_32F), *to = nullptr;
    CUDA(cudaMalloc(&to, size_bytes));
    double ms = median_ms(
        [=] { CUDA(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, nullptr)); });
    print("copy", 2.0 * static_cast<double>(size_bytes) / ms / 1e6, "GB/s");
    CUDA(cudaFree(to));
    CUDA(cudaFree(from));
}

int main()
{
    cudaDeviceProp gpu;
    cublasLtHandle_t blas;
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&gpu, 0));
    BLAS(cublasLtCreate(&blas));
    measure_copy(gpu.totalGlobalMem);
    measure_multiply_add(gpu.multiProcessorCount);
    measure_product(blas, "f32", CUDA_R_32F, CUBLAS_COMPUTE_32F);
    measure_product(blas, "tf32", CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32);
    measure_product(blas, "bf16", CUDA_R_16BF, CUBLAS_COMPUTE_32F);
    measure_product(blas, "fp16", CUDA_R_16F, CUBLAS_COMPUTE_32F);
    BLAS(cublasLtDestroy(blas));
    return 0;
}
