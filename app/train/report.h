/* What a person or a program reads of a run: header, progress, results, the JSON line. Only rank
 * 0's report prints. */
#ifndef MNIST_DDP_APP_TRAIN_REPORT_H
#define MNIST_DDP_APP_TRAIN_REPORT_H

#include "app/train/evaluate.h"
#include "app/train/job.h"
#include "app/train/timeline.h"

#include <stdio.h>

typedef enum report_style {
    REPORT_PLAIN,   /* a line every --log-interval steps */
    REPORT_PYTORCH, /* the lines of pytorch/examples' mnist/main.py */
    REPORT_BAR,     /* a progress bar, on a terminal */
    REPORT_SILENT,  /* results only, or not rank 0 */
} report_style;

typedef struct report {
    const job *j;
    FILE *out; /* stdout; stderr with --json */
    report_style style;
    bool prints;         /* this is rank 0 */
    int64_t next_bar_ns; /* a bar is drawn at most ten times a second */
    int64_t epoch_started_ns;
} report;

/* A whole run in numbers. Arrays have one element per epoch trained by this process. */
typedef struct run_results {
    double *train_s;
    int epochs;               /* in train_s */
    int64_t images_per_epoch; /* over all ranks, with the sampler's padding */
    double setup_s;           /* exec to the first optimizer step's end */
    evaluation test;          /* the last one */
    double last_loss;         /* mean of this rank's last batch */
    bool knows_waiting;       /* else it is in the other phases */
    bool knows_exposed;       /* false: all is MOMENT_ACCELERATOR */
    int64_t steps;            /* of the optimizer, in train_s */
    int failed_checkpoints;   /* that were due and could not be written */
    rank_bytes bytes;         /* this rank's, in these steps */
    rank_bytes busiest;       /* the largest of all ranks or replicas, each for itself */
    int64_t *peaks;           /* bytes of device memory: (n_peaks), one per rank or replica */
    int n_peaks;
    int64_t comm_ns;              /* of collectives, from launch to end; -1: not known */
    bool graph;                   /* steps were replayed as graphs */
    int64_t rss_mib, private_mib; /* private: the largest rank's */
} run_results;

report report_open(const job *j);
void report_header(report *r, const char *run_dir, int64_t start_epoch, int64_t start_step);

/* Whether a line is due behind step `step` (from 0) of `steps`. */
bool report_wants_step(const report *r, int step, int steps);

/* What a line about a step says, beside its loss. */
typedef struct step_line {
    int64_t epoch, now_ns;
    int step, steps;
    uint32_t samples; /* of this rank's epoch that are done */
    int batch_n;      /* of the last batch */
} step_line;

/* `loss` is the mean of the last batch. */
void report_step(report *r, const step_line *line, double loss);

void report_epoch_start(report *r);

/* `test` is NULL after an epoch that is not tested. */
void report_epoch(report *r, int64_t epoch, double train_s, int64_t images, double train_loss,
                  const evaluation *test);
void report_line(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One object on one line; free with free(). STATUS_NO_MEMORY. */
status report_json(const job *j, const run_results *results, char **out);

#endif
