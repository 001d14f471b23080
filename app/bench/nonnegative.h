/* Non-negative least squares, small and dense: a cost is a sum of costs, none of them below zero.
 */
#ifndef MNIST_DDP_APP_BENCH_NONNEGATIVE_H
#define MNIST_DDP_APP_BENCH_NONNEGATIVE_H

#include "base/status.h"

#include <stddef.h>

enum { NONNEGATIVE_MAX_COLUMNS = 24 };

/* The x >= 0 that minimises the sum over rows of w ((a x - y) / y)^2: an error counts by its share
 * of what was measured, so that a step of 1 ms weighs as much as one of 1 s.
 *
 *   a  (rows, columns)  read; each >= 0
 *   y  (rows)           read; each > 0
 *   w  (rows)           read; each > 0; NULL: all alike
 *   x  (columns)        set; 0 for a column of zeros
 *
 * Columns may be as different in size as seconds and bytes. STATUS_INVALID for no rows, too many
 * columns, or numbers that are not finite or below their bound. */
status nonnegative_fit(const double *a, const double *y, const double *w, size_t rows,
                       size_t columns, double *x);

/* The same for the sum of |a x - y| / y, nearly: the fit is repeated with weights that take from
 * rows what they are far off. A few measurements that something else has disturbed then move x
 * little. `w` (rows): set to the last weights. */
status nonnegative_fit_robust(const double *a, const double *y, double *w, size_t rows,
                              size_t columns, double *x);

#endif
