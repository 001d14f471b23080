#include "app/bench/stats.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_stats_quantile(const double *sorted, int n, double p)
{
    double at = p * (n - 1);
    int below = (int)floor(at);
    if (below >= n - 1)
        return sorted[n - 1];
    return sorted[below] + (at - below) * (sorted[below + 1] - sorted[below]);
}

double bench_stats_median(double *values, int n)
{
    if (n == 0)
        return (double)NAN;
    qsort(values, (size_t)n, sizeof *values, compare);
    return bench_stats_quantile(values, n, 0.5);
}

/* The probability that fewer than k of n samples lie below the true median, each with 1/2. */
static double chance_below(int n, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) - n * log(2.0));
    return sum;
}

/* The k-th smallest and the k-th largest sample miss the true median on either side with the
 * probability that fewer than k samples lie there. The largest k whose interval holds 95 %. */
static void set_interval(const double *sorted, bench_summary *out)
{
    int k = 0;
    while (2 * (k + 1) <= out->n && 1 - 2 * chance_below(out->n, k + 1) >= 0.95)
        k++;
    out->low = out->high = out->coverage = (double)NAN;
    if (k == 0)
        return;
    out->low = sorted[k - 1];
    out->high = sorted[out->n - k];
    out->coverage = 1 - 2 * chance_below(out->n, k);
}

bool bench_stats_is_outlier(const bench_summary *summary, double value)
{
    return value < summary->low_fence || value > summary->high_fence;
}

bench_summary bench_stats_summary(double *values, int n)
{
    bench_summary s = {.n = n, .median = bench_stats_median(values, n)};
    s.low_fence = -HUGE_VAL;
    s.high_fence = HUGE_VAL;
    set_interval(values, &s);
    if (n < 4) /* quartiles of fewer are the samples themselves */
        return s;
    double q1 = bench_stats_quantile(values, n, 0.25), q3 = bench_stats_quantile(values, n, 0.75);
    s.low_fence = q1 - 1.5 * (q3 - q1);
    s.high_fence = q3 + 1.5 * (q3 - q1);
    for (int i = 0; i < n; i++)
        s.outliers += bench_stats_is_outlier(&s, values[i]);
    return s;
}
