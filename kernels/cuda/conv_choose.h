/* Which of cuDNN's engines does one pass of a convolution for batches of one size. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H
#define MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H

#include "kernels/cuda/conv_engine.h"

typedef struct conv_problem {
    conv_work work;
    cudnnHandle_t handle; /* NULL: to no device */
    conv_target target;
    bool tensor_cores; /* are welcome */
    size_t workspace_bytes;
    /* The fastest of the first `tries` engines is taken, as `measure` finds them; 1: the first. */
    int tries;
    status (*measure)(void *ctx, const conv_engine *engine, float *out_ms);
    void *ctx;
} conv_problem;

typedef struct conv_choice {
    int n;
    int piece;          /* 0: all at once, by `engine`; else in pieces of this many images */
    conv_engine engine; /* empty as well: there is none; CONV_PASS_FORWARD_BIAS only */
} conv_choice;

/* Where the engine that is expected to be the fastest wants too much workspace, pieces are chosen
 * rather than the next engine, unless they were tiny. The caller closes out->engine. */
status conv_choose(const conv_problem *problem, conv_choice *out);

#endif
