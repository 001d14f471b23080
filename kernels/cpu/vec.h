/* Vectors of BLOCK floats, by the compiler's vector types. The includer defines BLOCK, 16 or 8, and
 * its compiler flags choose the instructions. */
#ifndef MNIST_DDP_KERNELS_CPU_VEC_H
#define MNIST_DDP_KERNELS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * BLOCK)));
typedef int32_t ivec __attribute__((vector_size(4 * BLOCK)));
typedef uint8_t bvec __attribute__((vector_size(BLOCK)));

/* Part of the caller's loops: its arguments are constants there, and its arrays registers. */
#define INLINE static inline __attribute__((always_inline, unused))

/* A vector at any float. memcpy would be one more call wherever the libc checks sizes. */
typedef float vec_at __attribute__((vector_size(4 * BLOCK), aligned(4), may_alias));

INLINE vec load(const float *p)
{
    return *(const vec_at *)(const void *)p;
}

INLINE void store(float *p, vec v)
{
    *(vec_at *)(void *)p = v;
}

/* The first `count` lanes are those at p, the others 0. */
INLINE vec load_some(const float *p, int count)
{
    vec v = {0};
    memcpy(&v, p, sizeof *p * (size_t)count);
    return v;
}

/* Columns [c, c + BLOCK) of a row that are there. */
INLINE vec load_columns(const float *x, int c, int columns)
{
    return columns - c >= BLOCK ? load(x + c) : load_some(x + c, columns - c);
}

/* Lanes of a, then of b, by number. gcc knows clang's function from version 12 on. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* A butterfly of a transposition: swaps the off-diagonal blocks of S x S lanes in two rows that are
 * S apart. */
#define SWAP_LO(c, S) (((c) & (S)) ? (c) - (S) + BLOCK : (c))
#define SWAP_HI(c, S) (((c) & (S)) ? (c) + BLOCK : (c) + (S))
#define SWAP_LANES8(AT, S) \
    AT(0, S), AT(1, S), AT(2, S), AT(3, S), AT(4, S), AT(5, S), AT(6, S), AT(7, S)
#if BLOCK == 16
#define SWAP_LANES(AT, S) \
    SWAP_LANES8(AT, S), AT(8, S), AT(9, S), AT(10, S), AT(11, S), AT(12, S), AT(13, S), AT(14, S), \
        AT(15, S)
#else
#define SWAP_LANES(AT, S) SWAP_LANES8(AT, S)
#endif
#define SWAP_BLOCKS(r, S) \
    _Pragma("GCC unroll 16") for (int i = 0; i < BLOCK; i++) \
    { \
        if (i & (S)) \
            continue; \
        vec above = (r)[i], below = (r)[i + (S)]; \
        (r)[i] = SHUFFLE(above, below, SWAP_LANES(SWAP_LO, S)); \
        (r)[i + (S)] = SHUFFLE(above, below, SWAP_LANES(SWAP_HI, S)); \
    }

/* Transposes BLOCK rows of BLOCK floats. */
INLINE void transpose(vec *r)
{
#if BLOCK == 16
    SWAP_BLOCKS(r, 8)
#endif
    SWAP_BLOCKS(r, 4)
    SWAP_BLOCKS(r, 2)
    SWAP_BLOCKS(r, 1)
}

#endif
