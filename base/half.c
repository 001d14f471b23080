#include "base/half.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

CLONES static void widen_bf16(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_to_f32(from[i]);
}

CLONES static void narrow_bf16(const float *restrict from, uint16_t *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = f32_to_bf16(from[i]);
}

void half_widen_bf16(const uint16_t *restrict from, float *restrict to, size_t n)
{
    widen_bf16(from, to, n);
}

void half_narrow_bf16(const float *restrict from, uint16_t *restrict to, size_t n)
{
    narrow_bf16(from, to, n);
}

#ifdef __x86_64__
/* Eight at a time, by the processor's own conversion; the number of elements done. */
__attribute__((target("avx,f16c"))) static size_t widen_eights(const uint16_t *from, float *to,
                                                               size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
    return i;
}

__attribute__((target("avx,f16c"))) static size_t narrow_eights(const float *from, uint16_t *to,
                                                                size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

/* Every processor with AVX2 has F16C. */
static int has_f16c(void)
{
    return __builtin_cpu_supports("avx2");
}
#endif

void half_widen_f16(const uint16_t *restrict from, float *restrict to, size_t n)
{
    size_t i = 0;
#ifdef __x86_64__
    i = has_f16c() ? widen_eights(from, to, n) : 0;
#endif
    for (; i < n; i++)
        to[i] = f16_to_f32(from[i]);
}

void half_narrow_f16(const float *restrict from, uint16_t *restrict to, size_t n)
{
    size_t i = 0;
#ifdef __x86_64__
    i = has_f16c() ? narrow_eights(from, to, n) : 0;
#endif
    for (; i < n; i++)
        to[i] = f32_to_f16(from[i]);
}
