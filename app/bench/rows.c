#include "app/bench/rows.h"

#include "base/cores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 4096 }; /* of one median: repeats beyond it are not looked at */

static status allocate(bench_row *row, size_t repeats)
{
    row->samples = calloc(repeats, sizeof *row->samples);
    row->counts = calloc(repeats, sizeof *row->counts);
    if (row->samples == NULL || row->counts == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu samples", repeats);
    return STATUS_OK;
}

status bench_rows_create(const bench_cases *cases, int repeats, bench_rows *out)
{
    status st = STATUS_OK;
    bench_rows rows = {.cases = cases, .repeats = repeats, .threads = 1, .cores = cores_count()};
    rows.list = calloc((size_t)cases->count, sizeof *rows.list);
    if (rows.list == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d rows", cases->count);
    for (int i = 0; i < cases->count && st == STATUS_OK; i++) {
        rows.list[i].c = &cases->list[i];
        st = allocate(&rows.list[i], (size_t)repeats);
    }
    if (st == STATUS_OK)
        *out = rows;
    else
        bench_rows_free(&rows);
    return st;
}

void bench_rows_free(bench_rows *rows)
{
    for (int i = 0; rows->list != NULL && i < rows->cases->count; i++) {
        free(rows->list[i].samples);
        free(rows->list[i].counts);
    }
    free(rows->list);
    *rows = (bench_rows){.list = NULL};
}

int bench_row_samples(const bench_rows *rows, int row)
{
    int n = 0;
    for (int r = 0; r < rows->repeats; r++)
        n += rows->list[row].counts[r];
    return n;
}

static double field_of(const bench_sample *sample, size_t field)
{
    double value;
    memcpy(&value, (const char *)sample + field, sizeof value);
    return value;
}

/* Its share of the sample's step. */
static double share_of(const bench_sample *sample, size_t field)
{
    return field_of(sample, field) / sample->whole_step_s;
}

/* What the known phases add up to, as a share of the sample's step; NAN if none is known. */
static double phases_of(const bench_sample *sample, size_t field)
{
    (void)field;
    double sum = (double)NAN;
    for (int p = 0; p < N_PHASES; p++)
        if (isfinite(sample->phase_s[p]))
            sum = (isfinite(sum) ? sum : 0) + sample->phase_s[p];
    return sum / sample->whole_step_s;
}

/* What is known of a row's samples. */
static bench_summary summarize(const bench_rows *rows, int row,
                               double (*value_of)(const bench_sample *, size_t), size_t field)
{
    const bench_row *in = &rows->list[row];
    double values[MAX_VALUES];
    int n = 0;
    for (int r = 0; r < rows->repeats && n < MAX_VALUES; r++) {
        double value = in->counts[r] ? value_of(&in->samples[r], field) : (double)NAN;
        if (isfinite(value))
            values[n++] = value;
    }
    return bench_stats_summary(values, n);
}

bench_summary bench_row_summary(const bench_rows *rows, int row, size_t field)
{
    return summarize(rows, row, field_of, field);
}

double bench_row_median(const bench_rows *rows, int row, size_t field)
{
    return summarize(rows, row, field_of, field).median;
}

double bench_row_part(const bench_rows *rows, int row, size_t field)
{
    return summarize(rows, row, share_of, field).median *
           bench_row_median(rows, row, BENCH_FIELD(whole_step_s));
}

double bench_row_phase_sum(const bench_rows *rows, int row)
{
    return summarize(rows, row, phases_of, 0).median;
}

void bench_row_phases(const bench_rows *rows, int row, double out[N_PHASES])
{
    double sum = 0, step_s = bench_row_median(rows, row, BENCH_FIELD(whole_step_s));
    for (int p = 0; p < N_PHASES; p++) {
        out[p] = bench_row_part(rows, row, BENCH_FIELD(phase_s) + (size_t)p * sizeof(double));
        sum += isfinite(out[p]) ? out[p] : 0;
    }
    double scale = sum > 0 ? bench_row_phase_sum(rows, row) * step_s / sum : 1;
    for (int p = 0; p < N_PHASES; p++)
        out[p] *= scale;
}

double bench_row_peak(const bench_rows *rows, int row)
{
    const bench_row *in = &rows->list[row];
    double peak = (double)NAN;
    for (int r = 0; r < rows->repeats; r++)
        for (int d = 0; in->counts[r] && d < in->samples[r].peak_mib_count; d++)
            peak = fmax(peak, in->samples[r].peak_mib[d]); /* fmax passes over NAN */
    return peak;
}

bench_summary bench_rows_ratio(const bench_rows *rows, int a, int b)
{
    const bench_row *above = &rows->list[a], *below = &rows->list[b];
    double values[MAX_VALUES];
    int n = 0;
    for (int r = 0; r < rows->repeats && n < MAX_VALUES; r++)
        if (above->counts[r] && below->counts[r])
            values[n++] = above->samples[r].images_per_s / below->samples[r].images_per_s;
    return bench_stats_summary(values, n);
}

double bench_row_efficiency(const bench_rows *rows, int row)
{
    int base = bench_cases_base(rows->cases, row);
    if (base < 0 || base == row)
        return (double)NAN;
    return bench_rows_ratio(rows, row, base).median / rows->list[row].c->world;
}

static double compute_of(const bench_rows *rows, int row)
{
    double phase_s[N_PHASES];
    bench_row_phases(rows, row, phase_s);
    return phase_s[MOMENT_FORWARD] + phase_s[MOMENT_BACKWARD];
}

void bench_row_why(const bench_rows *rows, int row, char out[BENCH_WHY_BYTES])
{
    const bench_case *c = rows->list[row].c;
    int base = bench_cases_base(rows->cases, row);
    bench_facts facts = {
        .mode = c->mode,
        .world = c->world,
        .global_batch = c->global_batch,
        .threads = rows->threads,
        .cores = rows->cores,
        .is_cuda = rows->is_cuda,
        .step_s = bench_row_median(rows, row, BENCH_FIELD(whole_step_s)),
        .comm_total_s = bench_row_part(rows, row, BENCH_FIELD(comm_total_s)),
        .base_compute_s = (double)NAN,
    };
    bench_row_phases(rows, row, facts.phase_s);
    if (base >= 0) {
        facts.base_batch = rows->list[base].c->global_batch;
        facts.base_compute_s = compute_of(rows, base) / facts.base_batch;
    }
    bench_why(&facts, out);
}
