/* C = A B or C += A B of small matrices that lie in the first two levels of cache.
 *
 * C is cut into tiles whose sums are kept in registers: a step of the inner loop loads a row of the
 * tile from B, and multiplies it by one element of A for each row of C. The sums of a tile begin at
 * zero and are added to C once, so rounding errors grow with `depth` alone.
 */
#ifndef MNIST_DDP_KERNELS_CPU_MATMUL_H
#define MNIST_DDP_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/device.h"

/* The tiles: wide ones of 4 or 2 vectors, and what is left. 16 or 32 registers hold the sums, a row
 * of B and an element of A. */
enum {
    WIDE = BLOCK == 16 ? 4 : 2, /* vectors */
    WIDE_ROWS = 6,
    NARROW_ROWS = 12, /* rows of a tile of fewer vectors */
};

INLINE void matmul_tile(const matmul_args *m, int rows, int vectors)
{
    vec sum[NARROW_ROWS][WIDE];
    const float *a = m->a, *b = m->b;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = (vec){0};
#pragma GCC unroll 1
    for (int k = 0; k < m->depth; k++, a += m->a_step, b += m->b_step) {
        vec row[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            row[v] = load(b + v * BLOCK);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            float factor = a[(size_t)r * m->a_row];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] += factor * row[v];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            float *c = m->c + (size_t)r * m->c_row + v * BLOCK;
            store(c, m->add ? load(c) + sum[r][v] : sum[r][v]);
        }
}

/* DO(name, rows, vectors) for every tile. */
/* clang-format off */
#define MATMUL_ROWS6(DO, name, vectors) \
    DO(name, 1, vectors) DO(name, 2, vectors) DO(name, 3, vectors) \
    DO(name, 4, vectors) DO(name, 5, vectors) DO(name, 6, vectors)
#define MATMUL_ROWS12(DO, name, vectors) \
    MATMUL_ROWS6(DO, name, vectors) \
    DO(name, 7, vectors) DO(name, 8, vectors) DO(name, 9, vectors) \
    DO(name, 10, vectors) DO(name, 11, vectors) DO(name, 12, vectors)
/* clang-format on */
#if BLOCK == 16
#define MATMUL_TILES(DO, name) \
    MATMUL_ROWS12(DO, name, 1) MATMUL_ROWS12(DO, name, 2) MATMUL_ROWS6(DO, name, 4)
#else
#define MATMUL_TILES(DO, name) MATMUL_ROWS12(DO, name, 1) MATMUL_ROWS6(DO, name, 2)
#endif

/* <name>_tile compiled for each size of a tile, and <name>_tiles[vectors][rows], which calls it. */
#define MATMUL_TILE(name, rows, vectors) \
    static void name##_##rows##_##vectors(const name##_args *m) \
    { \
        name##_tile(m, rows, vectors); \
    }
#define MATMUL_ROW(name, rows, vectors) [vectors][rows] = name##_##rows##_##vectors,
#define MATMUL_TABLE(name) \
    MATMUL_TILES(MATMUL_TILE, name) \
    static void (*const name##_tiles[WIDE + 1][NARROW_ROWS + 1])(const name##_args *m) = { \
        MATMUL_TILES(MATMUL_ROW, name)};

/* The tiles of C (rows, columns), column by column: begin with zeros, go on while it is true. */
typedef struct matmul_place {
    int row, column;   /* where the tile begins */
    int rows, vectors; /* its size */
} matmul_place;

INLINE bool matmul_next(matmul_place *at, int rows, int columns)
{
    at->row += at->rows;
    if (at->row >= rows) {
        at->row = 0;
        at->column += at->vectors * BLOCK;
    }
    if (at->column >= columns)
        return false;
    int left = (columns - at->column) / BLOCK;
    at->vectors = left >= WIDE ? WIDE : left >= 2 ? 2 : 1;
    int most = at->vectors == WIDE ? WIDE_ROWS : NARROW_ROWS;
    at->rows = rows - at->row < most ? rows - at->row : most;
    return true;
}

MATMUL_TABLE(matmul)

enum { LINE_FLOATS = 16 }; /* a line of cache has */

/* Where the loading of a matmul_ahead is. */
typedef struct ahead_place {
    const float *row;
    int line, left; /* floats of the row before it; lines of all */
    int share;      /* a part's of the product */
} ahead_place;

/* For a product that is made in `parts` parts. */
INLINE ahead_place ahead_begin(const matmul_ahead *ahead, int parts)
{
    if (ahead->rows == 0)
        return (ahead_place){0};
    int all = ahead->rows * ((ahead->columns + LINE_FLOATS - 1) / LINE_FLOATS);
    return (ahead_place){.row = ahead->at, .left = all, .share = (all + parts - 1) / parts};
}

/* The tiles of C. */
INLINE int tiles_of(int rows, int columns)
{
    int wide = WIDE * BLOCK;
    return (columns + wide - 1) / wide * ((rows + WIDE_ROWS - 1) / WIDE_ROWS);
}

/* Starts to load the share of one part. */
INLINE void ahead_next(const matmul_ahead *ahead, ahead_place *at)
{
    for (int n = at->left < at->share ? at->left : at->share; n > 0; n--, at->left--) {
        __builtin_prefetch(at->row + at->line, 0, 2);
        at->line += LINE_FLOATS;
        if (at->line >= ahead->columns) {
            at->line = 0;
            at->row += ahead->row;
        }
    }
}

/* C (rows, columns), at least one row; columns is a multiple of BLOCK. */
INLINE void matmul(const matmul_args *all, int rows, int columns)
{
    matmul_args m = *all;
    ahead_place ahead = ahead_begin(&all->ahead, tiles_of(rows, columns));
    for (matmul_place at = {0}; matmul_next(&at, rows, columns);) {
        ahead_next(&all->ahead, &ahead);
        m.a = all->a + (size_t)at.row * all->a_row;
        m.b = all->b + at.column;
        m.c = all->c + (size_t)at.row * all->c_row + at.column;
        matmul_tiles[at.vectors][at.rows](&m);
    }
}

#ifdef __AVX512BF16__

/* The product with operands in bfloat16: two products and their sum are one instruction, and sums
 * stay float32. For processors with AVX512_BF16.
 *
 * The instruction multiplies pairs of neighbours along the sum, so a "pair" of elements k and k + 1
 * (k even) is one 32-bit word: A is made of words along k, B is (depth / 2, columns) words. An odd
 * last term has zeros beside it.
 */

/* Word (row, pair) of A is a[row * a_row + pair * a_step], word (pair, column) of B is
 * b[pair * b_step + column]. */
typedef struct matmul_bf16_args {
    const uint32_t *a, *b;
    float *c;
    size_t a_row, a_step, b_step, c_row;
    int pairs;
    bool add; /* to what C holds */
    matmul_ahead ahead;
} matmul_bf16_args;

INLINE void matmul_bf16_tile(const matmul_bf16_args *m, int rows, int vectors)
{
    __m512 sum[NARROW_ROWS][WIDE];
    const uint32_t *a = m->a, *b = m->b;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int k = 0; k < m->pairs; k++, a += m->a_step, b += m->b_step) {
        __m512i row[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            row[v] = _mm512_loadu_si512(b + v * BLOCK);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512i factor = _mm512_set1_epi32((int)a[(size_t)r * m->a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)factor, (__m512bh)row[v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            float *c = m->c + (size_t)r * m->c_row + v * BLOCK;
            store(c, m->add ? load(c) + (vec)sum[r][v] : (vec)sum[r][v]);
        }
}

MATMUL_TABLE(matmul_bf16)

/* C (rows, columns), at least one row; columns is a multiple of BLOCK. */
INLINE void matmul_bf16(const matmul_bf16_args *all, int rows, int columns)
{
    matmul_bf16_args m = *all;
    ahead_place ahead = ahead_begin(&all->ahead, tiles_of(rows, columns));
    for (matmul_place at = {0}; matmul_next(&at, rows, columns);) {
        ahead_next(&all->ahead, &ahead);
        m.a = all->a + (size_t)at.row * all->a_row;
        m.b = all->b + at.column;
        m.c = all->c + (size_t)at.row * all->c_row + at.column;
        matmul_bf16_tiles[at.vectors][at.rows](&m);
    }
}

/* The words of two rows of floats, the even one and the odd one. */
INLINE ivec bf16_words(vec even, vec odd)
{
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)even));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)odd));
    return (ivec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* The words of two rows of BLOCK bfloat16 each. */
INLINE ivec bf16_words_of(const uint16_t *even, const uint16_t *odd)
{
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)even));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)odd));
    return (ivec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

INLINE void store_bf16(uint16_t *to, vec v)
{
    _mm256_storeu_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}

#endif

/* Operands of products, in float32 or bfloat16, and the products.
 *
 * bfloat16 with AVX512_BF16 is stored as such. Without that, an operand is a float that was rounded
 * to bfloat16, and the product is that of floats: the same values, at float32's speed.
 */

#ifdef __AVX512BF16__
enum { HAS_BF16 = 1 };
#else
enum { HAS_BF16 = 0 };
#endif

/* Whether operands of this precision are stored as bfloat16. */
INLINE bool is_bf16(precision how)
{
    return HAS_BF16 && how == PRECISION_BF16;
}

/* Element `index` of an array of operands. */
INLINE float *operand(float *array, int index, precision how)
{
    return is_bf16(how) ? (float *)(void *)((uint16_t *)(void *)array + index) : array + index;
}

/* Rounds to nearest, ties to even; what is not a number stays so. */
INLINE vec round_bf16(vec v)
{
    ivec bits = (ivec)v;
    vec rounded = (vec)((bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000);
    return choose(equal(v, v), rounded, v);
}

INLINE void store_operand(float *array, int index, vec v, precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        store_bf16((uint16_t *)(void *)array + index, v);
        return;
    }
#endif
    store(array + index, how == PRECISION_BF16 ? round_bf16(v) : v);
}

/* Rows `row` (even) and row + 1 of B (depth, columns), where a product reads them. */
INLINE void store_operand_rows(float *b, int row, int columns, int column, const vec *pair,
                               precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        store(b + row / 2 * columns + column, (vec)bf16_words(pair[0], pair[1]));
        return;
    }
#endif
    store_operand(b, row * columns + column, pair[0], how);
    store_operand(b, (row + 1) * columns + column, pair[1], how);
}

/* C (rows, columns) = A B, or += with `add`. Rows of A, along the sum, are a_row elements apart,
 * and even; rows of C are c_row floats apart. B is as store_operand_rows leaves it. */
typedef struct operand_product {
    const float *a, *b;
    float *c;
    size_t a_row, c_row;
    int depth;
    bool add;
    matmul_ahead ahead;
} operand_product;

INLINE void multiply_operands(const operand_product *p, int rows, int columns, precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        matmul_bf16(&(matmul_bf16_args){.a = (const uint32_t *)(const void *)p->a,
                                        .b = (const uint32_t *)(const void *)p->b,
                                        .c = p->c,
                                        .a_row = p->a_row / 2,
                                        .a_step = 1,
                                        .b_step = (size_t)columns,
                                        .c_row = p->c_row,
                                        .pairs = (p->depth + 1) / 2,
                                        .add = p->add,
                                        .ahead = p->ahead},
                    rows, columns);
        return;
    }
#endif
    (void)how;
    matmul(&(matmul_args){.a = p->a,
                          .b = p->b,
                          .c = p->c,
                          .a_row = p->a_row,
                          .a_step = 1,
                          .b_step = (size_t)columns,
                          .c_row = p->c_row,
                          .depth = p->depth,
                          .add = p->add,
                          .ahead = p->ahead},
           rows, columns);
}

#endif
