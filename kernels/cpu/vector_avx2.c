#define BLOCK 8
#define VECTOR_OPS vector_ops_avx2
#include "kernels/cpu/vector_ops.inc"
