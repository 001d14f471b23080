/* The bytes that decide what dropout keeps (struct dropout in kernels/ops.h). */
#ifndef MNIST_DDP_KERNELS_DROPOUT_H
#define MNIST_DDP_KERNELS_DROPOUT_H

#include "base/random.h"
#include "kernels/ops.h"

#include <string.h>

enum { DROPOUT_BLOCK = 16 }; /* elements that one Philox block decides, channels innermost */

/* An element whose byte is below this is dropped. */
static inline int dropout_threshold(float p)
{
    return (int)(256.0f * p);
}

/* The 16 bytes of block `block` of the sample `samples[i]`. */
static inline void dropout_bytes(const dropout *drop, int i, uint32_t block, uint8_t *out)
{
    philox_words words = philox4x32_10(drop->samples[i], drop->state->plan.epoch, drop->layer,
                                       drop->first_block + block, drop->seed);
    memcpy(out, words.w, DROPOUT_BLOCK); /* little endian: byte j of the block is element j */
}

enum { DROPOUT_LANES = 16 }; /* blocks that dropout_keep computes side by side, in vectors */

/* What is kept of sample i with `channels` channels and `area` positions: out (area, channels), 1
 * keeps, 0 drops. */
static inline void dropout_keep(const dropout *drop, int i, int channels, int area, uint8_t *out)
{
    enum { LANE_BYTES = DROPOUT_LANES * DROPOUT_BLOCK };
    int count = channels * area, threshold = dropout_threshold(drop->p);
    if (threshold == 0) {
        memset(out, 1, (size_t)count);
        return;
    }
    if (drop->keep != NULL) {
        for (int c = 0; c < channels; c++)
            for (int at = 0; at < area; at++)
                out[at * channels + c] = drop->keep[(i * channels + c) * area + at];
        return;
    }
    for (int first = 0; first < count; first += LANE_BYTES) {
        uint32_t words[4][DROPOUT_LANES];
        uint8_t bytes[LANE_BYTES];
        for (uint32_t lane = 0; lane < DROPOUT_LANES; lane++) {
            philox_words block = philox4x32_10(
                drop->samples[i], drop->state->plan.epoch, drop->layer,
                drop->first_block + (uint32_t)(first / DROPOUT_BLOCK) + lane, drop->seed);
            for (int k = 0; k < 4; k++)
                words[k][lane] = block.w[k];
        }
        for (int lane = 0; lane < DROPOUT_LANES; lane++)
            for (int k = 0; k < 4; k++)
                memcpy(bytes + lane * DROPOUT_BLOCK + 4 * k, &words[k][lane], 4);
        int n = count - first < LANE_BYTES ? count - first : LANE_BYTES;
        for (int j = 0; j < n; j++)
            out[first + j] = bytes[j] >= threshold;
    }
}

#endif
