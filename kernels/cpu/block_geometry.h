/* The shape of a convolution block (kernels/cpu/conv_block.inc), and where its parts are in memory.
 *
 * Memory of one image: "mid", the input of the second convolution, is (C / BLOCK, side, side,
 * BLOCK) with zeros where tiles reach over its edge. The output is (C / BLOCK, pooled, pooled,
 * BLOCK). */
#ifndef MNIST_DDP_KERNELS_CPU_BLOCK_GEOMETRY_H
#define MNIST_DDP_KERNELS_CPU_BLOCK_GEOMETRY_H

#include "kernels/cpu/conv_block.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/winograd.h"
#include "kernels/dropout.h"

typedef struct block_geometry {
    int image;      /* side of the image */
    int kernel;     /* of the first convolution */
    bool pool_mid;  /* a pool follows it */
    int mid;        /* side of what the second convolution reads */
    int mid_memory; /* in memory: the side that its tiles reach */
    int mid_channels, out_channels;
    int pooled;                      /* side of the block's output */
    int tiles;                       /* of an image: tiles x tiles */
    int images;                      /* of a group */
    int forward_rows, backward_rows; /* rows of tiles of each image of a group */
    precision how;                   /* F32, or BF16: of the second convolution's products */
} block_geometry;

enum { DEAD = 4 }; /* a window's winner, if relu or dropout made it 0 */

/* Sizes in floats. A transformed tile is (position, channel), and a few floats so that the tiles of
 * a group do not compete for the same sets of a cache. */
INLINE int weights_of(const block_geometry *g)
{
    return POSITIONS * g->mid_channels * g->out_channels;
}

INLINE int in_tile(const block_geometry *g)
{
    return POSITIONS * g->mid_channels + 16;
}

INLINE int out_tile(const block_geometry *g)
{
    return POSITIONS * g->out_channels + 16;
}

INLINE int mid_floats(const block_geometry *g)
{
    return g->mid_memory * g->mid_memory * g->mid_channels;
}

INLINE int out_floats(const block_geometry *g)
{
    return g->pooled * g->pooled * g->out_channels;
}

INLINE int group_tiles(const block_geometry *g)
{
    int rows = g->forward_rows > g->backward_rows ? g->forward_rows : g->backward_rows;
    return g->images * rows * g->tiles;
}

/* What a block with a pool in the middle keeps of an image: mid, and the pool's winners as bytes.
 * To compute 5x5 taps again would cost more than to read it. */
INLINE int kept_floats(const block_geometry *g)
{
    return g->pool_mid ? mid_floats(g) + mid_floats(g) / (int)sizeof(float) : 0;
}

INLINE float *mid_of(const block_geometry *g, float *images, int k)
{
    return images + k * (g->pool_mid ? kept_floats(g) : mid_floats(g));
}

INLINE uint8_t *winner_of(const block_geometry *g, float *kept, int k)
{
    return (uint8_t *)(mid_of(g, kept, k) + mid_floats(g));
}

/* The memory of a thread. Bytes of the dropout follow as bytes. */
typedef struct block_scratch {
    float *dmid;     /* (images) */
    float *mid;      /* (images): the thread's, or what is kept */
    float *in, *out; /* transformed tiles of a group: operands, or a product's sums */
    float *din;      /* gradients of `in` */
    uint8_t *keep;   /* (images): of the dropout, channels innermost */
} block_scratch;

enum { KEEP_SLACK = PHILOX_LANES * DROPOUT_BLOCK };

INLINE int keep_bytes_of(const block_geometry *g)
{
    return (out_floats(g) + KEEP_SLACK + 63) / 64 * 64;
}

INLINE block_scratch scratch_of(const block_geometry *g, const conv_block_group *group)
{
    block_scratch s = {.dmid = group->scratch};
    float *after = s.dmid + g->images * mid_floats(g);
    s.mid = g->pool_mid ? group->kept : after;
    s.in = g->pool_mid ? after : after + g->images * mid_floats(g);
    /* Gradients replace the tiles if these are as large. */
    s.din = is_bf16(g->how) ? s.in + group_tiles(g) * in_tile(g) / 2 : s.in;
    s.out = s.din + group_tiles(g) * in_tile(g);
    s.keep = (uint8_t *)(s.out + group_tiles(g) * out_tile(g));
    return s;
}

/* Of "partial": the gradients of the first convolution's weight, then those of the biases, then du,
 * of the second's: of the transformed weights, or, if it is not dense, as conv_sparse.inc has
 * them. */
typedef struct block_partial {
    float *dw1, *db1, *db2, *du;
} block_partial;

INLINE block_partial partial_of(const block_geometry *g, float *memory)
{
    block_partial p = {.dw1 = memory};
    p.db1 = p.dw1 + g->kernel * g->kernel * g->mid_channels;
    p.db2 = p.db1 + g->mid_channels;
    p.du = p.db2 + g->out_channels;
    return p;
}

/* The largest of a 2x2 window, and which one it was: the first of equals. */
typedef struct window {
    vec best;
    codes winner;
} window;

INLINE window window_of(vec a, vec b, vec c, vec d)
{
    window w = {a, all_codes(0)};
    const vec others[] = {b, c, d};
    for (int k = 0; k < 3; k++) {
        lanes better = greater(others[k], w.best);
        w.best = choose(better, others[k], w.best);
        w.winner = choose_codes(better, all_codes(k + 1), w.winner);
    }
    return w;
}

/* What of a window's output is alive; the rest's winner becomes DEAD. */
INLINE void window_store(window w, lanes alive, vec y, float *to, uint8_t *winner)
{
    store(to, where(alive, y));
    store_codes(winner, choose_codes(alive, w.winner, all_codes(DEAD)));
}

#endif
