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

/* DO(rows, vectors) for every tile. */
#define MATMUL_ROWS6(DO, vectors) \
    DO(1, vectors) DO(2, vectors) DO(3, vectors) DO(4, vectors) DO(5, vectors) DO(6, vectors)
#define MATMUL_ROWS12(DO, vectors) \
    MATMUL_ROWS6(DO, vectors) \
    DO(7, vectors) DO(8, vectors) DO(9, vectors) DO(10, vectors) DO(11, vectors) DO(12, vectors)
#if BLOCK == 16
#define MATMUL_TILES(DO) MATMUL_ROWS12(DO, 1) MATMUL_ROWS12(DO, 2) MATMUL_ROWS6(DO, 4)
#else
#define MATMUL_TILES(DO) MATMUL_ROWS12(DO, 1) MATMUL_ROWS6(DO, 2)
#endif

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

#define TILE(rows, vectors) \
    static void matmul_##rows##_##vectors(const matmul_args *m) \
    { \
        matmul_tile(m, rows, vectors); \
    }
#define ROW(rows, vectors) [vectors][rows] = matmul_##rows##_##vectors,

MATMUL_TILES(TILE)

static void (*const matmul_tiles[WIDE + 1][NARROW_ROWS + 1])(const matmul_args *m) = {
    MATMUL_TILES(ROW)};

#undef TILE
#undef ROW

enum { LINE_FLOATS = 16 }; /* of a line of cache */

/* Where the loading of a matmul_ahead is. */
typedef struct ahead_place {
    const float *row;
    int line, left; /* floats of the row before it; lines of all */
    int share;      /* of a part of the product */
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

#endif
