#include "kernels/cuda/conv_kernels.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 256;

/* Fewer threads fit on a multiprocessor of compute capability 7.5. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
enum : unsigned { COLUMNS_BLOCKS = 1024 / THREADS };
#else
enum : unsigned { COLUMNS_BLOCKS = CONV_SUMS_COLUMNS_BLOCKS };
#endif
constexpr unsigned WARP = 32;
constexpr unsigned EVERY_LANE = 0xFFFFFFFFu;

status conv_sums_create(device *dev, int values, unsigned blocks, conv_sums *out)
{
    conv_sums s = {nullptr, blocks * (unsigned)cuda_state_of(dev)->multiprocessors};
    TRY(cuda_alloc(dev, sizeof(float) * s.max_blocks * (size_t)values, (void **)&s.partial));
    *out = s;
    return STATUS_OK;
}

void conv_sums_free(device *dev, conv_sums *sums)
{
    cuda_free(dev, sums->partial);
    sums->partial = nullptr;
}

/* A warp per value: each lane sums every 32nd block's partial, then a tree over the lanes. */
static __global__ void finish_kernel(const float *partial, unsigned blocks, conv_gradient out)
{
    unsigned value = (unsigned)(thread_index() / WARP), lane = threadIdx.x % WARP;
    unsigned dw_count = (unsigned)out.dw_count;
    if (value >= dw_count + (unsigned)out.db_count)
        return; /* the whole warp returns */
    float sum = 0.0f;
    for (unsigned b = lane; b < blocks; b += WARP)
        sum += partial[(size_t)value * blocks + b];
    for (unsigned offset = WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(EVERY_LANE, sum, (int)offset);
    if (lane > 0)
        return;
    float *to = value < dw_count ? out.dw + value : out.db + (value - dw_count);
    *to = out.accumulate ? *to + sum : sum;
}

status conv_sums_finish(const device *dev, const conv_sums *sums, unsigned blocks,
                        const conv_gradient *out)
{
    size_t threads = (size_t)(out->dw_count + out->db_count) * WARP;
    LAUNCH(cuda_state_of(dev)->stream, blocks_for(threads, THREADS), THREADS, finish_kernel,
           (const float *)sums->partial, blocks, *out);
    return CUDA_CALL(cudaGetLastError());
}

/* A thread has PACKED neighbouring channels of every (stride)th row; `groups` threads make a
 * row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, COLUMNS_BLOCKS)
    columns_kernel(const T *dy, size_t rows, unsigned channels, float *partial)
{
    constexpr unsigned N = PACKED<T>;
    SHARED(float, shared, (THREADS * N));
    unsigned groups = channels / N, workers = THREADS / groups;
    unsigned group = threadIdx.x % groups, worker = threadIdx.x / groups;
    float sum[N] = {};
    if (worker < workers) {
        const T *from = dy + (size_t)group * N;
        size_t step = (size_t)gridDim.x * workers;
        for (size_t row = (size_t)blockIdx.x * workers + worker; row < rows; row += step) {
            pack<T, N> in = load_pack<N>(from + row * channels);
            UNROLL
            for (unsigned j = 0; j < N; j++)
                sum[j] += to_float(in.v[j]);
        }
    }
    UNROLL
    for (unsigned j = 0; j < N; j++)
        shared[threadIdx.x * N + j] = sum[j];
    __syncthreads();
    for (unsigned c = threadIdx.x; c < channels; c += THREADS) {
        float total = 0.0f;
        for (unsigned w = 0; w < workers; w++)
            total += shared[w * channels + c]; /* thread w * groups + c / N, element c % N */
        partial[(size_t)c * gridDim.x + blockIdx.x] = total;
    }
}

status conv_sums_columns(const device *dev, const conv_sums *sums, const void *dy, size_t rows,
                         const conv_gradient *out)
{
    unsigned channels = (unsigned)out->db_count, blocks = 0;
    ASSERT(out->dw_count == 0);
    status st = with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        ASSERT(channels % PACKED<T> == 0 && channels / PACKED<T> <= THREADS && are_aligned(dy));
        unsigned wanted = blocks_for(rows * (channels / PACKED<T>), THREADS);
        blocks = wanted < sums->max_blocks ? wanted : sums->max_blocks;
        LAUNCH(cuda_state_of(dev)->stream, blocks, THREADS, (columns_kernel<T>),
               static_cast<const T *>(dy), rows, channels, sums->partial);
        return CUDA_CALL(cudaGetLastError());
    });
    TRY(st);
    return conv_sums_finish(dev, sums, blocks, out);
}

template <typename T>
static __global__ void take_kernel(const T *from, size_t count, float *dw, bool accumulate)
{
    size_t i = thread_index();
    if (i < count)
        dw[i] = accumulate ? dw[i] + to_float(from[i]) : to_float(from[i]);
}

status conv_sums_take(const device *dev, const void *from, size_t count, float *dw, bool accumulate)
{
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for(count, THREADS), THREADS, (take_kernel<T>),
               static_cast<const T *>(from), count, dw, accumulate);
        return CUDA_CALL(cudaGetLastError());
    });
}

template <typename T>
static __global__ void bias_kernel(const float *bias, size_t packs, unsigned groups, T *y)
{
    constexpr unsigned N = PACKED<T>;
    for (size_t i = thread_index(); i < packs; i += thread_count()) {
        pack<T, N> out = load_pack<N>(y + i * N);
        const float *from = bias + i % groups * N;
        UNROLL
        for (unsigned j = 0; j < N; j++)
            out.v[j] = from_float<T>(to_float(out.v[j]) + from[j]);
        store_pack(y + i * N, out);
    }
}

status conv_sums_add_bias(const device *dev, const float *bias, size_t rows, int channels, void *y)
{
    const cuda_state *s = cuda_state_of(dev);
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        ASSERT(channels % PACKED<T> == 0 && are_aligned(y));
        unsigned groups = (unsigned)channels / PACKED<T>;
        unsigned wanted = blocks_for(rows * groups, THREADS);
        unsigned most = 8 * (unsigned)s->multiprocessors; /* as many as run at once */
        LAUNCH(s->stream, wanted < most ? wanted : most, THREADS, (bias_kernel<T>), bias,
               rows * groups, groups, static_cast<T *>(y));
        return CUDA_CALL(cudaGetLastError());
    });
}
