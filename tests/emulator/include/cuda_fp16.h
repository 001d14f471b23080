/* Emulated device: IEEE half precision, as storage. */
#ifndef EMULATED_CUDA_FP16_H
#define EMULATED_CUDA_FP16_H

#ifdef __cplusplus

#include <cstdint>
#include <cstring>

struct __half {
    uint16_t bits;
};

typedef __half half;

inline float __half2float(__half x)
{
    /* Exponent and fraction moved to float's places and scaled by the difference of the biases:
     * exact, also for subnormals. */
    const float scale = 5192296858534827628530496329220096.0f; /* 2^112 */
    uint32_t bits = static_cast<uint32_t>(x.bits & 0x7FFFu) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= scale;
    std::memcpy(&bits, &value, sizeof bits);
    if ((x.bits & 0x7C00u) == 0x7C00u)
        bits = 0x7F800000u | (static_cast<uint32_t>(x.bits & 0x3FFu) << 13);
    bits |= static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest even; what is too large becomes infinite; all NaNs become one. */
inline __half __float2half(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return {0x7FFF};
    if (size >= 0x477FF000u) /* 65520 and more */
        return {static_cast<uint16_t>(sign | 0x7C00u)};
    if (size < 0x38800000u) { /* below 2^-14: in units of 2^-24, which is a float's unit at 0.5 */
        float value;
        std::memcpy(&value, &size, sizeof value);
        value += 0.5f;
        std::memcpy(&size, &value, sizeof size);
        return {static_cast<uint16_t>(sign | (size - 0x3F000000u))};
    }
    size += 0xFFFu + ((size >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((size - 0x38000000u) >> 13))};
}

inline __half __float2half_rn(float x)
{
    return __float2half(x);
}

struct __half2 {
    __half x, y;
};

inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half(x), __float2half(y)};
}

inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}

inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}

#endif
#endif
