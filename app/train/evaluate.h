/* Exact evaluation: every test image once, at any number of ranks. */
#ifndef MNIST_DDP_APP_TRAIN_EVALUATE_H
#define MNIST_DDP_APP_TRAIN_EVALUATE_H

#include "app/train/rank_context.h"

typedef struct evaluation {
    int64_t images, correct; /* over all ranks */
    double loss;             /* mean over images, in nats */
    double elapsed_s;
} evaluation;

/* Each rank takes a contiguous part of the test set; counts are summed as integers. `logits`: host
 * memory for all images, (test_set.count, NETWORK_CLASSES), of which this rank sets those of its
 * part; NULL: nobody wants them. */
status evaluate(rank_context *rank, float *logits, evaluation *out);

/* Makes `logits` those of all ranks, on all ranks. Before its first test it was zeroed. */
status evaluate_gather(rank_context *rank, float *logits);

/* correct / images. */
double evaluation_accuracy(const evaluation *e);

#endif
