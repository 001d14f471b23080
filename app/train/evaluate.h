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

/* The tests of a run: on which images, and what they find. While it goes on, that is its validation
 * images if it has some (--val-split), and the test images are looked at once, at its end.
 *
 * Which weights are the best is decided here, and kept by the trainer: run_tests_take tests,
 * run_tests_found_best compares with result.best, a save writes these weights, and
 * run_tests_keep_best then makes them the best. A run without checkpoints skips the save. */

struct result;

/* A test of the run, and after what. */
typedef struct test_found {
    checkpoint_test test; /* .images is 0: there was none */
    int64_t step, epoch;  /* epoch: from 1 */
} test_found;

typedef struct run_tests {
    rank_context *rank;
    struct result *result; /* what is found is kept there */
    evaluation *monitored; /* the result's that decides about the run: validation or test */
    float *logits;    /* (test images, NETWORK_CLASSES), zeroed: of the last test, this rank's part;
                      NULL: nobody wants them */
    test_found found; /* what is in *monitored, and after which step */
} run_tests;

/* Borrows both; `rank` is open. run_tests_close accepts a zeroed one. STATUS_NO_MEMORY. */
status run_tests_open(rank_context *rank, struct result *found, run_tests *out);
void run_tests_close(run_tests *tests);

/* Whether the run has images to validate on. */
bool run_tests_validate(const run_tests *tests);

/* Tests into *tests->monitored, at this place of the run. All ranks call it. The run's last test
 * leaves its logits: if it is not known which one that is, each that may be it. */
status run_tests_take(run_tests *tests, const position *at, bool may_be_last);

/* What was tested at this step; NULL: nothing was. */
const checkpoint_test *run_tests_at(const run_tests *tests, int64_t step);

/* Whether that is better than all tests before. The same on all ranks. */
bool run_tests_found_best(const run_tests *tests, int64_t step);

/* It is the best from now on. */
void run_tests_keep_best(run_tests *tests);

/* After the run, if it has validated: into the result's test. All ranks call it. */
status run_tests_take_last(run_tests *tests);

/* Whether the monitored accuracy reaches --target-acc. */
bool run_tests_reach_target(const run_tests *tests);

#endif
