/* The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974, chapter 23).
 *
 * Some columns are free, the others are held at zero. Each round frees the column that promises the
 * steepest descent and solves for the free ones alone. Where that would push one of them below
 * zero, the step stops at the first that gets there; that one is held again, and the rest is solved
 * anew. It ends when no column held at zero promises any descent.
 *
 * Rows are divided by y and columns by their length; the normal equations of so few columns are
 * then well enough conditioned for a Cholesky factorisation, whose small ridge keeps columns that
 * say the same thing apart.
 */
#include "app/bench/nonnegative.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MAX = NONNEGATIVE_MAX_COLUMNS };

#define RIDGE 1e-12
#define NO_DESCENT 1e-10

/* Errors below this count as squares: else the first row that fits would never move again. */
#define NEAR_ENOUGH 0.02
enum { ROBUST_ROUNDS = 12 };

typedef struct problem {
    size_t n;
    double gram[MAX][MAX]; /* of the scaled columns */
    double right[MAX];     /* their products with the scaled y: ones, but for the weights */
    double length[MAX];    /* of the columns before they were scaled; 0: a column of zeros */
    bool free[MAX];
    double x[MAX];
} problem;

static status check(const double *a, const double *y, size_t rows, size_t columns)
{
    if (rows < 1 || columns < 1 || columns > MAX)
        return FAIL(STATUS_INVALID, "a fit of %zu columns to %zu measurements (at most %d columns)",
                    columns, rows, MAX);
    for (size_t i = 0; i < rows; i++)
        if (!isfinite(y[i]) || y[i] <= 0)
            return FAIL(STATUS_INVALID, "measurement %zu is %g, not a time", i, y[i]);
    for (size_t i = 0; i < rows * columns; i++)
        if (!isfinite(a[i]) || a[i] < 0)
            return FAIL(STATUS_INVALID, "row %zu, column %zu of a fit is %g", i / columns,
                        i % columns, a[i]);
    return STATUS_OK;
}

static void set_up(problem *p, const double *a, const double *y, const double *w, size_t rows,
                   size_t columns)
{
    *p = (problem){.n = columns};
    for (size_t j = 0; j < columns; j++) {
        double sum = 0;
        for (size_t i = 0; i < rows; i++)
            sum +=
                (w != NULL ? w[i] : 1) * (a[i * columns + j] / y[i]) * (a[i * columns + j] / y[i]);
        p->length[j] = sqrt(sum);
    }
    for (size_t i = 0; i < rows; i++) {
        double row[MAX] = {0}, root = w != NULL ? sqrt(w[i]) : 1;
        for (size_t j = 0; j < columns; j++)
            row[j] = p->length[j] > 0 ? root * a[i * columns + j] / y[i] / p->length[j] : 0;
        for (size_t j = 0; j < columns; j++) {
            p->right[j] += root * row[j];
            for (size_t k = 0; k < columns; k++)
                p->gram[j][k] += row[j] * row[k];
        }
    }
}

/* z: the least squares over the free columns, 0 elsewhere. */
static void solve_free(const problem *p, double z[MAX])
{
    double lower[MAX][MAX] = {{0}}, half[MAX];
    size_t at[MAX], m = 0;
    memset(z, 0, sizeof(double) * MAX);
    for (size_t j = 0; j < p->n; j++)
        if (p->free[j])
            at[m++] = j;
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j <= i; j++) {
            double sum = p->gram[at[i]][at[j]] + (i == j ? RIDGE : 0);
            for (size_t k = 0; k < j; k++)
                sum -= lower[i][k] * lower[j][k];
            lower[i][j] = i == j ? sqrt(fmax(sum, RIDGE)) : sum / lower[j][j];
        }
        half[i] = p->right[at[i]];
        for (size_t k = 0; k < i; k++)
            half[i] -= lower[i][k] * half[k];
        half[i] /= lower[i][i];
    }
    for (size_t i = m; i-- > 0;) {
        double sum = half[i];
        for (size_t k = i + 1; k < m; k++)
            sum -= lower[k][i] * z[at[k]];
        z[at[i]] = sum / lower[i][i];
    }
}

/* The held column with the steepest descent, or n where none goes down. */
static size_t steepest(const problem *p)
{
    size_t best = p->n;
    double most = NO_DESCENT;
    for (size_t j = 0; j < p->n; j++) {
        if (p->free[j] || p->length[j] <= 0)
            continue;
        double descent = p->right[j];
        for (size_t k = 0; k < p->n; k++)
            descent -= p->gram[j][k] * p->x[k];
        if (descent > most) {
            most = descent;
            best = j;
        }
    }
    return best;
}

/* Goes towards z as far as nothing falls below zero; true: all the way. */
static bool approach(problem *p, const double z[MAX])
{
    double step = 1;
    size_t first = p->n;
    for (size_t j = 0; j < p->n; j++)
        if (p->free[j] && z[j] <= 0) {
            double here = p->x[j] > z[j] ? p->x[j] / (p->x[j] - z[j]) : 0;
            if (first == p->n || here < step) {
                step = here;
                first = j;
            }
        }
    for (size_t j = 0; j < p->n; j++)
        p->x[j] += step * (z[j] - p->x[j]);
    if (first == p->n)
        return true;
    p->free[first] = false;
    for (size_t j = 0; j < p->n; j++)
        if (!p->free[j] || p->x[j] < 0)
            p->x[j] = 0;
    return false;
}

status nonnegative_fit(const double *a, const double *y, const double *w, size_t rows,
                       size_t columns, double *x)
{
    TRY(check(a, y, rows, columns));
    problem p;
    double z[MAX];
    set_up(&p, a, y, w, rows, columns);
    /* Each round ends lower than the one before; the bound is for rounding. */
    for (size_t round = 0; round < 10 * columns; round++) {
        size_t j = steepest(&p);
        if (j == p.n)
            break;
        p.free[j] = true;
        do
            solve_free(&p, z);
        while (!approach(&p, z));
    }
    for (size_t j = 0; j < columns; j++)
        x[j] = p.length[j] > 0 ? p.x[j] / p.length[j] : 0;
    return STATUS_OK;
}

status nonnegative_fit_robust(const double *a, const double *y, double *w, size_t rows,
                              size_t columns, double *x)
{
    for (size_t i = 0; i < rows; i++)
        w[i] = 1;
    for (int round = 0; round < ROBUST_ROUNDS; round++) {
        TRY(nonnegative_fit(a, y, w, rows, columns, x));
        for (size_t i = 0; i < rows; i++) {
            double got = 0;
            for (size_t j = 0; j < columns; j++)
                got += a[i * columns + j] * x[j];
            w[i] = 1 / fmax(fabs(got / y[i] - 1), NEAR_ENOUGH);
        }
    }
    return STATUS_OK;
}
