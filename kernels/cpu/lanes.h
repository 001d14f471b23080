/* Lanes of vectors: which of them a comparison holds for, and the small numbers that go with them.
 * A mask register with AVX-512, else all ones or zeros in each lane. */
#ifndef MNIST_DDP_KERNELS_CPU_LANES_H
#define MNIST_DDP_KERNELS_CPU_LANES_H

#include "kernels/cpu/vec.h"

/* A number from 0 to 255 per lane, which memory holds as a byte. */
#if BLOCK == 16

#include <immintrin.h>

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
