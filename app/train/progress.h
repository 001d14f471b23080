/* What a person reads of a run while it goes on: header, steps, epochs. Only rank 0's prints. */
#ifndef MNIST_DDP_APP_TRAIN_PROGRESS_H
#define MNIST_DDP_APP_TRAIN_PROGRESS_H

#include "app/train/evaluate.h"
#include "app/train/rank_signals.h"

#include <stdio.h>

typedef enum progress_style {
    PROGRESS_PLAIN,   /* a line every --log-interval steps */
    PROGRESS_PYTORCH, /* the lines of pytorch/examples' mnist/main.py */
    PROGRESS_BAR,     /* a progress bar, on a terminal */
    PROGRESS_SILENT,  /* results only, or not rank 0 */
} progress_style;

typedef struct progress {
    const rank_context *rank;
    const rank_signals *signals;
    FILE *out; /* stdout; stderr with --json */
    progress_style style;
    bool prints;         /* this is rank 0 */
    int64_t next_bar_ns; /* a bar is drawn at most ten times a second */
    int64_t epoch_started_ns;
    bool is_cut; /* lines are dropped */
} progress;

/* Borrows both. As with any program, a reader that takes nothing, such as a pager, holds the rank up
 * until it reads on; but a rank that is asked to stop drops its lines and goes on without them. */
progress progress_open(const rank_context *rank, const rank_signals *signals);
void progress_header(progress *p, const char *run_dir, int64_t start_epoch, int64_t start_step);

/* Whether a line is due after step `step` (from 0) of `steps`. */
bool progress_wants_step(const progress *p, int step, int steps);

/* What a line about a step says, beside its loss. */
typedef struct step_line {
    int64_t epoch, now_ns;
    int step, steps;
    uint32_t samples; /* of this rank's epoch that are done */
    int batch_n;      /* of the last batch */
} step_line;

/* `loss` is rank 0's own: the mean of its last batch. */
void progress_step(progress *p, const step_line *line, double loss);

void progress_epoch_start(progress *p);

/* After step `step` (from 0) of the epoch's `steps`. */
void progress_test(progress *p, int64_t epoch, int step, int steps, const evaluation *test);

/* `test` is NULL after an epoch that is not tested. */
void progress_epoch(progress *p, int64_t epoch, double train_s, int64_t images, double train_loss,
                    const evaluation *test);
void progress_line(progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
