/* For any processor: 128 bits are what SSE2 and NEON have. */
#define BLOCK 4
#define VECTOR_OPS vector_ops_generic
#if defined(__SSE2__)
#define VECTOR_TEXT "sse2 kernels"
#elif defined(__ARM_NEON)
#define VECTOR_TEXT "neon kernels"
#else
#define VECTOR_TEXT "generic kernels"
#endif
#include "kernels/cpu/vector_ops.inc"
