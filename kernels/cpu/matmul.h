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

/* The tiles: wide ones of 4 or 2 vectors, and what is left. 16 or 32 registers hold the sums, a row
 * of B and an element of A. */
enum {
    WIDE = BLOCK == 16 ? 4 : 2, /* vectors */
    WIDE_ROWS = 6,
    NARROW_ROWS = 12, /* of a tile of less vectors */
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

#define TILE(rows, vectors) \
    static void matmul_##rows##_##vectors(const matmul_args *m) \
    { \
        matmul_tile(m, rows, vectors); \
    }
#define TILES_OF(DO, vectors) \
    DO(1, vectors) DO(2, vectors) DO(3, vectors) DO(4, vectors) DO(5, vectors) DO(6, vectors)
#define MORE_TILES_OF(DO, vectors) \
    DO(7, vectors) DO(8, vectors) DO(9, vectors) DO(10, vectors) DO(11, vectors) DO(12, vectors)
#define ROW(rows, vectors) [vectors][rows] = matmul_##rows##_##vectors,

TILES_OF(TILE, 1)
MORE_TILES_OF(TILE, 1)
TILES_OF(TILE, 2)
#if BLOCK == 16
MORE_TILES_OF(TILE, 2)
TILES_OF(TILE, 4)
#endif

static void (*const matmul_tiles[WIDE + 1][NARROW_ROWS + 1])(const matmul_args *m) = {
    TILES_OF(ROW, 1) MORE_TILES_OF(ROW, 1) TILES_OF(ROW, 2)
#if BLOCK == 16
        MORE_TILES_OF(ROW, 2) TILES_OF(ROW, 4)
#endif
};

/* C (rows, columns); columns is a multiple of BLOCK. */
INLINE void matmul(const matmul_args *all, int rows, int columns)
{
    matmul_args m = *all;
    for (int column = 0; column < columns;) {
        int left = (columns - column) / BLOCK;
        int vectors = left >= WIDE ? WIDE : left >= 2 ? 2 : 1;
        int step = vectors == WIDE ? WIDE_ROWS : NARROW_ROWS;
        for (int row = 0; row < rows; row += step) {
            int count = rows - row < step ? rows - row : step;
            m.a = all->a + (size_t)row * all->a_row;
            m.b = all->b + column;
            m.c = all->c + (size_t)row * all->c_row + column;
            matmul_tiles[vectors][count](&m);
        }
        column += vectors * BLOCK;
    }
}

#undef TILE
#undef TILES_OF
#undef MORE_TILES_OF
#undef ROW

#endif
