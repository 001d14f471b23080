/* The figures as JSON, and the tables and sentences of the report. */
#include "app/bench/dp_vs_ddp.h"
#include "app/common/json_value.h"
#include "app/report/report.h"
#include "app/report/table.h"

#include <math.h>
#include <stdio.h>

enum { INTERVAL_BYTES = 96, DIGITS = 5 };

static const double MEBIBYTE = 1048576.0;

/* A median of the row in milliseconds. */
static double ms(const bench_rows *rows, int row, size_t field)
{
    return 1e3 * bench_row_median(rows, row, field);
}

static const char *scaling_of(const bench_case *c)
{
    return c->strong && c->weak ? "both" : c->strong ? "strong" : "weak";
}

/* Images per second: the summary and every sample, null for a repeat without one. */
static json_t *speed_json(const bench_rows *rows, int row)
{
    const bench_row *r = &rows->list[row];
    bench_summary s = bench_row_summary(rows, row, BENCH_FIELD(images_per_s));
    json_t *object = json_object(), *values = json_array(), *outliers = json_array();
    json_object_set_new(object, "n", json_integer(s.n));
    report_set_number(object, "median", s.median, DIGITS);
    report_set_number(object, "low", s.low, DIGITS);
    report_set_number(object, "high", s.high, DIGITS);
    report_set_number(object, "coverage", s.coverage, DIGITS);
    for (int i = 0; i < rows->repeats; i++) {
        double value = r->counts[i] ? r->samples[i].images_per_s : (double)NAN;
        json_array_append_new(values, report_number(value, DIGITS));
        if (r->counts[i] && bench_stats_is_outlier(&s, value))
            json_array_append_new(outliers, report_number(value, DIGITS));
    }
    json_object_set_new(object, "values", values);
    json_object_set_new(object, "outliers", outliers);
    return object;
}

static json_t *phases_json(const bench_rows *rows, int row)
{
    double phase_s[N_PHASES];
    json_t *object = json_object();
    bench_row_phases(rows, row, phase_s);
    for (int p = 0; p < N_PHASES; p++)
        report_set_number(object, moment_about((moment)p)->name, 1e3 * phase_s[p], DIGITS);
    return object;
}

static const struct {
    const char *key;
    size_t field;
} BYTES[] = {{"sent", BENCH_FIELD(sent_bytes)},
             {"received", BENCH_FIELD(received_bytes)},
             {"sent_busiest", BENCH_FIELD(sent_busiest_bytes)},
             {"received_busiest", BENCH_FIELD(received_busiest_bytes)}};
enum { N_BYTES = sizeof BYTES / sizeof BYTES[0] };

static json_t *bytes_json(const bench_rows *rows, int row)
{
    json_t *object = json_object();
    for (size_t i = 0; i < N_BYTES; i++)
        report_set_number(object, BYTES[i].key, bench_row_median(rows, row, BYTES[i].field),
                          DIGITS);
    return object;
}

/* Of the last sample, as it came. */
static json_t *peaks_json(const bench_rows *rows, int row)
{
    const bench_row *r = &rows->list[row];
    json_t *list = json_array();
    for (int i = rows->repeats - 1; i >= 0; i--) {
        for (int d = 0; r->counts[i] && d < r->samples[i].peak_mib_count; d++)
            json_array_append_new(list, report_number(r->samples[i].peak_mib[d], DIGITS));
        if (r->counts[i])
            break;
    }
    return list;
}

static void add_efficiency(const bench_rows *rows, int row, json_t *object)
{
    const bench_case *c = rows->list[row].c;
    double value = bench_row_efficiency(rows, row);
    report_set_number(object, "efficiency_strong", c->strong ? value : (double)NAN, DIGITS);
    report_set_number(object, "efficiency_weak", c->weak ? value : (double)NAN, DIGITS);
}

static json_t *row_json(const bench_rows *rows, int row)
{
    const bench_row *r = &rows->list[row];
    const bench_case *c = r->c;
    char why[BENCH_WHY_BYTES];
    json_t *object = json_object();
    bench_row_why(rows, row, why);
    json_object_set_new(object, "system", json_string(c->torch ? "torch" : "mnist_ddp"));
    json_object_set_new(object, "mode", json_string(strategy_about(c->mode)->name));
    json_object_set_new(object, "world", json_integer(c->world));
    json_object_set_new(object, "model", json_string(c->model));
    json_object_set_new(object, "batch", json_integer(c->batch));
    json_object_set_new(object, "global_batch", json_integer(c->global_batch));
    json_object_set_new(object, "scaling", json_string(scaling_of(c)));
    json_object_set_new(object, "images_per_s", speed_json(rows, row));
    report_set_number(object, "step_ms", ms(rows, row, BENCH_FIELD(step_s)), DIGITS);
    report_set_number(object, "step_ms_with_warmup", ms(rows, row, BENCH_FIELD(whole_step_s)),
                      DIGITS);
    json_object_set_new(object, "phases_ms", phases_json(rows, row));
    report_set_number(object, "phases_share_of_step", bench_row_phase_sum(rows, row), DIGITS);
    report_set_number(object, "comm_total_ms",
                      1e3 * bench_row_part(rows, row, BENCH_FIELD(comm_total_s)), DIGITS);
    report_set_number(object, "comm_exposed_ms",
                      1e3 * bench_row_part(rows, row, BENCH_FIELD(comm_exposed_s)), DIGITS);
    json_object_set_new(object, "bytes_per_step", bytes_json(rows, row));
    json_object_set_new(object, "peak_mib", peaks_json(rows, row));
    add_efficiency(rows, row, object);
    report_set_number(object, "test_acc", bench_row_median(rows, row, BENCH_FIELD(test_acc)),
                      DIGITS);
    report_set_number(object, "last_loss", bench_row_median(rows, row, BENCH_FIELD(last_loss)),
                      DIGITS);
    json_object_set_new(object, "why",
                        bench_row_samples(rows, row) > 0 ? json_string(why) : json_null());
    json_object_set_new(object, "failure",
                        r->failure[0] != '\0' ? json_string(r->failure) : json_null());
    json_object_set_new(object, "command", json_string(r->command));
    return object;
}

/* Heads of the cells that say which row it is, and the cells. */
#define WHICH "mode x devices", "model", "global batch"

static void begin_row(json_t *table, const bench_case *c)
{
    table_row(table);
    table_cell(table, "%s%s x %d", c->torch ? "torch " : "", strategy_about(c->mode)->name,
               c->world);
    table_cell(table, "%s", c->model);
    table_cell(table, "%d", c->global_batch);
}

static void add_speed_row(const bench_rows *rows, int row, json_t *table)
{
    const bench_row *r = &rows->list[row];
    char note[BENCH_FAILURE_BYTES + 64];
    bench_summary s = bench_row_summary(rows, row, BENCH_FIELD(images_per_s));
    begin_row(table, r->c);
    table_cell(table, "%s", scaling_of(r->c));
    if (s.n == 0) {
        snprintf(note, sizeof note, "not measured: %s",
                 r->failure[0] != '\0' ? r->failure : "stopped before its turn");
        table_note(table, note);
        return;
    }
    table_number(table, s.median);
    table_interval(table, s.low, s.high);
    table_number(table, ms(rows, row, BENCH_FIELD(step_s)));
    table_number(table, 100 * bench_row_efficiency(rows, row));
    bench_row_why(rows, row, note);
    table_note(table, note);
}

/* What a rank does itself, and what it says or hears: a table each. */
static const moment WORK[] = {MOMENT_LOAD, MOMENT_FORWARD, MOMENT_BACKWARD, MOMENT_OPTIMIZER,
                              MOMENT_ACCELERATOR};
static const moment TALK[] = {MOMENT_BROADCAST, MOMENT_SCATTER, MOMENT_GATHER, MOMENT_REDUCE,
                              MOMENT_WAITING};
enum { N_WORK = sizeof WORK / sizeof WORK[0], N_TALK = sizeof TALK / sizeof TALK[0] };

static void add_phases(const bench_rows *rows, int row, const moment *phases, int n, json_t *table)
{
    double phase_s[N_PHASES];
    begin_row(table, rows->list[row].c);
    bench_row_phases(rows, row, phase_s);
    for (int i = 0; i < n; i++)
        table_number(table, 1e3 * phase_s[phases[i]]);
}

static void add_work_row(const bench_rows *rows, int row, json_t *table)
{
    add_phases(rows, row, WORK, rows->is_cuda ? N_WORK : N_WORK - 1, table);
    table_number(table, ms(rows, row, BENCH_FIELD(whole_step_s)));
}

static void add_talk_row(const bench_rows *rows, int row, json_t *table)
{
    add_phases(rows, row, TALK, N_TALK, table);
    table_number(table, 1e3 * bench_row_part(rows, row, BENCH_FIELD(comm_total_s)));
}

static void add_traffic_row(const bench_rows *rows, int row, json_t *table)
{
    begin_row(table, rows->list[row].c);
    for (size_t i = 0; i < N_BYTES; i++)
        table_number(table, bench_row_median(rows, row, BYTES[i].field) / MEBIBYTE);
    table_number(table, bench_row_peak(rows, row));
}

static bool has_phases(const bench_rows *rows, int row)
{
    return isfinite(bench_row_phase_sum(rows, row));
}

static bool has_phases_of_host(const bench_rows *rows, int row)
{
    return !rows->is_cuda && has_phases(rows, row);
}

static bool has_phases_of_gpu(const bench_rows *rows, int row)
{
    return rows->is_cuda && has_phases(rows, row);
}

static bool has_traffic(const bench_rows *rows, int row)
{
    return isfinite(bench_row_median(rows, row, BENCH_FIELD(sent_bytes))) ||
           isfinite(bench_row_peak(rows, row));
}

#define WHERE "Where a step goes, warm-up epochs included, ms on rank 0 or the master"

/* One of the document's tables: the rows that have something to say in it. */
static const struct {
    const char *title;
    const char *columns[20];
    bool (*has)(const bench_rows *rows, int row); /* NULL: all */
    void (*add)(const bench_rows *rows, int row, json_t *table);
} TABLES[] = {
    {"Speed, and why",
     {WHICH, "scaling", "images/s", "95 % interval", "step ms", "efficiency %, median of pairs"},
     NULL,
     add_speed_row},
    {WHERE,
     {WHICH, "data", "forward", "backward", "optimizer", "step, warm-up included"},
     has_phases_of_host,
     add_work_row},
    {WHERE,
     {WHICH, "data", "forward", "backward", "optimizer", "accelerator", "step, warm-up included"},
     has_phases_of_gpu,
     add_work_row},
    {"Communication in it, and waiting for others, ms",
     {WHICH, "broadcast", "scatter", "gather", "reduce", "waiting", "all, hidden too"},
     has_phases,
     add_talk_row},
    {"Traffic of a step and memory, MiB",
     {WHICH, "rank 0 sends", "receives", "busiest sends", "receives", "peak of a device"},
     has_traffic,
     add_traffic_row},
};

/* A table without rows is left out. */
static void add_tables(json_t *document, const bench_rows *rows)
{
    for (size_t t = 0; t < sizeof TABLES / sizeof TABLES[0]; t++) {
        json_t *table = NULL;
        for (int i = 0; i < rows->cases->count; i++) {
            if (TABLES[t].has != NULL && !TABLES[t].has(rows, i))
                continue;
            if (table == NULL)
                table = report_table(document, TABLES[t].title, TABLES[t].columns);
            TABLES[t].add(rows, i, table);
        }
    }
}

/* "1.53 times as fast as" or "0.8 times as fast as", with what it rests on. */
static void say_ratio(json_t *document, const bench_rows *rows, int a, int b)
{
    char name[BENCH_CASE_BYTES], other[BENCH_CASE_BYTES], interval[INTERVAL_BYTES] = "";
    bench_summary s = bench_rows_ratio(rows, a, b);
    if (s.n == 0)
        return;
    bench_case_name(rows->list[a].c, name);
    bench_case_name(rows->list[b].c, other);
    if (s.n >= BENCH_STATS_MIN)
        snprintf(interval, sizeof interval, ", %.0f %% interval %.2f to %.2f", 100 * s.coverage,
                 s.low, s.high);
    report_say(document, REPORT_SUMMARY, "%s: %.2f times the images per second of %s (%d pair%s%s)",
               name, s.median, other, s.n, s.n == 1 ? "" : "s",
               interval[0] != '\0' ? interval : ", too few for an interval");
}

/* Ours against PyTorch's, and ddp against the modes that go through a master. */
static void say_ratios(json_t *document, const bench_rows *rows)
{
    for (int i = 0; i < rows->cases->count; i++) {
        const bench_case *c = rows->list[i].c;
        int peer = c->torch ? -1 : bench_cases_find(rows->cases, i, true, c->mode);
        int dp = bench_cases_find(rows->cases, i, c->torch, STRATEGY_DP);
        int ps = bench_cases_find(rows->cases, i, c->torch, STRATEGY_PS);
        bool compares = c->mode == STRATEGY_DDP && c->world > 1;
        if (compares && dp >= 0)
            say_ratio(document, rows, i, dp);
        if (compares && ps >= 0)
            say_ratio(document, rows, i, ps);
        if (peer >= 0)
            say_ratio(document, rows, i, peer);
    }
}

/* What is odd about the rows. */
static void say_notes(json_t *document, const bench_rows *rows, const json_t *notes)
{
    char name[BENCH_CASE_BYTES];
    const json_t *text;
    size_t k;
    json_array_foreach(notes, k, text)
        report_say(document, REPORT_NOTES, "%s", json_string_value(text));
    for (int i = 0; i < rows->cases->count; i++) {
        const bench_row *r = &rows->list[i];
        double sum = bench_row_phase_sum(rows, i);
        bench_summary s = bench_row_summary(rows, i, BENCH_FIELD(images_per_s));
        bench_case_name(r->c, name);
        if (isfinite(sum) && fabs(sum - 1) > 0.05)
            report_say(document, REPORT_NOTES, "%s: its phases add up to %.0f %% of the step", name,
                       100 * sum);
        if (s.n > 0 && r->failure[0] != '\0')
            report_say(document, REPORT_NOTES, "%s: a run does not count: %s", name, r->failure);
        if (s.n > 0 && s.n < rows->repeats)
            report_say(document, REPORT_NOTES, "%s: the median is of %d run%s", name, s.n,
                       s.n == 1 ? "" : "s");
        if (s.outliers > 0)
            report_say(document, REPORT_NOTES,
                       "%s: %d of %d runs are outliers; they stay in the median", name, s.outliers,
                       s.n);
    }
}

static void say_limits(const bench_commands *commands, const bench_rows *rows, json_t *document)
{
    long long warmup = commands->opts->bench.warmup;
    report_say(document, REPORT_LIMITS,
               "dp's replicas are threads of one process without an interpreter's lock: "
               "here dp loses to ddp by its traffic and its master, not by Python's lock");
    if (!rows->is_cuda)
        report_say(document, REPORT_LIMITS,
                   "on the CPU all devices are threads or processes of one machine with "
                   "%d core%s: beyond as many devices nothing can get faster, and what is "
                   "copied between devices goes through the same memory",
                   rows->cores, rows->cores == 1 ? "" : "s");
    report_say(document, REPORT_LIMITS,
               "figures are medians of %d run%s, or as a note says; speed is of the epochs after "
               "%lld warm-up epoch%s of each; phases, traffic and communication are means over all "
               "epochs of a run",
               rows->repeats, rows->repeats == 1 ? "" : "s", warmup, warmup == 1 ? "" : "s");
    report_say(document, REPORT_LIMITS,
               "an interval holds the median of all runs there could be with at least "
               "95 %% probability (order statistics, no distribution assumed); it knows "
               "nothing of other machines, or of this one on another day");
    for (int i = 0; bench_why_rule(i) != NULL; i++)
        report_say(document, REPORT_LIMITS, "rule %d for the sentence below a row: %s", i + 1,
                   bench_why_rule(i));
}

static json_t *settings_json(const bench_commands *commands, const bench_rows *rows)
{
    const options *opts = commands->opts;
    json_t *object = json_object();
    json_object_set_new(object, "repeats", json_integer(rows->repeats));
    json_object_set_new(object, "warmup_epochs", json_integer(opts->bench.warmup));
    json_object_set_new(object, "steps_per_epoch", json_integer(opts->bench.steps));
    json_object_set_new(object, "threads", json_integer(rows->threads));
    json_object_set_new(object, "device", json_string(opts->device));
    json_object_set_new(object, "backend", json_string(opts->backend));
    json_object_set_new(object, "optimizer", json_string(opts->optimizer));
    report_set_number(object, "lr", commands->lr, DIGITS);
    json_object_set_new(object, "seed", json_integer(opts->seed));
    json_object_set_new(object, "data",
                        commands->is_mnist ? json_value_text(commands->data)
                                           : json_string("embedded digits, not MNIST"));
    return object;
}

void dp_vs_ddp_document(const bench_commands *commands, const bench_rows *rows, const json_t *notes,
                        json_t *document)
{
    json_t *list = json_array();
    for (int i = 0; i < rows->cases->count; i++)
        json_array_append_new(list, row_json(rows, i));
    json_object_set_new(document, "settings", settings_json(commands, rows));
    json_object_set_new(document, "rows", list);
    add_tables(document, rows);
    say_ratios(document, rows);
    say_notes(document, rows, notes);
    say_limits(commands, rows, document);
}
