/* The two 16-bit floats, bfloat16 and IEEE's binary16, to float32 and back. Widening is exact;
 * narrowing rounds to nearest, ties to even, and keeps NaN and all signs. No branch on data: loops
 * over these become vectors. */
#ifndef MNIST_DDP_BASE_HALF_H
#define MNIST_DDP_BASE_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Arrays of n, which do not overlap. The bits of the functions below, but that a NaN's may differ.
 */
void half_widen_bf16(const uint16_t *restrict from, float *restrict to, size_t n);
void half_widen_f16(const uint16_t *restrict from, float *restrict to, size_t n);
void half_narrow_bf16(const float *restrict from, uint16_t *restrict to, size_t n);
void half_narrow_f16(const float *restrict from, uint16_t *restrict to, size_t n);

static inline float half_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t half_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Sign, 8 bits of exponent and 7 of fraction are the upper half of a float32. */
static inline float bf16_to_f32(uint16_t bits)
{
    return half_float_of((uint32_t)bits << 16);
}

static inline uint16_t f32_to_bf16(float value)
{
    uint32_t bits = half_bits_of(value), is_odd = bits >> 16 & 1;
    uint32_t rounded = (bits + 0x7fff + is_odd) >> 16;
    uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Sign, 5 bits of exponent with a bias of 15, 10 of fraction. */
static inline float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits & 0x7c00;
    uint32_t rest = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t normal = rest + (112u << 23), infinite = rest | 0x7f800000; /* or NaN */
    uint32_t subnormal = half_bits_of((float)(bits & 0x3ff) * 0x1p-24f);
    uint32_t finite = exponent == 0 ? subnormal : normal;
    return half_float_of(sign | (exponent == 0x7c00 ? infinite : finite));
}

static inline uint16_t f32_to_f16(float value)
{
    uint32_t bits = half_bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t is_odd = rest >> 13 & 1;
    uint32_t normal = (rest - (112u << 23) + 0xfff + is_odd) >> 13;
    /* beside 0.5 a float32's last place is that of a subnormal binary16 */
    uint32_t subnormal = half_bits_of(half_float_of(rest) + 0.5f) - 0x3f000000;
    uint32_t large = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t finite = rest < 0x38800000 ? subnormal : normal;
    return (uint16_t)(sign | (rest >= 0x47800000 ? large : finite));
}

/* CLONES before a static function (clang gives others another name): it is compiled for several
 * widths of vectors, and the loader picks the widest that the processor has. Sanitizers do not
 * support its ifuncs. */

#if defined(__x86_64__) && !defined(SANITIZED)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#endif
