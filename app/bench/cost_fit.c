#include "app/bench/cost_fit.h"

#include "app/bench/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_REDUCE_TERMS = 3, STEP_TERMS = MODEL_COUNT + 3, MOST_TERMS = STEP_TERMS };

/* How often each term counts in a sample; 0 if the sample has nothing to do with it. */
typedef void row_fn(const cost_fit *fit, const cost_sample *s, double row[MOST_TERMS]);

static double ranks_per_core(const cost_fit *fit, const cost_sample *s)
{
    return s->ranks > fit->cores ? (double)s->ranks / fit->cores : 1;
}

static void all_reduce_row(const cost_fit *fit, const cost_sample *s, double row[MOST_TERMS])
{
    double several = s->ranks > 1 ? 1 : 0, per_core = ranks_per_core(fit, s);
    row[0] = several;
    row[1] = several * s->bytes * per_core;
    row[2] = several * (per_core - 1);
}

static void step_row(const cost_fit *fit, const cost_sample *s, double row[MOST_TERMS])
{
    double per_core = ranks_per_core(fit, s), rounds = s->kind == COST_SAMPLE_MASTER ? 3 : 1;
    for (int model = 0; model < MODEL_COUNT; model++)
        row[model] = s->model == model ? s->images * per_core : 0;
    row[MODEL_COUNT] = s->parameter_bytes * per_core;
    row[MODEL_COUNT + 1] = s->ranks > 1 ? 1 : 0;
    row[MODEL_COUNT + 2] = rounds * (per_core - 1);
}

/* What a step moves, at the bandwidth of all-reduces. */
static double transfer_s(const cost_fit *fit, const cost_sample *s)
{
    if (s->ranks == 1)
        return 0;
    bool star = s->kind != COST_SAMPLE_DDP;
    return fit->s_per_byte * s->bytes * (star ? s->ranks - 1 : ranks_per_core(fit, s));
}

static double product(const double *row, const double *terms, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += row[i] * terms[i];
    return sum;
}

double cost_fit_predict(const cost_fit *fit, const cost_sample *s)
{
    double row[MOST_TERMS];
    if (s->kind == COST_SAMPLE_ALL_REDUCE) {
        const double terms[] = {fit->latency_s, fit->s_per_byte, fit->switching_s};
        all_reduce_row(fit, s, row);
        return product(row, terms, ALL_REDUCE_TERMS);
    }
    double terms[STEP_TERMS];
    memcpy(terms, fit->image_s, sizeof fit->image_s);
    terms[MODEL_COUNT] = fit->optimizer_s_per_byte;
    terms[MODEL_COUNT + 1] = fit->meeting_s;
    terms[MODEL_COUNT + 2] = fit->sharing_s;
    step_row(fit, s, row);
    return product(row, terms, STEP_TERMS) + transfer_s(fit, s);
}

/* The normal equations of one fit: matrix * terms = right. Sums over rows that are divided by what
 * was measured, so that errors are relative. */
typedef struct equations {
    int n;
    double matrix[MOST_TERMS][MOST_TERMS], right[MOST_TERMS];
} equations;

static void add_sample(equations *e, const double row[MOST_TERMS], double known_s, double seconds)
{
    for (int i = 0; i < e->n; i++) {
        for (int j = 0; j < e->n; j++)
            e->matrix[i][j] += row[i] * row[j] / (seconds * seconds);
        e->right[i] += row[i] * (seconds - known_s) / (seconds * seconds);
    }
}

/* Solves for the terms that are `used`; the others become 0. By Gauss-Jordan elimination of the
 * matrix with a diagonal of ones. A term that the samples do not tell from those before it is 0,
 * too: the ones before it carry its cost. */
static void solve(const equations *e, const bool used[MOST_TERMS], double out[MOST_TERMS])
{
    static const double told_apart = 1e-9;
    double a[MOST_TERMS][MOST_TERMS + 1], scale[MOST_TERMS];
    int n = e->n; /* also the column of the right side */
    for (int i = 0; i < n; i++)
        scale[i] = used[i] && e->matrix[i][i] > 0 ? 1 / sqrt(e->matrix[i][i]) : 0;
    for (int i = 0; i < n; i++) {
        a[i][n] = e->right[i] * scale[i];
        for (int j = 0; j < n; j++)
            a[i][j] = e->matrix[i][j] * scale[i] * scale[j];
    }
    for (int k = 0; k < n; k++) {
        if (!(a[k][k] > told_apart)) {
            scale[k] = 0;
            continue;
        }
        for (int i = 0; i < n; i++)
            for (int j = n; i != k && j >= k; j--)
                a[i][j] -= a[i][k] / a[k][k] * a[k][j];
    }
    for (int k = 0; k < n; k++)
        out[k] = scale[k] > 0 ? a[k][n] / a[k][k] * scale[k] : 0;
}

/* No cost is negative: while one comes out so, the most negative one (as it weighs in the samples)
 * is left out. */
static void solve_not_negative(const equations *e, double out[MOST_TERMS])
{
    bool used[MOST_TERMS];
    for (int i = 0; i < MOST_TERMS; i++)
        used[i] = true;
    for (;;) {
        int worst = -1;
        solve(e, used, out);
        for (int i = 0; i < e->n; i++)
            if (out[i] < 0 && (worst < 0 || out[i] * sqrt(e->matrix[i][i]) <
                                                out[worst] * sqrt(e->matrix[worst][worst])))
                worst = i;
        if (worst < 0)
            return;
        used[worst] = false;
    }
}

static status check(const cost_sample *samples, size_t n, int cores)
{
    size_t fitted[COST_SAMPLE_KINDS] = {0}, steps = 0;
    bool several = false;
    for (size_t i = 0; i < n; i++) {
        const cost_sample *s = &samples[i];
        if (s->kind >= COST_SAMPLE_KINDS || s->model < 0 || s->model >= MODEL_COUNT ||
            s->ranks < 1 || !(s->images >= 0) || !(s->bytes >= 0) || !isfinite(s->images) ||
            !isfinite(s->bytes) || !(s->seconds > 0) || !isfinite(s->seconds))
            return FAIL(STATUS_INVALID,
                        "measurement %zu makes no sense: %d ranks, %g images, %g bytes, %g s", i,
                        s->ranks, s->images, s->bytes, s->seconds);
        if (s->held_out)
            continue;
        fitted[s->kind]++;
        steps += s->kind != COST_SAMPLE_ALL_REDUCE;
        several = several || (s->kind != COST_SAMPLE_ALL_REDUCE && s->ranks > 1);
    }
    if (cores < 1)
        return FAIL(STATUS_INVALID, "a machine of %d cores", cores);
    if (steps == 0)
        return FAIL(STATUS_INVALID, "nothing to fit: no steps of training were measured");
    if (several && fitted[COST_SAMPLE_ALL_REDUCE] == 0)
        return FAIL(STATUS_INVALID, "steps of several ranks were measured, but no all-reduce");
    return STATUS_OK;
}

status cost_fit_make(const cost_sample *samples, size_t n, int cores, cost_fit *out)
{
    cost_fit fit = {.cores = cores};
    double row[MOST_TERMS], terms[MOST_TERMS];
    TRY(check(samples, n, cores));
    equations sums = {.n = ALL_REDUCE_TERMS}, steps = {.n = STEP_TERMS};
    for (size_t i = 0; i < n; i++)
        if (samples[i].kind == COST_SAMPLE_ALL_REDUCE && !samples[i].held_out) {
            all_reduce_row(&fit, &samples[i], row);
            add_sample(&sums, row, 0, samples[i].seconds);
        }
    solve_not_negative(&sums, terms);
    fit.latency_s = terms[0];
    fit.s_per_byte = terms[1];
    fit.switching_s = terms[2];
    for (size_t i = 0; i < n; i++)
        if (samples[i].kind != COST_SAMPLE_ALL_REDUCE && !samples[i].held_out) {
            step_row(&fit, &samples[i], row);
            add_sample(&steps, row, transfer_s(&fit, &samples[i]), samples[i].seconds);
        }
    solve_not_negative(&steps, terms);
    memcpy(fit.image_s, terms, sizeof fit.image_s);
    fit.optimizer_s_per_byte = terms[MODEL_COUNT];
    fit.meeting_s = terms[MODEL_COUNT + 1];
    fit.sharing_s = terms[MODEL_COUNT + 2];
    *out = fit;
    return STATUS_OK;
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
        error.median = bench_stats_median(errors, (int)error.samples); /* sorts them */
        error.most = errors[error.samples - 1];
    }
    free(errors);
    return error;
}
