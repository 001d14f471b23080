/* The bytes that decide what dropout keeps (struct dropout in kernels/ops.h). */
#ifndef MNIST_DDP_KERNELS_DROPOUT_H
#define MNIST_DDP_KERNELS_DROPOUT_H

#include "base/philox.h"
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
    philox_words words =
        philox4x32_10(drop->samples[i], drop->state->plan.epoch, drop->layer, block, drop->seed);
    memcpy(out, words.w, DROPOUT_BLOCK); /* little endian: byte j of the block is element j */
}

#endif
