/* A thread has one column and CHANNELS neighbouring output channels. It goes down the rows of its
 * strip with a window of SIDE x SIDE pixels in registers. So a warp's stores are coalesced, and the
 * weights (backward: the sums of their gradients) stay in registers for the block's lifetime. A
 * block loops over images and prefetches the next one's pixels. If there are few images, they are
 * cut into parts, for more blocks.
 *
 * SIDE is the kernel's, a template parameter. 3: a relu follows. 5: none does. */
#include "kernels/cuda/conv_kernels.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

#include <algorithm>
#include <cstring>

template <unsigned SIDE> constexpr unsigned TAPS = SIDE *SIDE;
template <unsigned SIDE> constexpr bool RELU = SIDE == 3;

/* Of a thread: as many as there are registers for their weights. */
template <unsigned SIDE> constexpr unsigned CHANNELS = SIDE == 3 ? 8 : 2;

constexpr unsigned MAX_GROUPS = 8; /* groups of CHANNELS in the output */
template <unsigned SIDE> constexpr unsigned MAX_CHANNELS = MAX_GROUPS *CHANNELS<SIDE>;

/* Room for two strips of 26 columns and 4 groups. ptxas then spills at most 12 bytes of 3x3's
 * backward pass (sm_90), which are read once an image, not once a row. */
constexpr unsigned THREADS = 224;
constexpr unsigned WARP = 32;
constexpr unsigned PIXELS = 4; /* a thread's, when an image is fetched */
constexpr unsigned MAX_PIXELS = PIXELS * THREADS;
constexpr unsigned MIN_ROWS = 2; /* a strip's: no fewer than are fetched ahead */
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
    unsigned groups; /* each has CHANNELS channels */
    unsigned lanes;  /* threads of a strip: columns, and in each the groups */
    unsigned strips; /* a part's */
    unsigned parts;  /* an image's */
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
template <unsigned SIDE>
static __device__ inline unsigned channel_of(const layout &l, const place &p)
{
    return p.lane % l.groups * CHANNELS<SIDE>;
}

static __device__ inline unsigned corner_of(const layout &l, const place &p)
{
    return p.first * l.width + p.lane / l.groups;
}

/* The offset in y of the thread's channels of its strip. */
template <unsigned SIDE>
static __device__ inline unsigned offset_of(const layout &l, const place &p, unsigned image)
{
    unsigned row = image * l.out_h + p.first;
    return row * l.out_w * l.channels + p.lane * CHANNELS<SIDE>;
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

/* The pixels under a kernel. */
template <unsigned SIDE> using pixel_window = float[SIDE][SIDE];

template <unsigned SIDE>
static __device__ inline void read_row(const float *tile, float (&row)[SIDE])
{
    UNROLL
    for (unsigned j = 0; j < SIDE; j++)
        row[j] = tile[j];
}

/* All rows but the lowest, one below where move_down takes them. */
template <unsigned SIDE>
static __device__ inline void read_upper(const layout &l, const float *tile,
                                         pixel_window<SIDE> &window)
{
    UNROLL
    for (unsigned i = 1; i < SIDE; i++)
        read_row<SIDE>(tile + (i - 1) * l.width, window[i]);
}

/* Goes down a row: reads the new lowest one. */
template <unsigned SIDE>
static __device__ inline void move_down(const layout &l, const float *tile,
                                        pixel_window<SIDE> &window)
{
    UNROLL
    for (unsigned i = 1; i < SIDE; i++) {
        UNROLL
        for (unsigned j = 0; j < SIDE; j++)
            window[i - 1][j] = window[i][j];
    }
    read_row<SIDE>(tile + (SIDE - 1) * l.width, window[SIDE - 1]);
}

template <unsigned COUNT, typename T>
static __device__ inline void store_channels(T *to, const float (&values)[COUNT])
{
    constexpr unsigned N = COUNT < PACKED<T> ? COUNT : PACKED<T>;
    UNROLL
    for (unsigned first = 0; first < COUNT; first += N) {
        pack<T, N> out;
        UNROLL
        for (unsigned j = 0; j < N; j++)
            out.v[j] = from_float<T>(values[first + j]);
        store_pack(to + first, out);
    }
}

template <unsigned SIDE, typename T>
static __global__ void __launch_bounds__(THREADS, CONV_FIRST_BLOCKS)
    forward_kernel(layout l, const T *x, const float *weight, const float *bias, T *y)
{
    SHARED(float4, room, (2 * MAX_PIXELS / 4));
    float *const tiles = reinterpret_cast<float *>(room);
    SHARED(float, weights, (MAX_CHANNELS<SIDE> * TAPS<SIDE>));
    const place p = place_of(l);
    for (unsigned i = threadIdx.x; i < l.channels * TAPS<SIDE>; i += THREADS)
        weights[i] = weight[i];
    __syncthreads();
    float w[CHANNELS<SIDE>][TAPS<SIDE>], b[CHANNELS<SIDE>];
    pixel_window<SIDE> window;
    raw<T, PIXELS> pixels = {};
    UNROLL
    for (unsigned k = 0; k < CHANNELS<SIDE>; k++) {
        b[k] = bias[channel_of<SIDE>(l, p) + k];
        UNROLL
        for (unsigned j = 0; j < TAPS<SIDE>; j++)
            w[k][j] = weights[(channel_of<SIDE>(l, p) + k) * TAPS<SIDE> + j];
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
        T *to = y + offset_of<SIDE>(l, p, image);
        read_upper<SIDE>(l, from, window);
        for (unsigned row = p.first; row < p.last; row++) {
            float out[CHANNELS<SIDE>];
            move_down<SIDE>(l, from, window);
            UNROLL
            for (unsigned k = 0; k < CHANNELS<SIDE>; k++) {
                out[k] = b[k];
                UNROLL
                for (unsigned j = 0; j < TAPS<SIDE>; j++)
                    out[k] += w[k][j] * window[j / SIDE][j % SIDE];
                if (RELU<SIDE>)
                    out[k] = out[k] > 0.0f ? out[k] : 0.0f;
            }
            store_channels(to, out);
            from += l.width;
            to += l.out_w * l.channels;
        }
    }
}

/* The thread's channels of one row, prefetched. */
template <unsigned SIDE, typename T> struct coming {
    raw<T, CHANNELS<SIDE>> y, dy; /* without a relu, y is not read */
};

/* Rows that are prefetched: as many as there are registers for. */
template <typename T> constexpr unsigned DEPTH = sizeof(T) == 2 ? 2 : 1;

template <unsigned SIDE, typename T>
static __device__ inline void fetch_row(const T *y, const T *dy, unsigned at, coming<SIDE, T> *out)
{
    if (RELU<SIDE>)
        out->y = load_raw<CHANNELS<SIDE>>(y + at);
    out->dy = load_raw<CHANNELS<SIDE>>(dy + at);
}

/* The gradient before the relu. */
template <unsigned SIDE, typename T>
static __device__ inline void unpack_row(const coming<SIDE, T> &row, float (&dz)[CHANNELS<SIDE>])
{
    unpack(row.dy, dz);
    if (!RELU<SIDE>)
        return;
    float y[CHANNELS<SIDE>];
    unpack(row.y, y);
    UNROLL
    for (unsigned k = 0; k < CHANNELS<SIDE>; k++)
        dz[k] = y[k] > 0.0f ? dz[k] : 0.0f;
}

/* A thread's sums: for each of its channels the weights' and, last, the bias's. */
template <unsigned SIDE> using sums_of_thread = float[CHANNELS<SIDE>][TAPS<SIDE> + 1];

template <unsigned SIDE>
static __device__ inline void add_row(const float (&dz)[CHANNELS<SIDE>],
                                      const pixel_window<SIDE> &window, sums_of_thread<SIDE> &sums)
{
    UNROLL
    for (unsigned k = 0; k < CHANNELS<SIDE>; k++) {
        UNROLL
        for (unsigned j = 0; j < TAPS<SIDE>; j++)
            sums[k][j] += dz[k] * window[j / SIDE][j % SIDE];
        sums[k][TAPS<SIDE>] += dz[k];
    }
}

/* Sums over the block's threads into partial (values, blocks): a warp's threads of one group by a
 * tree, then the warps in order. */
template <unsigned SIDE>
static __device__ inline void leave_sums(const layout &l, const place &p,
                                         sums_of_thread<SIDE> &sums, float *partial)
{
    SHARED(float, totals, (THREADS / WARP * MAX_CHANNELS<SIDE> * (TAPS<SIDE> + 1)));
    const unsigned values = l.channels * (TAPS<SIDE> + 1);
    for (unsigned offset = WARP / 2; offset >= l.groups; offset /= 2) {
        UNROLL
        for (unsigned k = 0; k < CHANNELS<SIDE>; k++) {
            UNROLL
            for (unsigned j = 0; j <= TAPS<SIDE>; j++)
                sums[k][j] += __shfl_xor_sync(EVERY_LANE, sums[k][j], (int)offset);
        }
    }
    if (threadIdx.x % WARP < l.groups) {
        float *to = totals + threadIdx.x / WARP * values;
        UNROLL
        for (unsigned k = 0; k < CHANNELS<SIDE>; k++) {
            unsigned channel = channel_of<SIDE>(l, p) + k;
            UNROLL
            for (unsigned j = 0; j < TAPS<SIDE>; j++)
                to[channel * TAPS<SIDE> + j] = sums[k][j];
            to[l.channels * TAPS<SIDE> + channel] = sums[k][TAPS<SIDE>];
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

template <unsigned SIDE, typename T>
static __global__ void __launch_bounds__(THREADS, CONV_FIRST_BLOCKS)
    backward_kernel(layout l, const T *x, const T *y, const T *dy, float *partial)
{
    SHARED(float4, room, (2 * MAX_PIXELS / 4));
    float *const tiles = reinterpret_cast<float *>(room);
    const place p = place_of(l);
    const unsigned row_size = l.out_w * l.channels;
    const unsigned to_next =
        (l.step * l.out_h - (p.last - p.first)) * row_size; /* from the last row */
    unsigned at = offset_of<SIDE>(l, p, first_image(l));
    sums_of_thread<SIDE> sums = {};
    pixel_window<SIDE> window;
    raw<T, PIXELS> pixels = {};
    coming<SIDE, T> rows[DEPTH<T>] = {};
    UNROLL
    for (unsigned d = 0; d < DEPTH<T>; d++)
        if (p.works)
            fetch_row<SIDE>(y, dy, at + d * row_size, &rows[d]);
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
        read_upper<SIDE>(l, from, window);
        for (unsigned left = p.last - p.first; left > 0; left--, at += row_size) {
            float dz[CHANNELS<SIDE>];
            unpack_row<SIDE>(rows[0], dz);
            UNROLL
            for (unsigned d = 1; d < DEPTH<T>; d++)
                rows[d - 1] = rows[d];
            bool here = left > DEPTH<T>;
            if (here || image + l.step < l.n)
                fetch_row<SIDE>(y, dy, at + DEPTH<T> * row_size + (here ? 0 : to_next),
                                &rows[DEPTH<T> - 1]);
            move_down<SIDE>(l, from, window);
            add_row<SIDE>(dz, window, sums);
            from += l.width;
        }
    }
    leave_sums<SIDE>(l, p, sums, partial);
}

static unsigned channels_of(const conv2d_shape *s)
{
    return s->kernel == 3 ? CHANNELS<3> : CHANNELS<5>;
}

status conv_first_check(const conv2d_shape *s, int max_n)
{
    bool known = (s->kernel == 3 && s->relu) || (s->kernel == 5 && !s->relu);
    if (s->channels != 1 || !known)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution of plain input is of one channel, and 3x3 with a "
                    "relu or 5x5 without; not %dx%d of %d channels %s",
                    s->kernel, s->kernel, s->channels, s->relu ? "with one" : "without");
    int channels = (int)channels_of(s), groups = s->out_channels / channels;
    int out_h = s->height - s->kernel + 1, out_w = s->width - s->kernel + 1;
    int pixels = s->height * s->width;
    bool halves = groups > 0 && s->out_channels % channels == 0 && (groups & (groups - 1)) == 0;
    if (!halves || groups > (int)MAX_GROUPS || out_h < (int)MIN_ROWS || out_w < 1 ||
        pixels > (int)MAX_PIXELS || pixels % (int)PIXELS != 0 || out_w * groups > (int)THREADS)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution of plain input, %dx%d, has %d, %d, %d or %d output "
                    "channels, at most %u pixels (a multiple of %u) and %u outputs in a row; not "
                    "%d channels of %dx%d",
                    s->kernel, s->kernel, channels, 2 * channels, 4 * channels, 8 * channels,
                    MAX_PIXELS, PIXELS, THREADS * (unsigned)channels, s->out_channels, s->height,
                    s->width);
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
    l.out_h = l.height - (unsigned)s->kernel + 1;
    l.out_w = l.width - (unsigned)s->kernel + 1;
    l.channels = (unsigned)s->out_channels;
    l.groups = l.channels / channels_of(s);
    l.lanes = l.out_w * l.groups;
    l.n = (unsigned)pass->n;
    l.strips = std::min(THREADS / l.lanes, l.out_h / MIN_ROWS);
    l.parts = std::max(std::min(room / l.n, l.out_h / l.strips / MIN_ROWS), 1u);
    l.step = std::min(room / l.parts, l.n);
    *blocks = l.step * l.parts;
    return l;
}

/* Calls `launch` with the kernel's side as a constant's type. */
template <typename Launch> static status with_side(const conv2d_shape *s, Launch launch)
{
    if (s->kernel == 3)
        return launch(std::integral_constant<unsigned, 3>());
    return launch(std::integral_constant<unsigned, 5>());
}

status conv_first_forward(const conv_first_pass *pass, const void *x, const float *weight,
                          const float *bias, void *y)
{
    unsigned blocks = 0;
    const device *dev = pass->dev;
    layout l = layout_of(pass, &blocks);
    ASSERT(are_aligned(x, y));
    return with_side(pass->shape, [&](auto side) {
        return with_element(dev->precision, [&](auto *kind) {
            using T = std::remove_pointer_t<decltype(kind)>;
            LAUNCH(cuda_state_of(dev)->stream, blocks, THREADS, (forward_kernel<side(), T>), l,
                   static_cast<const T *>(x), weight, bias, static_cast<T *>(y));
            return CUDA_CALL(cudaGetLastError());
        });
    });
}

status conv_first_backward_weights(const conv_first_pass *pass, const void *x, const void *y,
                                   const void *dy, const conv_sums *sums, const conv_gradient *out)
{
    unsigned blocks = 0;
    const device *dev = pass->dev;
    layout l = layout_of(pass, &blocks);
    ASSERT(are_aligned(x, y, dy) && blocks <= sums->max_blocks);
    TRY(with_side(pass->shape, [&](auto side) {
        return with_element(dev->precision, [&](auto *kind) {
            using T = std::remove_pointer_t<decltype(kind)>;
            LAUNCH(cuda_state_of(dev)->stream, blocks, THREADS, (backward_kernel<side(), T>), l,
                   static_cast<const T *>(x), static_cast<const T *>(y), static_cast<const T *>(dy),
                   sums->partial);
            return CUDA_CALL(cudaGetLastError());
        });
    }));
    return conv_sums_finish(dev, sums, blocks, out);
}
