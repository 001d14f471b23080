/* matmul.h's product with operands in bfloat16: two products and their sum are one instruction, and
 * sums stay float32. For processors with AVX512_BF16.
 *
 * The instruction multiplies pairs of neighbours along the sum, so a "pair" of elements k and k + 1
 * (k even) is one 32-bit word: A is made of words along k, B is (depth / 2, columns) words. An odd
 * last term has zeros beside it.
 */
#ifndef MNIST_DDP_KERNELS_CPU_MATMUL_BF16_H
#define MNIST_DDP_KERNELS_CPU_MATMUL_BF16_H

#include "kernels/cpu/matmul.h"

#ifdef __AVX512BF16__

#include <immintrin.h>

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

#define TILE(rows, vectors) \
    static void matmul_bf16_##rows##_##vectors(const matmul_bf16_args *m) \
    { \
        matmul_bf16_tile(m, rows, vectors); \
    }
#define ROW(rows, vectors) [vectors][rows] = matmul_bf16_##rows##_##vectors,

MATMUL_TILES(TILE)

static void (*const matmul_bf16_tiles[WIDE + 1][NARROW_ROWS + 1])(const matmul_bf16_args *m) = {
    MATMUL_TILES(ROW)};

#undef TILE
#undef ROW

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
#endif
