/* Emulated device: bfloat16, as storage. */
#ifndef EMULATED_CUDA_BF16_H
#define EMULATED_CUDA_BF16_H

#ifdef __cplusplus

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

typedef __nv_bfloat16 nv_bfloat16;

inline float __bfloat162float(__nv_bfloat16 x)
{
    uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest even; all NaNs become one. */
inline __nv_bfloat16 __float2bfloat16(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return {0x7FFF};
    bits += 0x7FFFu + ((bits >> 16) & 1u);
    return {static_cast<uint16_t>(bits >> 16)};
}

inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __float2bfloat16(x);
}

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16(x), __float2bfloat16(y)};
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return {bits};
}

#endif
#endif
