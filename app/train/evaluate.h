/* Exact evaluation: every test image once, at any number of ranks. */
#ifndef MNIST_DDP_APP_TRAIN_EVALUATE_H
#define MNIST_DDP_APP_TRAIN_EVALUATE_H

#include "app/train/rank_context.h"

typedef struct evaluation {
    int64_t images, correct; /* over all ranks */
    double loss;             /* mean over images, in nats */
    double elapsed_s;
} evaluation;

/* Each rank takes a contiguous part of the test set; counts are summed as integers. Without a
 * process group (rank_context_open_eval) this process takes all. */
status evaluate(rank_context *rank, evaluation *out);

/* correct / images. */
double evaluation_accuracy(const evaluation *e);

#endif
