/* Emulated device: CUDA's vector types, as far as they are used. */
#ifndef EMULATED_VECTOR_TYPES_H
#define EMULATED_VECTOR_TYPES_H

#define EMULATED_ALIGNED(bytes) __attribute__((aligned(bytes)))

typedef struct uchar4 {
    unsigned char x, y, z, w;
} EMULATED_ALIGNED(4) uchar4;

typedef struct ushort4 {
    unsigned short x, y, z, w;
} EMULATED_ALIGNED(8) ushort4;

typedef struct int2 {
    int x, y;
} EMULATED_ALIGNED(8) int2;

typedef struct int4 {
    int x, y, z, w;
} EMULATED_ALIGNED(16) int4;

typedef struct uint2 {
    unsigned int x, y;
} EMULATED_ALIGNED(8) uint2;

typedef struct uint3 {
    unsigned int x, y, z;
} uint3;

typedef struct uint4 {
    unsigned int x, y, z, w;
} EMULATED_ALIGNED(16) uint4;

typedef struct float2 {
    float x, y;
} EMULATED_ALIGNED(8) float2;

typedef struct float4 {
    float x, y, z, w;
} EMULATED_ALIGNED(16) float4;

typedef struct double2 {
    double x, y;
} EMULATED_ALIGNED(16) double2;

#undef EMULATED_ALIGNED

#define EMULATED_MAKE2(type, part) \
    static inline type make_##type(part x, part y) \
    { \
        type v = {x, y}; \
        return v; \
    }

#define EMULATED_MAKE4(type, part) \
    static inline type make_##type(part x, part y, part z, part w) \
    { \
        type v = {x, y, z, w}; \
        return v; \
    }

EMULATED_MAKE4(uchar4, unsigned char)
EMULATED_MAKE4(ushort4, unsigned short)
EMULATED_MAKE2(int2, int)
EMULATED_MAKE4(int4, int)
EMULATED_MAKE2(uint2, unsigned int)
EMULATED_MAKE4(uint4, unsigned int)
EMULATED_MAKE2(float2, float)
EMULATED_MAKE4(float4, float)
EMULATED_MAKE2(double2, double)

#undef EMULATED_MAKE2
#undef EMULATED_MAKE4

#endif
