#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 128;

struct epilogue_job {
    unsigned n, features, runs; /* runs of a thread's columns in a row; the last may be shorter */
    bool aligned;               /* every run is aligned as its pack */
    const float *bias;
    bool relu, drops;
    dropout drop;
    float scale; /* dropout's: 1 / (1 - p) */
};

/* Bit j: column first + j of row i is kept. One Philox block decides DROPOUT_BLOCK columns; all
 * threads that share it compute it. */
static __device__ inline unsigned kept_here(const epilogue_job &job, unsigned i, unsigned first,
                                            unsigned count)
{
    if (!job.drops)
        return ~0u;
    if (job.drop.keep == nullptr)
        return dropout_kept(job.drop, i, first / DROPOUT_BLOCK) >> first % DROPOUT_BLOCK;
    unsigned kept = 0;
    for (unsigned j = 0; j < count; j++)
        kept |= (unsigned)(job.drop.keep[(size_t)i * job.features + first + j] != 0) << j;
    return kept;
}

static __device__ inline float epilogue_of(const epilogue_job &job, float value, unsigned column,
                                           bool stays)
{
    if (job.bias != nullptr)
        value += job.bias[column];
    if (job.relu && !(value > 0.0f))
        value = 0.0f;
    return stays ? value * job.scale : 0.0f;
}

/* A thread has PACKED neighbouring columns: one load and one store, coalesced over the warp. */
template <typename T> static __global__ void epilogue_kernel(epilogue_job job, T *y)
{
    constexpr unsigned N = PACKED<T>;
    static_assert(DROPOUT_BLOCK % N == 0, "a run has one Philox block");
    unsigned item = (unsigned)thread_index();
    unsigned i = item / job.runs, first = item % job.runs * N;
    if (i >= job.n)
        return;
    unsigned count = job.features - first < N ? job.features - first : N;
    unsigned kept = kept_here(job, i, first, count);
    T *run = y + (size_t)i * job.features + first;
    if (job.aligned) {
        pack<T, N> values = load_pack<N>(run);
        UNROLL
        for (unsigned j = 0; j < N; j++)
            values.v[j] = from_float<T>(
                epilogue_of(job, to_float(values.v[j]), first + j, (kept >> j & 1u) != 0));
        store_pack(run, values);
        return;
    }
    for (unsigned j = 0; j < count; j++)
        run[j] =
            from_float<T>(epilogue_of(job, to_float(run[j]), first + j, (kept >> j & 1u) != 0));
}

status cuda_linear_epilogue(device *dev, const linear_rows *rows, const linear_epilogue *epilogue,
                            void *y)
{
    epilogue_job job = {};
    job.n = (unsigned)rows->n;
    job.features = (unsigned)rows->features;
    job.bias = epilogue->bias;
    job.relu = epilogue->relu;
    job.drops = epilogue->drop != nullptr;
    job.scale = 1.0f;
    if (job.drops) {
        job.drop = *epilogue->drop;
        job.scale = 1.0f / (1.0f - job.drop.p);
    }
    return with_element(rows->is_float ? PRECISION_F32 : dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        job.runs = blocks_for(job.features, PACKED<T>);
        job.aligned = job.features % PACKED<T> == 0 && are_aligned(y);
        LAUNCH(cuda_state_of(dev)->stream, blocks_for((size_t)job.n * job.runs, THREADS), THREADS,
               (epilogue_kernel<T>), job, static_cast<T *>(y));
        return CUDA_CALL(cudaGetLastError());
    });
}

template <typename T>
static __global__ void relu_backward_kernel(size_t count, bool aligned, const T *x, float scale,
                                            T *dx)
{
    constexpr int N = PACKED<T>;
    size_t at = thread_index() * N;
    if (aligned && at + N <= count) {
        pack<T, N> before = load_pack<N>(x + at), gradient = load_pack<N>(dx + at);
        UNROLL
        for (int j = 0; j < N; j++) {
            float through = to_float(before.v[j]) > 0.0f ? to_float(gradient.v[j]) * scale : 0.0f;
            gradient.v[j] = from_float<T>(through);
        }
        store_pack(dx + at, gradient);
        return;
    }
    for (size_t end = at + N < count ? at + N : count; at < end; at++)
        dx[at] = from_float<T>(to_float(x[at]) > 0.0f ? to_float(dx[at]) * scale : 0.0f);
}

status cuda_relu_backward(device *dev, size_t count, const float *x, float scale, float *dx)
{
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        size_t runs = (count + PACKED<T> - 1) / PACKED<T>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for(runs, THREADS), THREADS,
               (relu_backward_kernel<T>), count, are_aligned(x, dx), reinterpret_cast<const T *>(x),
               scale, reinterpret_cast<T *>(dx));
        return CUDA_CALL(cudaGetLastError());
    });
}

/* A block has 32 columns. Each warp sums every 32nd row of them; then the first warp sums the
 * warps. */
constexpr unsigned COLUMNS = 32, ROWS = 32;

template <typename T>
static __global__ void column_sums_kernel(unsigned n, unsigned features, const T *dy,
                                          bool accumulate, float *db)
{
    SHARED(float, sums, COLUMNS *ROWS);
    unsigned lane = threadIdx.x % COLUMNS, row = threadIdx.x / COLUMNS;
    unsigned column = blockIdx.x * COLUMNS + lane;
    float sum = 0.0f;
    if (column < features) {
        UNROLL
        for (unsigned i = row; i < n; i += ROWS)
            sum += to_float(dy[(size_t)i * features + column]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (row > 0 || column >= features)
        return;
    sum = 0.0f;
    for (unsigned r = 0; r < ROWS; r++)
        sum += sums[r * COLUMNS + lane];
    db[column] = accumulate ? db[column] + sum : sum;
}

status cuda_column_sums(device *dev, int n, int features, const float *dy, bool accumulate,
                        float *db)
{
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for((size_t)features, COLUMNS), COLUMNS * ROWS,
               (column_sums_kernel<T>), (unsigned)n, (unsigned)features,
               reinterpret_cast<const T *>(dy), accumulate, db);
        return CUDA_CALL(cudaGetLastError());
    });
}
