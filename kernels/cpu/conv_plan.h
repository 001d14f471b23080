/* What both kinds of convolution of the CPU device share. */
#ifndef MNIST_DDP_KERNELS_CPU_CONV_PLAN_H
#define MNIST_DDP_KERNELS_CPU_CONV_PLAN_H

#include "kernels/cpu/state.h"

/* Common head of both plans. */
typedef struct conv_plan {
    conv2d_shape s;
    cpu_state *cpu;
    int out_h, out_w;
    size_t x_elements, y_elements; /* of one image */
    float *partial;        /* weight and bias gradients of each piece, summed in piece order */
    size_t partial_floats; /* of one piece: weights, then biases */
} conv_plan;

static inline size_t conv_weights(const conv_plan *p)
{
    const conv2d_shape *s = &p->s;
    return (size_t)(s->out_channels * s->channels * s->kernel * s->kernel);
}

/* Sets the sizes from p->s, and allocates `pieces` partial gradients. */
status conv_plan_open(conv_plan *p, int pieces);

/* The sum of the first `pieces` partial gradients, in order. */
void conv_sum_partial(const conv_plan *p, int pieces, const param_gradients *out);

#endif
