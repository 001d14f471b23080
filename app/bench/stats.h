/* What a few noisy samples tell: median, its confidence interval, outliers. No distribution is
 * assumed. */
#ifndef MNIST_DDP_APP_BENCH_STATS_H
#define MNIST_DDP_APP_BENCH_STATS_H

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

#endif
