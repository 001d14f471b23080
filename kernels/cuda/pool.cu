/* Relu, 2x2 max-pooling and dropout, channels innermost. A thread has the 16 channels of one output
 * pixel that one Philox block decides. The backward pass needs a code of 4 bits per output: which
 * of the window's four won, and whether it passed. It reads no activation. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 128;
constexpr unsigned LANES = DROPOUT_BLOCK; /* channels of a thread */
constexpr unsigned CODE_BITS = 4;
constexpr unsigned PASSED = 4; /* in a code, beside the winner 0..3 */

typedef uint64_t pool_codes; /* a thread's channels' */

/* Sizes of the output; `blocks` of LANES channels in a sample's. */
struct pool_sizes {
    unsigned n, width, channels, blocks;
};

/* The thread's place in the arrays. */
struct pool_place {
    unsigned i, block;     /* sample, and block of it */
    size_t output, window; /* the first of its elements in y, and of its window in z */
    size_t row;            /* elements in a row of z */
};

static __device__ inline pool_place pool_place_of(const pool_sizes &s, size_t item)
{
    pool_place at;
    unsigned groups = s.channels / LANES;
    at.i = (unsigned)(item / s.blocks);
    at.block = (unsigned)(item % s.blocks);
    unsigned pixel = at.block / groups, first = at.block % groups * LANES;
    at.output = item * LANES;
    at.row = (size_t)2 * s.width * s.channels;
    size_t row = (size_t)at.i * (s.blocks / groups / s.width) * 2 + pixel / s.width * 2;
    at.window = row * at.row + (size_t)(pixel % s.width) * 2 * s.channels + first;
    return at;
}

/* Bit j: channel j of the thread is kept. */
static __device__ inline unsigned kept_here(const pool_sizes &s, const pool_place &at,
                                            const dropout &drop)
{
    if (drop.p <= 0.0f)
        return ~0u;
    if (drop.keep == nullptr)
        return dropout_kept(drop, at.i, at.block);
    unsigned groups = s.channels / LANES, area = s.blocks / groups, kept = 0;
    size_t plane = (size_t)at.i * s.channels + at.block % groups * LANES;
    for (unsigned j = 0; j < LANES; j++)
        kept |= (unsigned)(drop.keep[(plane + j) * area + at.block / groups] != 0) << j;
    return kept;
}

template <typename T>
static __global__ void forward_kernel(pool_sizes s, const T *z, dropout drop, T *y,
                                      pool_codes *codes)
{
    constexpr int N = PACKED<T>;
    pool_place at = pool_place_of(s, thread_index());
    if (at.i >= s.n)
        return;
    unsigned kept = kept_here(s, at, drop);
    float scale = 1.0f / (1.0f - drop.p);
    const T *window = z + at.window;
    pool_codes all = 0;
    UNROLL
    for (unsigned first = 0; first < LANES; first += N) {
        pack<T, N> four[4] = {load_pack<N>(window + first),
                              load_pack<N>(window + s.channels + first),
                              load_pack<N>(window + at.row + first),
                              load_pack<N>(window + at.row + s.channels + first)};
        float values[N];
        pack<T, N> out;
        UNROLL
        for (unsigned j = 0; j < N; j++) {
            float best = to_float(four[0].v[j]);
            unsigned code = 0;
            UNROLL
            for (unsigned k = 1; k < 4; k++) {
                float value = to_float(four[k].v[j]);
                code = value > best ? k : code;
                best = value > best ? value : best;
            }
            bool stays = (kept >> (first + j) & 1u) != 0;
            values[j] = best > 0.0f && stays ? best * scale : 0.0f;
            all |= (pool_codes)code << (CODE_BITS * (first + j));
        }
        UNROLL
        for (unsigned j = 0; j < N; j += 2)
            round_pair(values[j], values[j + 1], &out.v[j]);
        UNROLL
        for (unsigned j = 0; j < N; j++)
            all |= (pool_codes)(to_float(out.v[j]) > 0.0f ? PASSED : 0)
                   << (CODE_BITS * (first + j));
        store_pack(y + at.output + first, out);
    }
    codes[at.output / LANES] = all;
}

/* One window's share of dz; what it passes is added to sum. */
template <typename T>
static __device__ inline void spread(const pool_sizes &s, const pool_place &at, pool_codes all,
                                     const T *dy, float scale, T *dz, float (&sum)[LANES])
{
    constexpr int N = PACKED<T>;
    T *window = dz + at.window;
    UNROLL
    for (unsigned first = 0; first < LANES; first += N) {
        pack<T, N> in = load_pack<N>(dy + at.output + first), four[4];
        UNROLL
        for (unsigned j = 0; j < N; j += 2) {
            unsigned codes = (unsigned)(all >> (CODE_BITS * (first + j)));
            bool passed[2] = {(codes & PASSED) != 0, (codes >> CODE_BITS & PASSED) != 0};
            T through[2];
            round_pair(passed[0] ? to_float(in.v[j]) * scale : 0.0f,
                       passed[1] ? to_float(in.v[j + 1]) * scale : 0.0f, through);
            UNROLL
            for (unsigned i = 0; i < 2; i++) {
                sum[first + j + i] += to_float(through[i]);
                unsigned winner = codes >> (CODE_BITS * i) & 3u;
                UNROLL
                for (unsigned k = 0; k < 4; k++)
                    four[k].v[j + i] = k == winner ? through[i] : from_float<T>(0.0f);
            }
        }
        store_pack(window + first, four[0]);
        store_pack(window + s.channels + first, four[1]);
        store_pack(window + at.row + first, four[2]);
        store_pack(window + at.row + s.channels + first, four[3]);
    }
}

/* Sums over the block's threads, in their order. Every `groups`th thread has the same channels. */
static __device__ void leave_sums(unsigned channels, const float (&sum)[LANES], float *partial)
{
    constexpr unsigned ROW = THREADS + 1; /* no bank conflicts in either direction */
    SHARED(float, shared, (LANES * ROW));
    unsigned groups = channels / LANES;
    UNROLL
    for (unsigned j = 0; j < LANES; j++)
        shared[j * ROW + threadIdx.x] = sum[j];
    __syncthreads();
    for (unsigned c = threadIdx.x; c < channels; c += THREADS) {
        float total = 0.0f;
        for (unsigned t = c / LANES; t < THREADS; t += groups)
            total += shared[c % LANES * ROW + t];
        partial[(size_t)c * gridDim.x + blockIdx.x] = total;
    }
}

/* Launches have a multiple of channels / LANES threads, so that a thread's channels stay the same;
 * `partial` as cuda_pool_sums has it, or NULL. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, CUDA_POOL_BLOCKS)
    backward_kernel(pool_sizes s, const pool_codes *codes, const T *dy, float scale, T *dz,
                    float *partial)
{
    float sum[LANES] = {};
    size_t items = (size_t)s.n * s.blocks;
    for (size_t item = thread_index(); item < items; item += thread_count())
        spread(s, pool_place_of(s, item), codes[item], dy, scale, dz, sum);
    if (partial != nullptr)
        leave_sums(s.channels, sum, partial);
}

static pool_sizes sizes_of(const pool_shape *shape)
{
    ASSERT(shape->channels % (int)LANES == 0 && shape->height % 2 == 0 && shape->width % 2 == 0);
    unsigned width = (unsigned)shape->width / 2, height = (unsigned)shape->height / 2;
    unsigned channels = (unsigned)shape->channels;
    return {(unsigned)shape->n, width, channels, height * width * (channels / LANES)};
}

status cuda_pool_forward(device *dev, const pool_shape *shape, const float *z, const dropout *drop,
                         const pool_output *out)
{
    pool_sizes s = sizes_of(shape);
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks_for((size_t)s.n * s.blocks, THREADS), THREADS,
               (forward_kernel<T>), s, reinterpret_cast<const T *>(z), *drop,
               reinterpret_cast<T *>(out->y), reinterpret_cast<pool_codes *>(out->argmax));
        return CUDA_CALL(cudaGetLastError());
    });
}

status cuda_pool_backward(device *dev, const pool_shape *shape, const pool_output *out,
                          const float *dy, float p, float *dz)
{
    cuda_state *state = cuda_state_of(dev);
    cuda_pool_sums *sums = &state->pool_sums;
    pool_sizes s = sizes_of(shape);
    bool summed = shape->channels <= sums->room && THREADS % (s.channels / LANES) == 0;
    unsigned wanted = blocks_for((size_t)s.n * s.blocks, THREADS);
    unsigned most = CUDA_POOL_BLOCKS * (unsigned)state->multiprocessors;
    unsigned blocks = wanted < most ? wanted : most;
    status st = with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(state->stream, blocks, THREADS, (backward_kernel<T>), s,
               reinterpret_cast<const pool_codes *>(out->argmax), reinterpret_cast<const T *>(dy),
               1.0f / (1.0f - p), reinterpret_cast<T *>(dz), summed ? sums->partial : nullptr);
        return CUDA_CALL(cudaGetLastError());
    });
    sums->dz = summed && st == STATUS_OK ? dz : nullptr;
    sums->rows = (size_t)shape->n * (size_t)(shape->height * shape->width);
    sums->channels = shape->channels;
    sums->blocks = blocks;
    return st;
}
