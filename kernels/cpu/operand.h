/* Operands of products, in float32 or bfloat16, and the products.
 *
 * bfloat16 with AVX512_BF16 is stored as such (matmul_bf16.h). Without that, an operand is a float
 * that was rounded to bfloat16, and the product is that of floats: the same values, at float32's
 * speed.
 */
#ifndef MNIST_DDP_KERNELS_CPU_OPERAND_H
#define MNIST_DDP_KERNELS_CPU_OPERAND_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_bf16.h"
#include "kernels/device.h"

#ifdef __AVX512BF16__
enum { HAS_BF16 = 1 };
#else
enum { HAS_BF16 = 0 };
#endif

/* Whether operands of this precision are stored as bfloat16. */
INLINE bool is_bf16(precision how)
{
    return HAS_BF16 && how == PRECISION_BF16;
}

/* Element `index` of an array of operands. */
INLINE float *operand(float *array, int index, precision how)
{
    return is_bf16(how) ? (float *)(void *)((uint16_t *)(void *)array + index) : array + index;
}

/* Rounds to nearest, ties to even; what is not a number stays so. */
INLINE vec round_bf16(vec v)
{
    ivec bits = (ivec)v;
    vec rounded = (vec)((bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000);
    return choose(equal(v, v), rounded, v);
}

INLINE void store_operand(float *array, int index, vec v, precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        store_bf16((uint16_t *)(void *)array + index, v);
        return;
    }
#endif
    store(array + index, how == PRECISION_BF16 ? round_bf16(v) : v);
}

/* Rows `row` (even) and row + 1 of B (depth, columns), where a product reads them. */
INLINE void store_operand_rows(float *b, int row, int columns, int column, const vec *pair,
                               precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        store(b + row / 2 * columns + column, (vec)bf16_words(pair[0], pair[1]));
        return;
    }
#endif
    store_operand(b, row * columns + column, pair[0], how);
    store_operand(b, (row + 1) * columns + column, pair[1], how);
}

/* C (rows, columns) = A B, or += with `add`. Rows of A, along the sum, are a_row elements apart,
 * and even; rows of C are c_row floats apart. B is as store_operand_rows leaves it. */
typedef struct operand_product {
    const float *a, *b;
    float *c;
    size_t a_row, c_row;
    int depth;
    bool add;
    matmul_ahead ahead;
} operand_product;

INLINE void multiply_operands(const operand_product *p, int rows, int columns, precision how)
{
#ifdef __AVX512BF16__
    if (is_bf16(how)) {
        matmul_bf16(&(matmul_bf16_args){.a = (const uint32_t *)(const void *)p->a,
                                        .b = (const uint32_t *)(const void *)p->b,
                                        .c = p->c,
                                        .a_row = p->a_row / 2,
                                        .a_step = 1,
                                        .b_step = (size_t)columns,
                                        .c_row = p->c_row,
                                        .pairs = (p->depth + 1) / 2,
                                        .add = p->add,
                                        .ahead = p->ahead},
                    rows, columns);
        return;
    }
#endif
    (void)how;
    matmul(&(matmul_args){.a = p->a,
                          .b = p->b,
                          .c = p->c,
                          .a_row = p->a_row,
                          .a_step = 1,
                          .b_step = (size_t)columns,
                          .c_row = p->c_row,
                          .depth = p->depth,
                          .add = p->add,
                          .ahead = p->ahead},
           rows, columns);
}

#endif
