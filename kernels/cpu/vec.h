/* Vectors of BLOCK floats, by the compiler's vector types. The includer defines BLOCK, 16, 8 or 4,
 * and its compiler flags choose the instructions. */
#ifndef MNIST_DDP_KERNELS_CPU_VEC_H
#define MNIST_DDP_KERNELS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if BLOCK == 16
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(4 * BLOCK)));
typedef int32_t ivec __attribute__((vector_size(4 * BLOCK)));
typedef uint8_t bvec __attribute__((vector_size(BLOCK)));

/* How many vectors the processor holds in registers. */
#if BLOCK == 16 || defined(__aarch64__)
enum { REGISTERS = 32 };
#else
enum { REGISTERS = 16 };
#endif

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

/* Numbers of lanes, by AT(first lane of each four, parameter). */
#if BLOCK == 16
#define EACH_FOUR(AT, parameter) \
    AT(0, parameter), AT(4, parameter), AT(8, parameter), AT(12, parameter)
#elif BLOCK == 8
#define EACH_FOUR(AT, parameter) AT(0, parameter), AT(4, parameter)
#else
#define EACH_FOUR(AT, parameter) AT(0, parameter)
#endif

/* A butterfly of a transposition: swaps the off-diagonal blocks of S x S lanes in two rows that are
 * S apart. */
#define SWAP_LO(c, S) (((c) & (S)) ? (c) - (S) + BLOCK : (c))
#define SWAP_HI(c, S) (((c) & (S)) ? (c) + BLOCK : (c) + (S))
#define SWAP_LO4(c, S) SWAP_LO(c, S), SWAP_LO((c) + 1, S), SWAP_LO((c) + 2, S), SWAP_LO((c) + 3, S)
#define SWAP_HI4(c, S) SWAP_HI(c, S), SWAP_HI((c) + 1, S), SWAP_HI((c) + 2, S), SWAP_HI((c) + 3, S)
#define SWAP_BLOCKS(r, S) \
    _Pragma("GCC unroll 16") for (int i = 0; i < BLOCK; i++) \
    { \
        if (i & (S)) \
            continue; \
        vec above = (r)[i], below = (r)[i + (S)]; \
        (r)[i] = SHUFFLE(above, below, EACH_FOUR(SWAP_LO4, S)); \
        (r)[i + (S)] = SHUFFLE(above, below, EACH_FOUR(SWAP_HI4, S)); \
    }

/* Transposes BLOCK rows of BLOCK floats. */
INLINE void transpose(vec *r)
{
#if BLOCK == 16
    SWAP_BLOCKS(r, 8)
#endif
#if BLOCK >= 8
    SWAP_BLOCKS(r, 4)
#endif
    SWAP_BLOCKS(r, 2)
    SWAP_BLOCKS(r, 1)
}

/* Lanes of vectors: which of them a comparison holds for, and the small numbers that go with them.
 * A mask register with AVX-512, else all ones or zeros in each lane. */

/* A number from 0 to 255 per lane, which memory holds as a byte. */
#if BLOCK == 16

typedef __mmask16 lanes;
typedef __m128i codes;

INLINE lanes greater(vec a, vec b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
}

/* False if either is not a number. */
INLINE lanes equal(vec a, vec b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
}

/* These lanes of v, else 0. */
INLINE vec where(lanes of, vec v)
{
    return (vec)_mm512_maskz_mov_ps(of, (__m512)v);
}

/* These lanes of a, else those of b. */
INLINE vec choose(lanes of, vec a, vec b)
{
    return (vec)_mm512_mask_mov_ps((__m512)b, of, (__m512)a);
}

INLINE codes load_codes(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE void store_codes(uint8_t *p, codes c)
{
    _mm_storeu_si128((__m128i *)(void *)p, c);
}

INLINE codes all_codes(int code)
{
    return _mm_set1_epi8((char)code);
}

INLINE codes choose_codes(lanes of, codes a, codes b)
{
    return _mm_mask_mov_epi8(b, of, a);
}

INLINE lanes code_is(codes c, int code)
{
    return _mm_cmpeq_epi8_mask(c, all_codes(code));
}

INLINE lanes code_at_least(codes c, int least)
{
    return _mm_cmpge_epu8_mask(c, all_codes(least));
}

/* Bit l: the comparison holds for lane l. */
INLINE unsigned bits_of(lanes of)
{
    return of;
}

#else

typedef ivec lanes;
typedef ivec codes;

INLINE lanes greater(vec a, vec b)
{
    return a > b;
}

INLINE lanes equal(vec a, vec b)
{
    return a == b;
}

INLINE vec where(lanes of, vec v)
{
    return (vec)(of & (ivec)v);
}

INLINE vec choose(lanes of, vec a, vec b)
{
    return (vec)((of & (ivec)a) | (~of & (ivec)b));
}

INLINE codes load_codes(const uint8_t *p)
{
    bvec bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, ivec);
}

INLINE void store_codes(uint8_t *p, codes c)
{
    bvec bytes = __builtin_convertvector(c, bvec);
    memcpy(p, &bytes, sizeof bytes);
}

INLINE codes all_codes(int code)
{
    return code - (ivec){0};
}

INLINE codes choose_codes(lanes of, codes a, codes b)
{
    return (of & a) | (~of & b);
}

INLINE lanes code_is(codes c, int code)
{
    return c == code;
}

INLINE lanes code_at_least(codes c, int least)
{
    return c >= least;
}

INLINE unsigned bits_of(lanes of)
{
    unsigned bits = 0;
    for (int l = 0; l < BLOCK; l++)
        bits |= (unsigned)of[l] & 1u << l;
    return bits;
}

#endif

#endif
