/* The product of a group's tiles with each other (kernels/cpu/conv_block.inc), in float32 or
 * bfloat16. */
#ifndef MNIST_DDP_KERNELS_CPU_BLOCK_PRODUCTS_H
#define MNIST_DDP_KERNELS_CPU_BLOCK_PRODUCTS_H

#include "kernels/cpu/block_geometry.h"

enum { MAX_CHANNELS = 64, MAX_TILES = 36 };

#ifdef __AVX512BF16__

/* Pairs of tiles as words: (tiles / 2, channels). */
INLINE void pair_tiles(const uint16_t *from, int from_row, int tiles, int channels, uint32_t *to)
{
    static const uint16_t none[MAX_CHANNELS];
    for (int tile = 0; tile < tiles; tile += 2)
        for (int c = 0; c < channels; c += BLOCK) {
            const uint16_t *even = from + tile * from_row + c;
            ivec words = bf16_words_of(even, tile + 1 < tiles ? even + from_row : none);
            store((float *)(void *)(to + tile / 2 * channels + c), (vec)words);
        }
}
#endif

/* du (ins, outs) += in (tiles, ins) transposed times out (tiles, outs). */
INLINE void add_tiles_product(const block_geometry *g, const float *in, const float *out, int tiles,
                              float *du)
{
    int ins = g->mid_channels, outs = g->out_channels;
#ifdef __AVX512BF16__
    if (is_bf16(g->how)) {
        uint32_t a[MAX_TILES / 2 * MAX_CHANNELS], b[MAX_TILES / 2 * MAX_CHANNELS];
        pair_tiles((const uint16_t *)(const void *)in, in_tile(g), tiles, ins, a);
        pair_tiles((const uint16_t *)(const void *)out, out_tile(g), tiles, outs, b);
        matmul_bf16(&(matmul_bf16_args){.a = a,
                                        .a_row = 1,
                                        .a_step = (size_t)ins,
                                        .b = b,
                                        .b_step = (size_t)outs,
                                        .c = du,
                                        .c_row = (size_t)outs,
                                        .pairs = (tiles + 1) / 2,
                                        .add = true},
                    ins, outs);
        return;
    }
#endif
    matmul(&(matmul_args){.a = in,
                          .a_row = 1,
                          .a_step = (size_t)in_tile(g),
                          .b = out,
                          .b_step = (size_t)out_tile(g),
                          .c = du,
                          .c_row = (size_t)outs,
                          .depth = tiles,
                          .add = true},
           ins, outs);
}

#endif
