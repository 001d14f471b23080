/* Exact evaluation: every test image once, at any number of ranks. */
#ifndef MNIST_DDP_APP_TRAIN_EVALUATE_H
#define MNIST_DDP_APP_TRAIN_EVALUATE_H

#include "app/train/job.h"

typedef struct evaluation {
    int64_t images, correct; /* over all ranks */
    double loss;             /* mean over images, in nats */
    double elapsed_s;
} evaluation;

/* Makes j->test_load: this rank's part of the test set, on the device. */
status evaluate_open(job *j);

/* Each rank takes a contiguous part of the test set; counts are summed as integers. Without a
 * process group (job_open_eval) this process takes all. */
status evaluate(job *j, evaluation *out);

/* correct / images. */
double evaluation_accuracy(const evaluation *e);

#endif
