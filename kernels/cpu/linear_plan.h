/* The plan of a linear layer of the CPU device, and where the arena has its weight. */
#ifndef MNIST_DDP_KERNELS_CPU_LINEAR_PLAN_H
#define MNIST_DDP_KERNELS_CPU_LINEAR_PLAN_H

#include "kernels/cpu/state.h"

#include <stdatomic.h>

enum {
    PANEL = SPARSE_SIDE,   /* inputs, at most */
    PANEL_STEP = 16,       /* a panel's width is a multiple of it */
    STRETCHES = 4,         /* at most */
    STRETCH_PANELS = 3,    /* at least, if there is more than one stretch */
    SAMPLES = SPARSE_SIDE, /* of a block */
    ROUND = 4 * SAMPLES,
    FINISH_SAMPLES = 16, /* of a piece */
    CHUNK = 128,         /* outputs, at most */
    LANES = 16,          /* a product has a multiple of it as outputs */
    SPARSE_OUTPUTS = 32, /* at least: to make lists for less takes longer than the product */
};

typedef struct linear_plan {
    linear_shape s;
    cpu_state *cpu;
    precision how;
    int panels, stretches;
    /* The device's scratch memory holds, forward, the sums of a round's y: (stretches, chunks,
     * round, CHUNK); backward, dy of a round: (round / SAMPLES, chunks, SAMPLES, CHUNK). A chunk's
     * rows are as long as it is, up to a multiple of LANES, with zeros. */
    size_t outputs, stretch_floats; /* O, up to a multiple of LANES; of one stretch */
    /* Of the batch of the last forward, if it was one block of samples: the lists of each panel's
     * inputs; `rows` is 0 if it is dense. */
    sparse_panel *lists; /* (panels) */
    const float *listed; /* the batch; NULL: none */
    atomic_int nonzero;  /* of the batch: elements that are not the background */
} linear_plan;

static inline linear_plan *plan_of(linear *plan)
{
    return (linear_plan *)(void *)plan;
}

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

static inline int pieces_of(int count, int piece)
{
    return (count + piece - 1) / piece;
}

/* The first input of a panel. All are multiples of PANEL_STEP, and widths differ by one such step
 * at most. */
static inline int panel_first(const linear_plan *p, int panel)
{
    int steps = p->s.in_features / PANEL_STEP;
    return (int)((int64_t)panel * steps / p->panels) * PANEL_STEP;
}

static inline int panel_width(const linear_plan *p, int panel)
{
    return panel_first(p, panel + 1) - panel_first(p, panel);
}

static inline size_t panel_offset(const linear_plan *p, int panel)
{
    return (size_t)panel_first(p, panel) * (size_t)p->s.out_features;
}

#endif
