#define BLOCK 16
#define VECTOR_OPS vector_ops_avx512_bf16
#define VECTOR_TEXT "avx512 kernels"
#include "kernels/cpu/vector_ops.inc"
