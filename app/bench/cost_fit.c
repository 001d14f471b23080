#include "app/bench/cost_fit.h"

#include "app/bench/nonnegative.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Columns of the fit to steps: every model's computation, then what all models share. */
enum {
    AT_DDP = COST_FIT_MODELS * COST_FIT_COMPUTE,
    AT_STARS = AT_DDP + COST_FIT_DDP,
    COLUMNS = AT_STARS + 2 * COST_FIT_STAR,
};

_Static_assert((int)COLUMNS <= (int)NONNEGATIVE_MAX_COLUMNS, "one fit takes all columns");

/* Ranks to a core. */
static double share(int ranks, int cores)
{
    return ranks > cores ? (double)ranks / cores : 1;
}

static void all_reduce_row(const cost_sample *s, int cores, double row[COST_FIT_ALL_REDUCE])
{
    double others = s->ranks - 1, per_core = share(s->ranks, cores);
    row[0] = others > 0 ? 1 : 0;
    row[1] = others;
    row[2] = others > 0 ? per_core - 1 : 0;
    row[3] = others > 0 ? s->bytes * per_core : 0;
    row[4] = s->bytes * per_core * 2 * others / s->ranks;
    row[5] = others > 0 ? s->bytes * (per_core - 1) : 0;
}

static double product(const double *row, const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += row[i] * x[i];
    return sum;
}

static double all_reduce_s(const cost_fit *fit, const cost_sample *s)
{
    double row[COST_FIT_ALL_REDUCE];
    all_reduce_row(s, fit->cores, row);
    return product(row, fit->all_reduce, COST_FIT_ALL_REDUCE);
}

/* fit->all_reduce is known. */
static void step_row(const cost_fit *fit, const cost_sample *s, double row[COLUMNS])
{
    for (size_t i = 0; i < COLUMNS; i++)
        row[i] = 0;
    bool is_star = s->kind != COST_SAMPLE_DDP;
    int competing = s->ranks < fit->cores ? s->ranks : fit->cores;
    double per_core = share(s->ranks, fit->cores), uneven = ceil(per_core) - per_core;
    double *compute = row + s->model * COST_FIT_COMPUTE;
    compute[0] = s->images * per_core;
    compute[1] = s->images * (competing - 1);
    compute[2] = s->images * (per_core - 1);
    compute[3] = is_star ? 1 : per_core;
    compute[4] = s->images * uneven;
    if (s->ranks == 1)
        return;
    if (!is_star) {
        row[AT_DDP] = all_reduce_s(fit, s);
        row[AT_DDP + 1] = per_core - 1;
        row[AT_DDP + 2] = uneven;
        return;
    }
    double *star = row + AT_STARS + (s->kind == COST_SAMPLE_SERVER ? 0 : COST_FIT_STAR);
    star[0] = 1;
    star[1] = per_core - 1;
    star[2] = s->bytes * (s->ranks - 1);
    star[3] = s->bytes * per_core;
}

static status check(const cost_sample *samples, size_t n, int cores)
{
    size_t fitted[COST_SAMPLE_KINDS] = {0}, steps = 0;
    bool several = false;
    for (size_t i = 0; i < n; i++) {
        const cost_sample *s = &samples[i];
        if (s->kind >= COST_SAMPLE_KINDS || s->model < 0 || s->model >= COST_FIT_MODELS ||
            s->ranks < 1 || !(s->images >= 0) || !(s->bytes >= 0) || !isfinite(s->images) ||
            !isfinite(s->bytes) || !(s->seconds > 0) || !isfinite(s->seconds))
            return FAIL(STATUS_INVALID,
                        "measurement %zu makes no sense: %d ranks, %g images, %g bytes, %g s", i,
                        s->ranks, s->images, s->bytes, s->seconds);
        if (s->held_out)
            continue;
        fitted[s->kind]++;
        steps += s->kind != COST_SAMPLE_ALL_REDUCE;
        several = several || (s->kind == COST_SAMPLE_DDP && s->ranks > 1);
    }
    if (cores < 1)
        return FAIL(STATUS_INVALID, "a machine of %d cores", cores);
    if (steps == 0)
        return FAIL(STATUS_INVALID, "nothing to fit: no steps of training were measured");
    if (several && fitted[COST_SAMPLE_ALL_REDUCE] == 0)
        return FAIL(STATUS_INVALID, "steps of several ranks were measured, but no all-reduce");
    return STATUS_OK;
}

/* The rows of one stage, what was measured, and the rows' weights. */
typedef struct table {
    double *a, *y, *w;
    size_t rows, columns;
} table;

static status table_create(size_t rows, size_t columns, table *out)
{
    *out = (table){.columns = columns};
    TRY(memory_alloc(sizeof(double) * rows * columns, (void **)&out->a));
    TRY(memory_alloc(sizeof(double) * rows, (void **)&out->w));
    return memory_alloc(sizeof(double) * rows, (void **)&out->y);
}

static void table_free(table *t)
{
    free(t->a);
    free(t->y);
    free(t->w);
}

static double *table_add(table *t, const cost_sample *s)
{
    t->y[t->rows] = s->seconds;
    return t->a + t->rows++ * t->columns;
}

static status fit_all_reduce(const cost_sample *samples, size_t n, cost_fit *fit)
{
    table t;
    status st = table_create(n, COST_FIT_ALL_REDUCE, &t);
    for (size_t i = 0; i < n && st == STATUS_OK; i++)
        if (samples[i].kind == COST_SAMPLE_ALL_REDUCE && !samples[i].held_out &&
            samples[i].ranks > 1)
            all_reduce_row(&samples[i], fit->cores, table_add(&t, &samples[i]));
    if (st == STATUS_OK && t.rows > 0)
        st = nonnegative_fit_robust(t.a, t.y, t.w, t.rows, t.columns, fit->all_reduce);
    table_free(&t);
    return st;
}

static status fit_steps(const cost_sample *samples, size_t n, cost_fit *fit)
{
    table t;
    double x[COLUMNS];
    status st = table_create(n, COLUMNS, &t);
    for (size_t i = 0; i < n && st == STATUS_OK; i++)
        if (samples[i].kind != COST_SAMPLE_ALL_REDUCE && !samples[i].held_out)
            step_row(fit, &samples[i], table_add(&t, &samples[i]));
    if (st == STATUS_OK)
        st = nonnegative_fit_robust(t.a, t.y, t.w, t.rows, t.columns, x);
    table_free(&t);
    if (st != STATUS_OK)
        return st;
    for (size_t model = 0; model < COST_FIT_MODELS; model++)
        for (size_t i = 0; i < COST_FIT_COMPUTE; i++)
            fit->compute[model][i] = x[model * COST_FIT_COMPUTE + i];
    for (size_t i = 0; i < COST_FIT_DDP; i++)
        fit->ddp[i] = x[AT_DDP + i];
    for (size_t i = 0; i < COST_FIT_STAR; i++) {
        fit->star[0][i] = x[AT_STARS + i];
        fit->star[1][i] = x[AT_STARS + COST_FIT_STAR + i];
    }
    return STATUS_OK;
}

status cost_fit_make(const cost_sample *samples, size_t n, int cores, cost_fit *out)
{
    TRY(check(samples, n, cores));
    cost_fit fit = {.cores = cores};
    TRY(fit_all_reduce(samples, n, &fit));
    TRY(fit_steps(samples, n, &fit));
    *out = fit;
    return STATUS_OK;
}

double cost_fit_predict(const cost_fit *fit, const cost_sample *s)
{
    if (s->kind == COST_SAMPLE_ALL_REDUCE)
        return all_reduce_s(fit, s);
    double row[COLUMNS];
    step_row(fit, s, row);
    return product(row + s->model * COST_FIT_COMPUTE, fit->compute[s->model], COST_FIT_COMPUTE) +
           product(row + AT_DDP, fit->ddp, COST_FIT_DDP) +
           product(row + AT_STARS, fit->star[0], COST_FIT_STAR) +
           product(row + AT_STARS + COST_FIT_STAR, fit->star[1], COST_FIT_STAR);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

cost_error cost_fit_error(const cost_fit *fit, const cost_sample *samples, size_t n, unsigned kinds,
                          bool held_out)
{
    cost_error error = {.samples = 0};
    double *errors = malloc(sizeof(double) * (n > 0 ? n : 1));
    if (errors == NULL)
        return error;
    for (size_t i = 0; i < n; i++)
        if ((kinds & 1u << samples[i].kind) != 0 && samples[i].held_out == held_out)
            errors[error.samples++] =
                fabs(cost_fit_predict(fit, &samples[i]) - samples[i].seconds) / samples[i].seconds;
    if (error.samples > 0) {
        qsort(errors, error.samples, sizeof(double), by_size);
        error.median = (errors[error.samples / 2] + errors[(error.samples - 1) / 2]) / 2;
        error.most = errors[error.samples - 1];
    }
    free(errors);
    return error;
}
