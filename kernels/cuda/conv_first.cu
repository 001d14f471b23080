/* A thread has one column and CHANNELS neighbouring output channels. It goes down the rows of its
 * strip with a window of 3x3 pixels in registers. So a warp's stores are coalesced, and the weights
 * (backward: the sums of their gradients) stay in registers for the block's lifetime. A block loops
 * over images and prefetches the next one's pixels. If there are few images, they are cut into
 * parts, for more blocks. */
#include "kernels/cuda/conv_first.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

#include <algorithm>
#include <cstring>

constexpr unsigned TAPS = 9;
constexpr unsigned CHANNELS = 8;      /* of a thread */
constexpr unsigned MAX_CHANNELS = 64; /* of the output */
constexpr unsigned THREADS = 224;
constexpr unsigned WARP = 32;
constexpr unsigned PIXELS = 4; /* of a thread, when an image is fetched */
constexpr unsigned MAX_PIXELS = PIXELS * THREADS;
constexpr unsigned MIN_ROWS = 2; /* of a strip: no fewer than are fetched ahead */
constexpr unsigned EVERY_LANE = 0xFFFFFFFFu;

/* N elements as they come from memory, in as few registers as they fit in: unpacked when used. */
template <typename T, unsigned N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) raw {
    uint32_t words[sizeof(T) * N / sizeof(uint32_t)];
};

template <unsigned N, typename T> static __device__ inline raw<T, N> load_raw(const T *from)
{
    return *reinterpret_cast<const raw<T, N> *>(from);
}

template <typename T, unsigned N>
static __device__ inline void unpack(const raw<T, N> &from, float (&out)[N])
{
    T elements[N];
    memcpy(elements, &from, sizeof elements);
    UNROLL
    for (unsigned j = 0; j < N; j++)
        out[j] = to_float(elements[j]);
}

/* How the threads share the work. A block does one part of every (step)th image. */
struct layout {
    unsigned height, width, out_h, out_w, channels;
    unsigned groups; /* of CHANNELS channels */
    unsigned lanes;  /* threads of a strip: columns, and in each the groups */
    unsigned strips; /* of a part */
    unsigned parts;  /* of an image */
    unsigned n;      /* images */
    unsigned step;   /* to a block's next image */
};

/* A thread's part of the work. Threads beyond the last strip only fetch pixels. */
struct place {
    unsigned lane, first, last; /* rows of the strip, in each image */
    bool works;
};

static __device__ inline place place_of(const layout &l)
{
    unsigned lane = threadIdx.x % l.lanes, strip = threadIdx.x / l.lanes;
    bool works = strip < l.strips;
    strip += blockIdx.x % l.parts * l.strips;
    unsigned strips = l.parts * l.strips;
    return {lane, strip * l.out_h / strips, (strip + 1) * l.out_h / strips, works};
}

static __device__ inline unsigned first_image(const layout &l)
{
    return blockIdx.x / l.parts;
}

/* The first of the thread's output channels, and its pixel's neighbourhood in a fetched image. */
static __device__ inline unsigned channel_of(const layout &l, const place &p)
{
    return p.lane % l.groups * CHANNELS;
}

static __device__ inline unsigned corner_of(const layout &l, const place &p)
{
    return p.first * l.width + p.lane / l.groups;
}

/* The offset in y of the thread's channels of its strip. */
static __device__ inline unsigned offset_of(const layout &l, const place &p, unsigned image)
{
    unsigned row = image * l.out_h + p.first;
    return row * l.out_w * l.channels + p.lane * CHANNELS;
}

template <typename T>
static __device__ inline void fetch_image(const layout &l, const T *x, unsigned image,
                                          raw<T, PIXELS> *pixels)
{
    unsigned count = l.height * l.width, first = threadIdx.x * PIXELS;
    if (image < l.n && first < count)
        *pixels = load_raw<PIXELS>(x + (size_t)image * count + first);
}

template <typename T>
static __device__ inline void put_image(const raw<T, PIXELS> &pixels, float *tile)
{
    pack<float, PIXELS> values;
    unpack(pixels, values.v);
    store_pack(tile + threadIdx.x * PIXELS, values);
}

static __device__ inline void read_row(const float *tile, float (&row)[3])
{
    UNROLL
    for (unsigned j = 0; j < 3; j++)
        row[j] = tile[j];
}

/* Before a new lowest row is read. */
static __device__ inline void move_down(float (&window)[3][3])
{
    UNROLL
    for (unsigned j = 0; j < 3; j++) {
        window[0][j] = window[1][j];
        window[1][j] = window[2][j];
    }
}

template <typename T>
static __device__ inline void store_channels(T *to, const float (&values)[CHANNELS])
{
    constexpr unsigned N = PACKED<T>;
    UNROLL
    for (unsigned first = 0; first < CHANNELS; first += N) {
        pack<T, N> out;
        UNROLL
        for (unsigned j = 0; j < N; j++)
            out.v[j] = from_float<T>(values[first + j]);
        store_pack(to + first, out);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, CONV_FIRST_BLOCKS)
    forward_kernel(layout l, const T *x, const float *weight, const float *bias, T *y)
{
    SHARED(float4, room, (2 * MAX_PIXELS / 4));
    float *const tiles = reinterpret_cast<float *>(room);
    SHARED(float, weights, (MAX_CHANNELS * TAPS));
    const place p = place_of(l);
    for (unsigned i = threadIdx.x; i < l.channels * TAPS; i += THREADS)
        weights[i] = weight[i];
    __syncthreads();
    float w[CHANNELS][TAPS], b[CHANNELS], window[3][3];
    raw<T, PIXELS> pixels = {};
    UNROLL
    for (unsigned k = 0; k < CHANNELS; k++) {
        b[k] = bias[channel_of(l, p) + k];
        UNROLL
        for (unsigned j = 0; j < TAPS; j++)
            w[k][j] = weights[(channel_of(l, p) + k) * TAPS + j];
    }
    fetch_image(l, x, first_image(l), &pixels);
    float *tile = tiles;
    for (unsigned image = first_image(l); image < l.n; image += l.step) {
        put_image(pixels, tile);
        __syncthreads();
        fetch_image(l, x, image + l.step, &pixels);
        const float *from = tile + corner_of(l, p);
        tile = tile == tiles ? tiles + MAX_PIXELS : tiles;
        if (!p.works)
            continue;
        T *to = y + offset_of(l, p, image);
        read_row(from, window[1]);
        read_row(from + l.width, window[2]);
        for (unsigned row = p.first; row < p.last; row++) {
            float out[CHANNELS];
            move_down(window);
            read_row(from + 2 * l.width, window[2]);
            UNROLL
            for (unsigned k = 0; k < CHANNELS; k++) {
                out[k] = b[k];
                UNROLL
                for (unsigned j = 0; j < TAPS; j++)
                    out[k] += w[k][j] * window[j / 3][j % 3];
                out[k] = out[k] > 0.0f ? out[k] : 0.0f;
            }
            store_channels(to, out);
            from += l.width;
            to += l.out_w * l.channels;
        }
    }
}

/* The thread's channels of one row, prefetched. */
template <typename T> struct coming {
    raw<T, CHANNELS> y, dy;
};

/* Rows that are prefetched: as many as there are registers for. */
template <typename T> constexpr unsigned DEPTH = sizeof(T) == 2 ? 2 : 1;

template <typename T>
static __device__ inline void fetch_row(const T *y, const T *dy, unsigned at, coming<T> *out)
{
    out->y = load_raw<CHANNELS>(y + at);
    out->dy = load_raw<CHANNELS>(dy + at);
}

/* The gradient before the relu. */
template <typename T>
static __device__ inline void unpack_row(const coming<T> &row, float (&dz)[CHANNELS])
{
    float y[CHANNELS];
    unpack(row.y, y);
    unpack(row.dy, dz);
    UNROLL
    for (unsigned k = 0; k < CHANNELS; k++)
        dz[k] = y[k] > 0.0f ? dz[k] : 0.0f;
}

/* A thread's sums: for each of its channels the weights' and, last, the bias's. */
typedef float sums_of_thread[CHANNELS][TAPS + 1];

static __device__ inline void add_row(const float (&dz)[CHANNELS], const float (&window)[3][3],
                                      sums_of_thread &sums)
{
    UNROLL
    for (unsigned k = 0; k < CHANNELS; k++) {
        UNROLL
        for (unsigned j = 0; j < TAPS; j++)
            sums[k][j] += dz[k] * window[j / 3][j % 3];
        sums[k][TAPS] += dz[k];
    }
}

/* Sums over the block's threads into partial (values, blocks): a warp's threads of one group by a
 * tree, then the warps in order. */
static __device__ inline void leave_sums(const layout &l, const place &p, sums_of_thread &sums,
                                         float *partial)
{
    SHARED(float, totals, (THREADS / WARP * MAX_CHANNELS * (TAPS + 1)));
    const unsigned values = l.channels * (TAPS + 1);
    for (unsigned offset = WARP / 2; offset >= l.groups; offset /= 2) {
        UNROLL
        for (unsigned k = 0; k < CHANNELS; k++) {
            UNROLL
            for (unsigned j = 0; j <= TAPS; j++)
                sums[k][j] += __shfl_xor_sync(EVERY_LANE, sums[k][j], (int)offset);
        }
    }
    if (threadIdx.x % WARP < l.groups) {
        float *to = totals + threadIdx.x / WARP * values;
        UNROLL
        for (unsigned k = 0; k < CHANNELS; k++) {
            unsigned channel = channel_of(l, p) + k;
            UNROLL
            for (unsigned j = 0; j < TAPS; j++)
                to[channel * TAPS + j] = sums[k][j];
            to[l.channels * TAPS + channel] = sums[k][TAPS];
        }
    }
    __syncthreads();
    for (unsigned v = threadIdx.x; v < values; v += THREADS) {
        float total = 0.0f;
        for (unsigned warp = 0; warp < THREADS / WARP; warp++)
            total += totals[warp * values + v];
        partial[(size_t)v * gridDim.x + blockIdx.x] = total;
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, CONV_FIRST_BLOCKS)
    backward_kernel(layout l, const T *x, const T *y, const T *dy, float *partial)
{
    SHARED(float4, room, (2 * MAX_PIXELS / 4));
    float *const tiles = reinterpret_cast<float *>(room);
    const place p = place_of(l);
    const unsigned row_size = l.out_w * l.channels;
    const unsigned to_next =
        (l.step * l.out_h - (p.last - p.first)) * row_size; /* from the last row */
    unsigned at = offset_of(l, p, first_image(l));
    sums_of_thread sums = {};
    float window[3][3];
    raw<T, PIXELS> pixels = {};
    coming<T> rows[DEPTH<T>] = {};
    UNROLL
    for (unsigned d = 0; d < DEPTH<T>; d++)
        if (p.works)
            fetch_row(y, dy, at + d * row_size, &rows[d]);
    fetch_image(l, x, first_image(l), &pixels);
    float *tile = tiles;
    for (unsigned image = first_image(l); image < l.n; image += l.step, at += to_next) {
        put_image(pixels, tile);
        __syncthreads();
        fetch_image(l, x, image + l.step, &pixels);
        const float *from = tile + corner_of(l, p);
        tile = tile == tiles ? tiles + MAX_PIXELS : tiles;
        if (!p.works)
            continue;
        read_row(from, window[1]);
        read_row(from + l.width, window[2]);
        for (unsigned left = p.last - p.first; left > 0; left--, at += row_size) {
            float dz[CHANNELS];
            unpack_row(rows[0], dz);
            UNROLL
            for (unsigned d = 1; d < DEPTH<T>; d++)
                rows[d - 1] = rows[d];
            bool here = left > DEPTH<T>;
            if (here || image + l.step < l.n)
                fetch_row(y, dy, at + DEPTH<T> * row_size + (here ? 0 : to_next),
                          &rows[DEPTH<T> - 1]);
            move_down(window);
            read_row(from + 2 * l.width, window[2]);
            add_row(dz, window, sums);
            from += l.width;
        }
    }
    leave_sums(l, p, sums, partial);
}

status conv_first_check(const conv2d_shape *s, int max_n)
{
    if (s->channels != 1 || s->kernel != 3 || !s->relu)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution of plain input is 3x3, of one channel, with a "
                    "relu; not %dx%d of %d channels",
                    s->kernel, s->kernel, s->channels);
    int channels = (int)CHANNELS, groups = s->out_channels / channels;
    int out_h = s->height - 2, out_w = s->width - 2, pixels = s->height * s->width;
    bool halves = groups > 0 && s->out_channels % channels == 0 && (groups & (groups - 1)) == 0;
    if (!halves || s->out_channels > (int)MAX_CHANNELS || out_h < (int)MIN_ROWS || out_w < 1 ||
        pixels > (int)MAX_PIXELS || pixels % (int)PIXELS != 0 || out_w * groups > (int)THREADS)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution of plain input has 8, 16, 32 or 64 output "
                    "channels, at most %u pixels (a multiple of %u) and %u outputs in a row; not "
                    "%d channels of %dx%d",
                    MAX_PIXELS, PIXELS, THREADS * CHANNELS, s->out_channels, s->height, s->width);
    int most = INT32_MAX / (s->out_channels * out_h * out_w);
    if (max_n > most)
        return FAIL(STATUS_INVALID, "cuda device: a batch has at most %d images, not %d", most,
                    max_n);
    return STATUS_OK;
}

/* As many parts as the GPU has room for blocks, of at least MIN_ROWS rows per strip. */
static layout layout_of(const conv_first_pass *pass, unsigned *blocks)
{
    const conv2d_shape *s = pass->shape;
    layout l = {};
    unsigned room = CONV_FIRST_BLOCKS * (unsigned)cuda_state_of(pass->dev)->multiprocessors;
    l.height = (unsigned)s->height;
    l.width = (unsigned)s->width;
    l.out_h = l.height - 2;
    l.out_w = l.width - 2;
    l.channels = (unsigned)s->out_channels;
    l.groups = l.channels / CHANNELS;
    l.lanes = l.out_w * l.groups;
    l.n = (unsigned)pass->n;
    l.strips = std::min(THREADS / l.lanes, l.out_h / MIN_ROWS);
    l.parts = std::max(std::min(room / l.n, l.out_h / l.strips / MIN_ROWS), 1u);
    l.step = std::min(room / l.parts, l.n);
    *blocks = l.step * l.parts;
    return l;
}

status conv_first_forward(const conv_first_pass *pass, const void *x, const float *weight,
                          const float *bias, void *y)
{
    unsigned blocks = 0;
    const device *dev = pass->dev;
    layout l = layout_of(pass, &blocks);
    ASSERT(are_aligned(x, y));
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks, THREADS, (forward_kernel<T>), l,
               static_cast<const T *>(x), weight, bias, static_cast<T *>(y));
        return CUDA_CALL(cudaGetLastError());
    });
}

status conv_first_backward_weights(const conv_first_pass *pass, const void *x, const void *y,
                                   const void *dy, const conv_sums *sums, const conv_gradient *out)
{
    unsigned blocks = 0;
    const device *dev = pass->dev;
    layout l = layout_of(pass, &blocks);
    ASSERT(are_aligned(x, y, dy) && blocks <= sums->max_blocks);
    status st = with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        LAUNCH(cuda_state_of(dev)->stream, blocks, THREADS, (backward_kernel<T>), l,
               static_cast<const T *>(x), static_cast<const T *>(y), static_cast<const T *>(dy),
               sums->partial);
        return CUDA_CALL(cudaGetLastError());
    });
    TRY(st);
    return conv_sums_finish(dev, sums, blocks, out);
}
