/* Exact evaluation: every image once, at any number of ranks. */
#ifndef MNIST_DDP_APP_TRAIN_EVALUATE_H
#define MNIST_DDP_APP_TRAIN_EVALUATE_H

#include "app/train/rank_context.h"
#include "model/checkpoint.h"

typedef struct evaluation {
    const char *name;        /* of the images: "test", "validation" */
    int64_t images, correct; /* over all ranks */
    double loss;             /* mean over images, in nats */
    double elapsed_s;
} evaluation;

/* `set` is rank->test_set or rank->val_set. Each rank takes a contiguous part of it; counts are
 * summed as integers. `logits`: host memory for all images, (set->count, NETWORK_CLASSES), of which
 * this rank sets those of its part; NULL: nobody wants them. */
status evaluate(rank_context *rank, const dataset *set, float *logits, evaluation *out);

/* Makes `logits`, of the test set, those of all ranks, on all ranks. Before its first test it was
 * zeroed. */
status evaluate_gather(rank_context *rank, float *logits);

/* correct / images. */
double evaluation_accuracy(const evaluation *e);

/* A test of the run, and after what. */
typedef struct test_found {
    checkpoint_test test; /* .images is 0: there was none */
    int64_t step, epoch;  /* epoch: from 1 */
} test_found;

#endif
