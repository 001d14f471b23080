/* mnist_ddp bench dp-vs-ddp: DataParallel beside DistributedDataParallel. */
#include "app/bench/dp_vs_ddp.h"

#include "app/bench/bench.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "base/log.h"
#include "base/thread.h"

#include <math.h>
#include <stdio.h>
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

enum { CHILD_TIMEOUT_MS = 3600 * 1000 };

/* Below it a run has not learned, and its speed means nothing. */
static const double PEER_ACCURACY = 0.85;

/* A run of PyTorch that does not learn is not measured against. */
static status check_peer(const bench_sample *s)
{
    if (!isfinite(s->last_loss) || !(s->test_acc >= PEER_ACCURACY))
        return FAIL(STATUS_PEER, "does not count: loss %g, accuracy %.1f %% (at least %.0f %%)",
                    s->last_loss, 100 * s->test_acc, 100 * PEER_ACCURACY);
    return STATUS_OK;
}

/* What is measured, and where figures go. */
typedef struct target {
    const bench_commands *commands;
    bench_rows *rows;
} target;

static void make_command(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out)
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_case_name(row->c, name);
    bench_commands_make(t->commands, row->c, out);
    bench_words_line(out, row->command, sizeof row->command);
}

static status take_sample(void *ctx, int i, int repeat, const json_t *line,
                          char figure[BENCH_FIGURE_BYTES])
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_sample *sample = &row->samples[repeat];
    TRY(bench_sample_read(line, (int)t->commands->opts->bench.warmup, row->c->global_batch,
                          sample));
    if (row->c->torch)
        TRY(check_peer(sample));
    row->counts[repeat] = true;
    snprintf(figure, BENCH_FIGURE_BYTES, "%.0f images/s", sample->images_per_s);
    return STATUS_OK;
}

static void note_failure(void *ctx, int i, const char *name)
{
    (void)name;
    bench_row *row = &((target *)ctx)->rows->list[i];
    snprintf(row->failure, sizeof row->failure, "%s", status_text());
}

status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows)
{
    target t = {commands, rows};
    return bench_measure(&(bench_measurement){rows->cases->count, rows->repeats, &t, make_command,
                                              take_sample, note_failure, !commands->opts->quiet},
                         place);
}

/* Everything that the command holds. */
typedef struct comparison {
    const options *opts;
    bench_cases cases;
    bench_rows rows;
    bench_child place;
    bench_commands commands;
    json_t *notes, *document;
    char folder[FILE_PATH_BYTES];
} comparison;

static status prepare(comparison *c)
{
    int gpus = 0;
    TRY(device_list_count(c->opts, &gpus));
    TRY(bench_cases_make(c->opts, gpus > 0, &c->cases, c->notes));
    TRY(bench_rows_create(&c->cases, (int)c->opts->bench.repeats, &c->rows));
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &c->place));
    TRY(bench_commands_init(c->opts, gpus > 0, c->place.folder, &c->commands));
    TRY(bench_commands_find(&c->commands));
    TRY(bench_folder_make(c->opts, c->folder)); /* before the hours of measuring */
    c->commands.evaluates = true;
    c->rows.threads = c->commands.threads;
    c->rows.is_cuda = gpus > 0;
    return STATUS_OK;
}

/* If no row has samples, the first failure is what is wrong. */
static status check_measured(comparison *c)
{
    for (int i = 0; i < c->cases.count; i++)
        if (bench_row_samples(&c->rows, i) > 0)
            return STATUS_OK;
    if (bench_child_stopped(&c->place))
        return FAIL(STATUS_TIMEOUT, "stopped before anything was measured");
    return FAIL(STATUS_PEER, "nothing was measured: %s\n  it was: %s", c->rows.list[0].failure,
                c->rows.list[0].command);
}

static status finish(comparison *c)
{
    bool stopped = bench_child_stopped(&c->place);
    TRY(check_measured(c));
    if (stopped)
        report_say(c->document, REPORT_NOTES,
                   "stopped by a signal: the figures are of the runs until then");
    json_object_set_new(c->document, "interrupted", json_boolean(stopped));
    dp_vs_ddp_document(&c->commands, &c->rows, c->notes, c->document);
    dp_vs_ddp_plots(&c->rows, c->document);
    TRY(bench_leave(c->opts, &c->place, c->folder, c->document));
    if (c->opts->json && !c->opts->quiet)
        report_print(c->document, stderr);
    return STATUS_OK;
}

int dp_vs_ddp_command(const options *opts, int argc, char **argv)
{
    comparison c = {.opts = opts, .notes = json_array()};
    c.document = bench_document(opts, "DataParallel beside DistributedDataParallel", argc, argv);
    int code = EXIT_CODE_USAGE;
    status st = prepare(&c);
    if (st == STATUS_OK) {
        bench_say_if_busy(c.document);
        LOG_I("%d cases x %d runs", c.cases.count, c.rows.repeats);
        code = EXIT_CODE_INTERNAL;
        st = dp_vs_ddp_measure(&c.commands, &c.place, &c.rows);
    }
    if (st == STATUS_OK)
        st = finish(&c);
    code = st != STATUS_OK ? exit_code_failed(st, code) : EXIT_SUCCESS;
    if (bench_child_stopped(&c.place)) /* also while plots were drawn */
        code = 128 + c.place.signals.first;
    bench_child_close(&c.place);
    bench_rows_free(&c.rows);
    bench_cases_free(&c.cases);
    json_decref(c.notes);
    json_decref(c.document);
    return code;
}
