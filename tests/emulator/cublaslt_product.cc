#include "cublaslt_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace emulated
{

namespace
{

/* A tile is 6 x 16 sums, kept in registers while one run along k goes by. Both operands of a run
 * are first copied into the order in which tiles read them: panels of 6 rows of a, or of 16 columns
 * of b, with the panel's elements of one k side by side. Rows and columns that are missing at the
 * edge are zeros. */
enum : size_t { TILE_ROWS = 6, TILE_COLS = 16, RUN = 256, STRIP_COLS = 512 };

typedef float lanes __attribute__((vector_size(32)));
enum : size_t { LANES = 8 };

/* These work on our own copies only; checking each access would cost more than the product. */
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))

struct tile_row {
    lanes left, right;
};

__attribute__((always_inline)) UNCHECKED inline void add_row(tile_row &sum, float a,
                                                             const tile_row &b)
{
    sum.left += a * b.left;
    sum.right += a * b.right;
}

/* Written out, so that the sums stay in registers. */
__attribute__((always_inline)) UNCHECKED inline void tile_sums(size_t depth, const float *a,
                                                               const float *b, float *sums)
{
    tile_row sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {}, sum4 = {}, sum5 = {};
    for (size_t p = 0; p < depth; p++, a += TILE_ROWS, b += TILE_COLS) {
        tile_row row;
        std::memcpy(&row.left, b, sizeof row.left);
        std::memcpy(&row.right, b + LANES, sizeof row.right);
        add_row(sum0, a[0], row);
        add_row(sum1, a[1], row);
        add_row(sum2, a[2], row);
        add_row(sum3, a[3], row);
        add_row(sum4, a[4], row);
        add_row(sum5, a[5], row);
    }
    const tile_row all[TILE_ROWS] = {sum0, sum1, sum2, sum3, sum4, sum5};
    std::memcpy(sums, all, sizeof all);
}

UNCHECKED void tile_plain(size_t depth, const float *a, const float *b, float *sums)
{
    tile_sums(depth, a, b, sums);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) UNCHECKED void tile_avx2(size_t depth, const float *a,
                                                             const float *b, float *sums)
{
    tile_sums(depth, a, b, sums);
}
#endif

using tile_fn = void (*)(size_t depth, const float *a, const float *b, float *sums);

tile_fn best_tile()
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return tile_avx2;
#endif
    return tile_plain;
}

/* The rows of `from` (lines, depth) into panels of `width` rows. */
UNCHECKED void pack(matrix from, size_t lines, size_t depth, size_t width, float *to)
{
    for (size_t first = 0; first < lines; first += width) {
        size_t present = std::min(width, lines - first);
        const float *panel = from.at + static_cast<ptrdiff_t>(first) * from.row;
        for (size_t p = 0; p < depth; p++, to += width) {
            const float *at = panel + static_cast<ptrdiff_t>(p) * from.col;
            for (size_t i = 0; i < width; i++)
                to[i] = i < present ? at[static_cast<ptrdiff_t>(i) * from.row] : 0.0f;
        }
    }
}

UNCHECKED void add_tile(const float *sums, size_t rows, size_t cols, float *c, size_t c_row)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            c[i * c_row + j] += sums[i * TILE_COLS + j];
}

size_t whole_panels(size_t lines, size_t width)
{
    return (lines + width - 1) / width * width;
}

} // namespace

floats make_floats(size_t count)
{
    return floats(new float[count]);
}

void multiply_add(size_t m, size_t n, size_t k, matrix a, matrix b, float *c)
{
    static const tile_fn tile = best_tile();
    size_t longest = std::min<size_t>(k, RUN);
    size_t widest = std::min<size_t>(whole_panels(n, TILE_COLS), STRIP_COLS);
    floats packed_a = make_floats(whole_panels(m, TILE_ROWS) * longest);
    floats packed_b = make_floats(widest * longest);
    float sums[TILE_ROWS * TILE_COLS];
    for (size_t run = 0; run < k; run += RUN) {
        size_t depth = std::min<size_t>(RUN, k - run);
        pack({a.at + static_cast<ptrdiff_t>(run) * a.col, a.row, a.col}, m, depth, TILE_ROWS,
             packed_a.get());
        for (size_t strip = 0; strip < n; strip += STRIP_COLS) {
            size_t cols = std::min<size_t>(STRIP_COLS, n - strip);
            const float *from =
                b.at + static_cast<ptrdiff_t>(run) * b.row + static_cast<ptrdiff_t>(strip) * b.col;
            pack({from, b.col, b.row}, cols, depth, TILE_COLS, packed_b.get());
            for (size_t j = 0; j < cols; j += TILE_COLS)
                for (size_t i = 0; i < m; i += TILE_ROWS) {
                    tile(depth, packed_a.get() + i * depth, packed_b.get() + j * depth, sums);
                    add_tile(sums, std::min<size_t>(TILE_ROWS, m - i),
                             std::min<size_t>(TILE_COLS, cols - j), c + i * n + strip + j, n);
                }
        }
    }
}

size_t element_bytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

void load_floats(const void *from, cudaDataType_t type, size_t count, float *to)
{
    const auto *bfloats = static_cast<const __nv_bfloat16 *>(from);
    const auto *halves = static_cast<const __half *>(from);
    if (type == CUDA_R_32F)
        std::memcpy(to, from, count * sizeof *to);
    else if (type == CUDA_R_16BF)
        for (size_t i = 0; i < count; i++)
            to[i] = __bfloat162float(bfloats[i]);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = __half2float(halves[i]);
}

void store_floats(const float *from, size_t count, cudaDataType_t type, void *to)
{
    auto *bfloats = static_cast<__nv_bfloat16 *>(to);
    auto *halves = static_cast<__half *>(to);
    if (type == CUDA_R_32F)
        std::memcpy(to, from, count * sizeof *from);
    else if (type == CUDA_R_16BF)
        for (size_t i = 0; i < count; i++)
            bfloats[i] = __float2bfloat16(from[i]);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = __float2half(from[i]);
}

void round_to_tf32(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof bits);
        if ((bits & 0x7F800000u) == 0x7F800000u)
            continue; /* infinite or not a number */
        bits = (bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu;
        std::memcpy(&values[i], &bits, sizeof bits);
    }
}

refusal find_refusal(const char *name)
{
    const char *list = std::getenv("MNIST_DDP_EMULATED_REFUSE");
    size_t length = std::strlen(name);
    while (list != nullptr && *list != '\0') {
        size_t item = std::strcspn(list, ","), named = std::strcspn(list, ":,");
        if (named == length && std::strncmp(list, name, named) == 0) {
            const char *code = list[named] == ':' ? list + named + 1 : nullptr;
            bool at_call = std::string_view(list, item).find("@call") != std::string_view::npos;
            return {true, at_call, code != nullptr ? std::atoi(code) : -1};
        }
        list += item + (list[item] == ',');
    }
    return {false, false, 0};
}

} // namespace emulated
