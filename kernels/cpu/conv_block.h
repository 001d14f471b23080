/* The vector code of convolution blocks: a table per kind of block and generation of processor.
 *
 * The functions work on a group of images, or on the weights alone, so that a team can share out
 * the rest.
 */
#ifndef MNIST_DDP_KERNELS_CPU_CONV_BLOCK_H
#define MNIST_DDP_KERNELS_CPU_CONV_BLOCK_H

#include "kernels/ops.h"

/* The blocks that there is code for: their shapes are in conv_block.c. */
typedef enum conv_block_kind {
    CONV_BLOCK_CNN,
    CONV_BLOCK_SPEEDRUN,
    CONV_BLOCK_KINDS
} conv_block_kind;

typedef struct conv_block_sizes {
    int images;                        /* of a group, at most */
    size_t prepared, scratch, partial; /* in floats */
    size_t kept; /* of an image, from forward to backward, in floats; 0: nothing */
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

#endif
