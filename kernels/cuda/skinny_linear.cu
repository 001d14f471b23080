/* Linear layers of at most 16 outputs. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/vector.cuh"

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int OUTPUTS = SKINNY_OUTPUTS;
constexpr int RUN = 4; /* neighbouring features of a thread */

/* Features [at, at + RUN) of a row of `count`; zeros after its end. */
template <typename T>
static __device__ inline pack<float, RUN> load_run(const T *row, int at, int count, bool aligned)
{
    pack<float, RUN> out;
    if (aligned) {
        pack<T, RUN> in = load_pack<RUN>(row + at);
        for (int j = 0; j < RUN; j++)
            out.v[j] = to_float(in.v[j]);
    } else {
        for (int j = 0; j < RUN; j++)
            out.v[j] = at + j < count ? to_float(row[at + j]) : 0.0f;
    }
    return out;
}

struct layer_sizes {
    int n, inputs, outputs;
    bool aligned; /* all runs may be read and written at once */
};

/* A warp has one row of x and all outputs of it. */
constexpr unsigned FORWARD_WARPS = 4;

template <typename T>
static __global__ void forward_kernel(layer_sizes s, const T *x, const float *weight,
                                      const float *bias, float *y)
{
    int lane = (int)(threadIdx.x % WARP), i = (int)(thread_index() / WARP);
    if (i >= s.n)
        return;
    const T *row = x + (size_t)i * (size_t)s.inputs;
    float sums[OUTPUTS] = {}, mine = 0.0f;
    for (int at = lane * RUN; at < s.inputs; at += (int)WARP * RUN) {
        pack<float, RUN> in = load_run(row, at, s.inputs, s.aligned);
        UNROLL
        for (int o = 0; o < OUTPUTS; o++) {
            if (o >= s.outputs)
                break;
            pack<float, RUN> w =
                load_run(weight + (size_t)o * (size_t)s.inputs, at, s.inputs, s.aligned);
            for (int j = 0; j < RUN; j++)
                sums[o] += in.v[j] * w.v[j];
        }
    }
    UNROLL
    for (int o = 0; o < OUTPUTS; o++) {
        for (int step = (int)WARP / 2; step > 0; step /= 2)
            sums[o] += __shfl_xor_sync(ALL_LANES, sums[o], step);
        mine = lane == o ? sums[o] : mine;
    }
    if (lane < s.outputs)
        y[(size_t)i * (size_t)s.outputs + (size_t)lane] =
            bias != nullptr ? mine + bias[lane] : mine;
}

/* dw and db: db is dw's column for a feature that is always 1, at the end of each row of x. A block
 * has 32 columns and a split of TILE rows of the batch; each of its warps has every 8th of those
 * rows. If there are several splits, the last block of its columns sums them. */
constexpr int TILE = 128;
constexpr unsigned WEIGHT_WARPS = 8, WEIGHT_THREADS = WEIGHT_WARPS * WARP;

struct weights_job {
    layer_sizes s;
    unsigned chunks, splits; /* how many parts columns and rows have */
    float *partials;         /* (splits, outputs, inputs + 1) */
    unsigned *tickets;       /* (chunks) */
    param_gradients out;
};

static __device__ inline void store_gradient(const weights_job &job, int o, int column, float sum)
{
    float *to = column < job.s.inputs ? job.out.dw + (size_t)o * (size_t)job.s.inputs + column
                                      : job.out.db + o;
    *to = job.out.accumulate ? *to + sum : sum;
}

static __device__ inline float *partial_of(const weights_job &job, unsigned split, int o,
                                           int column)
{
    size_t row = (size_t)split * (size_t)job.s.outputs + (size_t)o;
    return job.partials + row * (size_t)(job.s.inputs + 1) + column;
}

/* Whether this block is the last of its columns' splits; then it sees all their partials. */
static __device__ bool block_is_last(const weights_job &job, unsigned chunk)
{
    SHARED(unsigned, last, 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last[0] = atomicInc(&job.tickets[chunk], job.splits - 1) == job.splits - 1;
        __threadfence();
    }
    __syncthreads();
    return last[0] != 0;
}

/* One column's sums over this warp's rows of the tile, per output; `from` is the column's first
 * element. Some rows are prefetched: their latencies overlap. */
constexpr int AHEAD = 4;

template <typename T>
static __device__ inline void sum_rows(const weights_job &job, int rows, int column, const T *from,
                                       const float *tile, float *sums)
{
    bool is_one = column == job.s.inputs;
    for (int r = (int)(threadIdx.x / WARP); r < rows; r += AHEAD * (int)WEIGHT_WARPS) {
        float values[AHEAD];
        UNROLL
        for (int k = 0; k < AHEAD; k++) {
            int row = r + k * (int)WEIGHT_WARPS;
            values[k] = 1.0f;
            if (row < rows && !is_one)
                values[k] = to_float(from[(size_t)row * (size_t)job.s.inputs]);
        }
        UNROLL
        for (int k = 0; k < AHEAD; k++) {
            int row = r + k * (int)WEIGHT_WARPS;
            if (row >= rows)
                break;
            UNROLL
            for (int o = 0; o < OUTPUTS; o++)
                sums[o] += tile[row * OUTPUTS + o] * values[k];
        }
    }
}

template <typename T>
static __global__ void weights_kernel(weights_job job, const T *x, const T *dy)
{
    SHARED(float, tile, TILE *OUTPUTS); /* dy's; zeros after the last output */
    SHARED(float, all, WEIGHT_WARPS *OUTPUTS *WARP);
    unsigned chunk = blockIdx.x % job.chunks, split = blockIdx.x / job.chunks;
    int lane = (int)(threadIdx.x % WARP), column = (int)(chunk * WARP) + lane;
    int first = (int)split * TILE, rows = job.s.n - first < TILE ? job.s.n - first : TILE;
    int outputs = job.s.outputs;
    for (int at = (int)threadIdx.x; at < rows * OUTPUTS; at += (int)WEIGHT_THREADS) {
        int o = at % OUTPUTS;
        size_t row = (size_t)(first + at / OUTPUTS) * (size_t)outputs;
        tile[at] = o < outputs ? to_float(dy[row + (size_t)o]) : 0.0f;
    }
    __syncthreads();
    float sums[OUTPUTS] = {};
    if (column <= job.s.inputs)
        sum_rows(job, rows, column, x + (size_t)first * (size_t)job.s.inputs + (size_t)column, tile,
                 sums);
    UNROLL
    for (int o = 0; o < OUTPUTS; o++)
        all[((int)(threadIdx.x / WARP) * OUTPUTS + o) * (int)WARP + lane] = sums[o];
    __syncthreads();
    for (int o = (int)(threadIdx.x / WARP); o < outputs; o += (int)WEIGHT_WARPS) {
        float sum = 0.0f;
        for (int warp = 0; warp < (int)WEIGHT_WARPS; warp++)
            sum += all[(warp * OUTPUTS + o) * (int)WARP + lane];
        if (column > job.s.inputs)
            continue;
        if (job.splits == 1)
            store_gradient(job, o, column, sum);
        else
            *partial_of(job, split, o, column) = sum;
    }
    if (job.splits == 1 || !block_is_last(job, chunk) || column > job.s.inputs)
        return;
    for (int o = (int)(threadIdx.x / WARP); o < outputs; o += (int)WEIGHT_WARPS) {
        float sum = 0.0f;
        for (unsigned k = 0; k < job.splits; k++)
            sum += *partial_of(job, k, o, column);
        store_gradient(job, o, column, sum);
    }
}

/* A thread has RUN features of one row of dx. */
constexpr unsigned DATA_THREADS = 128;

template <typename T>
static __global__ void data_kernel(layer_sizes s, const float *weight, const T *dy, const T *x,
                                   float scale, T *dx)
{
    size_t runs = (size_t)((s.inputs + RUN - 1) / RUN), item = thread_index();
    size_t i = item / runs;
    int at = (int)(item % runs) * RUN;
    if (i >= (size_t)s.n)
        return;
    pack<float, RUN> sums = {};
    UNROLL
    for (int o = 0; o < OUTPUTS; o++) {
        if (o >= s.outputs)
            break;
        float factor = to_float(dy[i * (size_t)s.outputs + (size_t)o]);
        pack<float, RUN> w =
            load_run(weight + (size_t)o * (size_t)s.inputs, at, s.inputs, s.aligned);
        for (int j = 0; j < RUN; j++)
            sums.v[j] += factor * w.v[j];
    }
    size_t first = i * (size_t)s.inputs + (size_t)at;
    if (x != nullptr) {
        pack<float, RUN> before = load_run(x + i * (size_t)s.inputs, at, s.inputs, s.aligned);
        for (int j = 0; j < RUN; j++)
            sums.v[j] = before.v[j] > 0.0f ? sums.v[j] * scale : 0.0f;
    }
    pack<T, RUN> out;
    for (int j = 0; j < RUN; j++)
        out.v[j] = from_float<T>(sums.v[j]);
    if (s.aligned)
        store_pack(dx + first, out);
    else
        for (int j = 0; j < RUN && at + j < s.inputs; j++)
            dx[first + (size_t)j] = out.v[j];
}

static unsigned chunks_of(int in_features)
{
    return blocks_for((size_t)in_features + 1, WARP);
}

size_t cuda_skinny_partials(int in_features, int out_features, int max_n)
{
    size_t splits = blocks_for((size_t)max_n, TILE);
    return splits > 1 ? splits * (size_t)out_features * ((size_t)in_features + 1) : 0;
}

size_t cuda_skinny_tickets(int in_features)
{
    return chunks_of(in_features);
}

status cuda_skinny_forward(const skinny_linear *layer, int n, const float *x, const float *weight,
                           const float *bias, float *y)
{
    const device *dev = layer->dev;
    layer_sizes s = {n, layer->in_features, layer->out_features, false};
    s.aligned = s.inputs % RUN == 0 && are_aligned(x, weight);
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for((size_t)n, FORWARD_WARPS),
               FORWARD_WARPS * WARP, (forward_kernel<T>), s, reinterpret_cast<const T *>(x), weight,
               bias, y);
        return CUDA_CALL(cudaGetLastError());
    });
}

status cuda_skinny_backward_weights(const skinny_linear *layer, int n, const float *x,
                                    const float *dy, const param_gradients *out)
{
    const device *dev = layer->dev;
    weights_job job = {};
    job.s = {n, layer->in_features, layer->out_features, false};
    job.chunks = chunks_of(layer->in_features);
    job.splits = blocks_for((size_t)n, TILE);
    job.partials = layer->partials;
    job.tickets = layer->tickets;
    job.out = *out;
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, job.chunks * job.splits, WEIGHT_THREADS,
               (weights_kernel<T>), job, reinterpret_cast<const T *>(x),
               reinterpret_cast<const T *>(dy));
        return CUDA_CALL(cudaGetLastError());
    });
}

status cuda_skinny_backward_data(const skinny_linear *layer, int n, const float *weight,
                                 const float *dy, const relu_output *input, float *dx)
{
    const device *dev = layer->dev;
    const float *x = input != nullptr ? input->y : nullptr;
    float scale = input != nullptr ? 1.0f / (1.0f - input->p) : 1.0f;
    layer_sizes s = {n, layer->in_features, layer->out_features, false};
    s.aligned = s.inputs % RUN == 0 && are_aligned(weight, x, dx);
    size_t items = (size_t)n * (size_t)((s.inputs + RUN - 1) / RUN);
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for(items, DATA_THREADS), DATA_THREADS,
               (data_kernel<T>), s, weight, reinterpret_cast<const T *>(dy),
               reinterpret_cast<const T *>(x), scale, reinterpret_cast<T *>(dx));
        return CUDA_CALL(cudaGetLastError());
    });
}
