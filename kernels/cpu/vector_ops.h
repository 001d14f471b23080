/* Loops that the compiler turns into vector instructions: one table per generation of processor,
 * all from kernels/cpu/vector_ops.inc.
 *
 * Activations are "blocked" by B = block channels: (N, C/B, H, W, B).
 * The functions work on one sample or one stretch of elements, so that a team can share out the
 * rest.
 */
#ifndef MNIST_DDP_KERNELS_CPU_VECTOR_OPS_H
#define MNIST_DDP_KERNELS_CPU_VECTOR_OPS_H

#include "kernels/augmentation.h"
#include "kernels/ops.h"
#include "kernels/optimizer_math.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VECTOR_MAX_SAMPLE = 16384 }; /* elements that dropout decides per sample */

/* A matrix that the caller reads after a product. The product starts to load it from the third
 * level of cache, whose latency the caller would wait for. rows 0: nothing. */
typedef struct matmul_ahead {
    const float *at;
    size_t row; /* floats from a row to the next */
    int rows, columns;
} matmul_ahead;

/* Matrices: element (row, k) of A is a[row * a_row + k * a_step], (k, column) of B is
 * b[k * b_step + column], (row, column) of C is c[row * c_row + column]. */
typedef struct matmul_args {
    const float *a, *b;
    float *c;
    size_t a_row, a_step, b_step, c_row;
    int depth; /* terms of a sum */
    bool add;  /* to what C holds */
    matmul_ahead ahead;
} matmul_args;

/* A panel of activations, up to 64 x 64, as the first operand of a linear layer's products, without
 * what most of it is: zeros after a relu, a pool or dropout, or the background of a picture. With
 * x0 that value and sums over k,
 *
 *     sum of x[k] w[k]  =  sum of (x[k] - x0) w[k] where x[k] is not x0  +  x0 (sum of w[k])
 *
 * If x0 is 0, the result has the bits of the sum over all k: what is left out are zeros, and the
 * rest is added in the same order. The last term is computed in any case: it carries what is
 * infinite or not a number in w.
 */
enum {
    SPARSE_SIDE = 64, /* rows, and columns, at most */
    /* Of 4096 elements this many may be other than x0. Beyond, the product of a dense matrix takes
     * less time: a term of it takes some two fifths of the time. */
    SPARSE_MOST = 1600,
    SPARSE_SLACK = 16, /* a vector may be written behind the last element of a list */
};

typedef struct sparse_panel {
    int rows, columns;        /* rows 0: there are no lists */
    float background;         /* x0 */
    int16_t end[SPARSE_SIDE]; /* where each row's list ends; the next row's begins there */
    uint8_t column[SPARSE_MOST + SPARSE_SLACK];
    float value[SPARSE_MOST + SPARSE_SLACK]; /* less x0 */
} sparse_panel;

/* Rows of A and B are in `chunks` parts of `depth` floats, a multiple of 16. A row's part begins
 * `row` floats after that of the row before, its next one a_chunk or b_chunk floats further. */
typedef struct dots_args {
    const float *a, *b;
    size_t row, a_chunk, b_chunk;
    int chunks, depth;
    float scale;
    float *out;
    int out_row;
} dots_args;

/* Element (row, column) of x is x[row * x_row + column], of out out[row * out_row + column]. */
typedef struct transpose_args {
    const float *x;
    float *out;
    size_t x_row, out_row;
} transpose_args;

/* The vector code of convolution blocks: a table per kind of block and generation of processor.
 *
 * The functions work on a group of images, or on the weights alone, so that a team can share out
 * the rest.
 */
/* The blocks that there is code for: their shapes are in conv_block.c. */
typedef enum conv_block_kind {
    CONV_BLOCK_CNN,
    CONV_BLOCK_SPEEDRUN,
    CONV_BLOCK_KINDS
} conv_block_kind;

typedef struct conv_block_sizes {
    int images;                        /* a group has, at most */
    size_t prepared, scratch, partial; /* in floats */
    size_t kept;                       /* floats an image keeps from forward to backward; 0: none */
} conv_block_sizes;

/* Images [first, first + count) of a batch. */
typedef struct conv_block_group {
    const conv_block_batch *batch;
    const float *prepared; /* by `prepare` */
    int first, count;
    bool dense;     /* backward multiplies zeros, too */
    int *nonzero;   /* backward adds how many elements of dy a pool has let through; atomic */
    float *kept;    /* the first image's; zeroed before its first use */
    float *scratch; /* the thread's own, zeroed before its first use by this kind of block */
} conv_block_group;

typedef struct conv_block_kernels {
    conv_block_sizes (*sizes)(bool dense);
    /* Puts PyTorch's order of convolution `conv`'s weight into the arena's, or back. */
    void (*order)(int conv, const float *from, float *to, bool import);
    /* What every image needs of the weights. */
    void (*prepare)(const conv_block_batch *batch, bool dense, float *prepared);
    void (*forward)(const conv_block_group *group, const dropout *drop);
    /* Adds the group's gradients to `partial`. scale: of the dropout. dy: of the whole batch. */
    void (*backward)(const conv_block_group *group, float scale, const float *dy, float *partial);
    /* Sets or adds the gradients that `partial` holds. */
    void (*finish)(float *partial, bool dense, const param_gradients *out);
} conv_block_kernels;

typedef struct vector_ops {
    const char *text; /* "avx512 kernels" */
    int block;
    const conv_block_kernels *conv_blocks;      /* by kind */
    const conv_block_kernels *conv_blocks_bf16; /* likewise: products of bfloat16 */

    void (*normalise)(const uint8_t *pixels, float *x, size_t count); /* kernels/pixel.h */
    /* One image of AUGMENTATION_SIDE rows as *map changes it, normalised. */
    void (*augment)(const uint8_t *pixels, const affine_map *map, float *x);

    /* C (rows, columns) = A B, or += with `add`; columns is a multiple of block. */
    void (*matmul)(const matmul_args *m, int rows, int columns);
    /* The same of A and B rounded to bfloat16. a_step is 1, and there are at most 64 columns. */
    void (*matmul_bf16)(const matmul_args *m, int rows, int columns);
    /* The lists of x (rows, columns), at most SPARSE_SIDE each; out->rows is 0 if they would be too
     * long. Returns how many elements are not the background. */
    int (*sparse_pack)(const float *x, size_t x_row, int rows, int columns, sparse_panel *out);
    void (*sparse_transpose)(const sparse_panel *in, sparse_panel *out);
    /* matmul with a panel in A's place: its rows are C's, its columns are `depth`. */
    void (*sparse_multiply)(const sparse_panel *a, const matmul_args *m, int columns);
    /* For each element (row, k) of a panel whose background is 0: out's element (k, row) is scale
     * times row `row` of A times row k of B if the element is above 0, else 0. */
    void (*sparse_dots)(const sparse_panel *at, const dots_args *dots);
    /* out (columns, rows) = x (rows, columns) transposed. Each row of out is filled with zeros up
     * to the next multiple of block, if out_row is as long. */
    void (*transpose)(const transpose_args *t, int rows, int columns);

    /* Rows [first, first + n) of y (N, O), in place. */
    void (*linear_epilogue)(float *y, int first, int n, int out_features,
                            const linear_epilogue *epilogue);
    /* db (+)= column sums of dy (n, O). */
    void (*column_sums)(const float *dy, int n, int out_features, bool accumulate, float *db);
    /* dx *= scale if x > 0, else 0: n rows of `columns`, `stride` apart. */
    void (*relu_backward)(float *dx, const float *x, int n, int stride, int columns, float scale);

    void (*add)(float *sum, const float *x, size_t count); /* sum += x */

    double (*sum_of_squares)(const float *x, size_t count); /* kernels/clip_math.h */
    void (*scale)(float *x, size_t count, float factor);    /* likewise */

    void (*sgd_plain)(float *param, const float *grad, size_t count, sgd_math m);
    void (*sgd_momentum)(float *param, const float *grad, float *buffer, size_t count, sgd_math m);
    void (*adam)(float *param, const float *grad, float *exp_avg, float *exp_avg_sq, size_t count,
                 adam_math m);
    void (*adadelta)(float *param, const float *grad, float *square_avg, float *acc_delta,
                     size_t count, adadelta_math m);
} vector_ops;

extern const vector_ops vector_ops_avx512;      /* block 16 */
extern const vector_ops vector_ops_avx512_bf16; /* likewise, with instructions for bfloat16 */
extern const vector_ops vector_ops_avx2;        /* block 8 */
extern const vector_ops vector_ops_generic;     /* block 4 */

#endif
