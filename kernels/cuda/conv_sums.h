/* Bias, bias gradient and batch reductions of convolutions.
 *
 * Reductions have two stages. Each block of the first writes its partial sums, and the second adds
 * those in an order fixed by the shapes. So the same numbers give the same bits. Activations are of
 * the device's type, aligned to 16 bytes. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_SUMS_H
#define MNIST_DDP_KERNELS_CUDA_CONV_SUMS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first stage's output. */
typedef struct conv_sums {
    float *partial; /* (values, blocks), blocks: of the launch */
    unsigned max_blocks;
} conv_sums;

/* For launches of at most `blocks` per multiprocessor. */
status conv_sums_create(device *dev, int values, unsigned blocks, conv_sums *out);
void conv_sums_free(device *dev, conv_sums *sums);

/* What is summed: the first dw_count values go to dw, the others to db; added or set. */
typedef struct conv_gradient {
    float *dw, *db;
    int dw_count, db_count;
    bool accumulate;
} conv_gradient;

/* The second stage. */
status conv_sums_finish(const device *dev, const conv_sums *sums, unsigned blocks,
                        const conv_gradient *out);

enum { CONV_SUMS_COLUMNS_BLOCKS = 8 }; /* per multiprocessor */

/* db from dy (rows, db_count); dw_count is 0. */
status conv_sums_columns(const device *dev, const conv_sums *sums, const void *dy, size_t rows,
                         const conv_gradient *out);

/* dw (count) set or added to from `from`, of the activations' type. */
status conv_sums_take(const device *dev, const void *from, size_t count, float *dw,
                      bool accumulate);

/* y (rows, channels) += bias (channels). */
status conv_sums_add_bias(const device *dev, const float *bias, size_t rows, int channels, void *y);

#ifdef __cplusplus
}
#endif
#endif
