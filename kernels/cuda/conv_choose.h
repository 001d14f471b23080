/* Algorithm selection: the cuDNN engine for one pass of a convolution at one batch size. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H
#define MNIST_DDP_KERNELS_CUDA_CONV_CHOOSE_H

#include "kernels/cuda/conv_engine.h"

typedef struct conv_problem {
    conv_work work;
    cudnnHandle_t handle; /* NULL: not bound to a device */
    conv_target target;
    bool tensor_cores; /* allowed */
    size_t workspace_bytes;
    /* The fastest of the first `tries` engines is taken, by `measure`; 1: the first. */
    int tries;
    status (*measure)(void *ctx, const conv_engine *engine, float *out_ms);
    void *ctx;
} conv_problem;

typedef struct conv_choice {
    int n;
    int piece;          /* 0: the whole batch at once by `engine`; else images of a piece */
    conv_engine engine; /* empty, with piece 0: no engine; CONV_PASS_FORWARD_BIAS only */
} conv_choice;

/* If the engine that is expected to be fastest wants too much workspace, the batch is cut into
 * pieces. If those are tiny, the next engine is taken. The caller closes out->engine. */
status conv_choose(const conv_problem *problem, conv_choice *out);

#endif
