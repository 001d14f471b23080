#define BLOCK 16
#define VECTOR_OPS vector_ops_avx512_bf16
#include "kernels/cpu/vector_ops.inc"
