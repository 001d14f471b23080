#define BLOCK 8
#define VECTOR_OPS vector_ops_avx2
#define VECTOR_TEXT "avx2 kernels"
#include "kernels/cpu/vector_ops.inc"
