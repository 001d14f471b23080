/* Measures: every case once per repeat, each in a child, and reads what its JSON line tells. And
 * what a few noisy samples tell: median, its confidence interval, outliers. No distribution is
 * assumed. */
#ifndef MNIST_DDP_APP_BENCH_MEASURE_H
#define MNIST_DDP_APP_BENCH_MEASURE_H

#include "app/bench/cases.h"
#include "app/bench/child.h"
#include "base/status.h"
#include "dist/health/rank_status.h"

#include <jansson.h>
#include <stdbool.h>

enum { BENCH_STATS_MIN = 6 }; /* samples that a 95 % interval takes: 1 - 2 / 2^6 = 96.9 % */

typedef struct bench_summary {
    int n;
    double median;    /* NAN if n is 0 */
    double low, high; /* between two of the samples lies the median of all runs there could be, */
    double coverage;  /* with this probability, >= 0.95; all three NAN if n < BENCH_STATS_MIN */
    double low_fence, high_fence; /* samples outside are outliers: 1.5 times the distance of the
                                     quartiles beyond them */
    int outliers;
} bench_summary;

/* Sorts the values and summarises them. An outlier is noted and stays in. */
bench_summary bench_stats_summary(double *values, int n);

bool bench_stats_is_outlier(const bench_summary *summary, double value);

/* Of sorted values, n >= 1: the share p (0..1) of them lies below; between two, linear. */
double bench_stats_quantile(const double *sorted, int n, double p);

/* Sorts the values; their median, NAN if n is 0. */
double bench_stats_median(double *values, int n);

/* Everything is NAN (peak_mib_count 0) if the line does not say it. */
enum { BENCH_MAX_DEVICES = 64 };
typedef struct bench_sample {
    double images_per_s;      /* of the epochs after the warm-up, together */
    double step_s;            /* of one optimizer step, likewise */
    double whole_step_s;      /* of one optimizer step, over all epochs: what the phases are of */
    double phase_s[N_PHASES]; /* of one optimizer step, over all epochs: of the main thread of
                                 rank 0, or of dp's master */
    double comm_total_s, comm_exposed_s;               /* likewise */
    double sent_bytes, received_bytes;                 /* rank 0's, of one optimizer step */
    double sent_busiest_bytes, received_busiest_bytes; /* the busiest rank's */
    double peak_mib[BENCH_MAX_DEVICES];                /* per rank or replica */
    int peak_mib_count;
    double test_acc, last_loss;
} bench_sample;

/* Reads a line. `global_batch`: images of an optimizer step. STATUS_PEER if it is not a run of more
 * epochs than `warmup`. */
status bench_sample_read(const json_t *line, int warmup, int global_batch, bench_sample *out);

enum { BENCH_FIGURE_BYTES = 64 };

/* What is measured, as the loop asks for it. `i`: the case. */
typedef struct bench_measurement {
    int cases, repeats;
    void *ctx;
    /* The case's name, and the words of its command. */
    void (*command)(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out);
    /* The figures of one run, from its line; `figure`: what the progress says of them. */
    status (*take)(void *ctx, int i, int repeat, const json_t *line,
                   char figure[BENCH_FIGURE_BYTES]);
    void (*failed)(void *ctx, int i, const char *name); /* a run; status_text() says why */
    bool shows;                                         /* a status line, if stderr is a terminal */
} bench_measurement;

/* Runs the cases in turn, A B C A B C, so that a slow minute of the machine hits all. A case that
 * fails twice in a row is given up. Ends early, and that is no failure, if a signal came.
 * STATUS_NO_MEMORY. */
status bench_measure(const bench_measurement *m, bench_child *place);

#endif
