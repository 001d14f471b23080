/* Dropout's masks on the device: the bits of kernels/dropout.h. */
#ifndef MNIST_DDP_KERNELS_CUDA_DROPOUT_CUH
#define MNIST_DDP_KERNELS_CUDA_DROPOUT_CUH

#include "kernels/dropout.h"

#include <cuda_runtime.h>

/* Bit j is set if element 16 * block + j of sample i is kept. */
static __device__ inline unsigned dropout_kept(const dropout &drop, unsigned i, unsigned block)
{
    philox_words words = philox4x32_10(drop.samples[i], drop.state->plan.epoch, drop.layer,
                                       drop.first_block + block, drop.seed);
    unsigned threshold = (unsigned)(256.0f * drop.p), kept = 0;
    for (unsigned j = 0; j < DROPOUT_BLOCK; j++)
        kept |= (unsigned)((words.w[j / 4] >> (8 * (j % 4)) & 0xffu) >= threshold) << j;
    return kept;
}

#endif
