#include "app/report/run_page.h"

#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "app/report/report.h"
#include "app/report/trace_picture.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RESULT_BYTES = 64 << 20,
    LINES_BYTES = 512 << 20,
    MAX_POINTS = 400,
    DIGITS = 10,
    NUMBER_BYTES = 32,
};

/* The folder's last part that is a name. */
static void name_run(const char *folder, char *out, size_t size_bytes)
{
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    snprintf(out, size_bytes, "%.*s", (int)(end - begin), folder + begin);
}

/* *out stays NULL if there is no such file. */
static status read_result(const char *folder, const char *name, json_t **out)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, name, path));
    return file_exists(path) ? json_text_read(path, RESULT_BYTES, out) : STATUS_OK;
}

/* Passes over lines that are no object, with one warning; the last one may be torn. */
static status parse_lines(const char *text, const char *path, json_t *out)
{
    const char *end;
    int64_t n = 0, n_bad = 0, first_bad = 0;
    for (const char *line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *entry = NULL;
        status st = json_text_value(line, (size_t)(end - line), path, &entry);
        if (st == STATUS_NO_MEMORY)
            return st;
        n++;
        if (!json_is_object(entry)) {
            json_decref(entry);
            if (n_bad++ == 0)
                first_bad = n;
        } else if (json_array_append_new(out, entry) != 0) {
            return FAIL(STATUS_NO_MEMORY, "%s: %zu lines", path, json_array_size(out));
        }
    }
    if (n_bad > 0)
        LOG_W("%s: lines that cannot be read and are not shown: %" PRId64
              ", the first is line %" PRId64,
              path, n_bad, first_bad);
    return STATUS_OK;
}

/* As read_result. */
static status read_lines(const char *folder, json_t **out)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t size_bytes = 0;
    TRY(file_join(folder, RUN_FILE_METRICS, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(file_read(path, LINES_BYTES, &text, &size_bytes));
    *out = json_array();
    status st = parse_lines(text, path, *out);
    free(text);
    return st;
}

static status no_run(const char *folder)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, RUN_FILE_CONFIG, path));
    if (faccessat(AT_FDCWD, path, F_OK, AT_EACCESS) != 0 && errno == EACCES)
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    return FAIL(STATUS_INVALID,
                "%s: not the folder of a run: no " RUN_FILE_CONFIG ", " RUN_FILE_METRICS
                " or " RUN_FILE_RESULT,
                folder);
}

status run_data_read(const char *folder, run_data *out)
{
    run_data run = {.folder = folder};
    run_config config = {0};
    name_run(folder, run.name, sizeof run.name);
    status st = run_config_read(folder, &config);
    run.config = config.document;
    if (st == STATUS_OK)
        st = read_result(folder, RUN_FILE_RESULT, &run.result);
    if (st == STATUS_OK)
        st = read_result(folder, RUN_FILE_EVAL, &run.eval);
    if (st == STATUS_OK)
        st = read_lines(folder, &run.lines);
    if (st == STATUS_OK && run.config == NULL && run.result == NULL && run.lines == NULL)
        st = no_run(folder);
    if (st == STATUS_OK)
        *out = run;
    else
        run_data_close(&run);
    return st;
}

void run_data_close(run_data *run)
{
    json_decref(run->config);
    json_decref(run->result);
    json_decref(run->eval);
    json_decref(run->lines);
    *run = (run_data){0};
}

/* The number under `key`; NAN if there is none. */
static double number_in(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* The curves of a page; app/report/page/runs.js draws them. */
static const struct {
    const char *name;
    const char *event; /* whose lines it draws ("step"); NULL: all that have a number there */
    const char *key;
} CURVES[] = {
    {"loss", "step", "loss"},
    {"train_loss", "epoch", "train_loss"},
    {"val_loss", NULL, "val_loss"},
    {"test_loss", NULL, "test_loss"},
    {"val_acc", NULL, "val_acc"},
    {"test_acc", NULL, "test_acc"},
    {"lr", "step", "lr"},
    {"images_per_s", "step", "images_per_s"},
    {"epoch_images_per_s", "epoch", "images_per_s"},
};

typedef struct page {
    run_data runs[RUN_PAGE_MAX];
    int n;
} page;

/* The last line that has a value under `key`; NULL. With `best`, the line with the greatest one. */
static const json_t *find_line(const run_data *run, const char *key, bool best)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(run->lines); i++) {
        const json_t *line = json_array_get(run->lines, i);
        double value = number_in(line, key);
        if (isfinite(value) && (!best || found == NULL || value > number_in(found, key)))
            found = line;
    }
    return found;
}

/* Of the run's fastest epoch, in any of its sessions. A run without such lines has the figure of
 * its result, which is that of the last session. */
static double best_rate(const run_data *run)
{
    double best = (double)NAN;
    for (size_t i = 0; i < json_array_size(run->lines); i++) {
        const json_t *line = json_array_get(run->lines, i);
        const char *event = json_string_value(json_object_get(line, "event"));
        if (event != NULL && strcmp(event, "epoch") == 0)
            best = fmax(best, number_in(line, "images_per_s"));
    }
    return isfinite(best) ? best : number_in(run->result, "images_per_s");
}

/* Whether the result is that of the run's last start: else its last session is under way, or was
 * interrupted. */
static bool has_ended(const run_data *run)
{
    const char *of_result = json_string_value(json_object_get(run->result, "date"));
    const char *of_start = json_string_value(json_object_get(run->config, "date"));
    return run->result != NULL &&
           (of_result == NULL || of_start == NULL || strcmp(of_result, of_start) == 0);
}

static void number_cell(json_t *table, const char *fmt, double value)
{
    char text[NUMBER_BYTES];
    snprintf(text, sizeof text, fmt, value);
    table_cell(table, "%s", isfinite(value) ? text : "\u2013");
}

/* What a run has come to. */
static void add_outcomes(const run_data *run, bool validated, json_t *table)
{
    const json_t *last = find_line(run, "test_acc", false),
                 *best = find_line(run, "test_acc", true);
    const json_t *end = json_array_get(run->lines, json_array_size(run->lines) - 1);
    double accuracy = number_in(last, "test_acc");
    table_row(table);
    table_cell(table, "%s", run->name);
    number_cell(table, "%.2f %%",
                100 * (isfinite(accuracy) ? accuracy : number_in(run->result, "test_acc")));
    number_cell(table, "%.2f %%", 100 * number_in(best, "test_acc"));
    number_cell(table, "%.4f", number_in(last, "test_loss"));
    number_cell(table, "%.4f", number_in(find_line(run, "train_loss", false), "train_loss"));
    number_cell(table, "%.0f", best_rate(run));
    number_cell(table, "%.0f", number_in(end, "step"));
    number_cell(table, "%.1f", number_in(end, "time_s"));
    if (validated)
        number_cell(table, "%.2f %%", 100 * number_in(find_line(run, "val_acc", true), "val_acc"));
}

/* The last column only if a run has validation images. */
static json_t *make_outcomes(const page *p)
{
    bool validated = false, ended = true;
    for (int run = 0; run < p->n; run++) {
        validated = validated || find_line(&p->runs[run], "val_acc", false) != NULL;
        ended = ended && has_ended(&p->runs[run]);
    }
    json_t *table = table_create(
        "", (const char *const[]){"run", "test accuracy", "best test accuracy", "test loss",
                                  "training loss, last epoch", "images/s, best epoch",
                                  ended ? "steps" : "last logged step", "seconds",
                                  validated ? "best validation accuracy" : NULL, NULL});
    for (int run = 0; run < p->n; run++)
        add_outcomes(&p->runs[run], validated, table);
    return table;
}

static bool is_point(const json_t *line, const char *event, const char *key)
{
    if (event == NULL)
        return json_is_number(json_object_get(line, key));
    const char *name = json_string_value(json_object_get(line, "event"));
    return name != NULL && strcmp(name, event) == 0;
}

/* The points of a curve, [step, seconds, value], at most MAX_POINTS: each is the last of `every` in
 * the file, with the mean of their values. */
static json_t *make_curve(const run_data *run, const char *event, const char *key)
{
    const json_t *line;
    json_t *points = json_array();
    size_t i, all = 0, found = 0;
    double mean = 0;
    json_array_foreach(run->lines, i, line) all += is_point(line, event, key);
    size_t every = all / MAX_POINTS + 1;
    json_array_foreach(run->lines, i, line)
    {
        if (!is_point(line, event, key))
            continue;
        size_t nth = found++ % every + 1; /* within its point */
        double value = number_in(line, key);
        mean = nth > 1 ? mean + (value - mean) / (double)nth : value;
        if (nth == every || found == all)
            json_array_append_new(
                points, json_pack("[o, o, o]", report_number(number_in(line, "step"), DIGITS),
                                  report_number(number_in(line, "time_s"), DIGITS),
                                  report_number(mean, DIGITS)));
    }
    return json_pack("{s:I, s:o}", "every", (json_int_t)every, "points", points);
}

/* Of a run with --trace: a few of its steps. A page without it is still a page. */
static json_t *read_trace(const run_data *run)
{
    char path[FILE_PATH_BYTES];
    json_t *trace = NULL;
    status st = file_join(run->folder, RUN_FILE_TRACE, path);
    if (st == STATUS_OK && file_exists(path))
        st = trace_picture_read(path, &trace);
    if (st != STATUS_OK)
        LOG_W("the report has no picture of the trace: %s", status_text());
    return trace;
}

static status add_run(const page *p, int number, json_t *list)
{
    const run_data *run = &p->runs[number];
    const json_t *last = json_array_get(run->lines, json_array_size(run->lines) - 1);
    char log[FILE_PATH_BYTES];
    json_t *curves = json_object();
    bool has_log = p->n == 1 && file_join(run->folder, RUN_FILE_LOG, log) == STATUS_OK &&
                   file_exists(log); /* the page of one run lies beside it */
    for (size_t i = 0; i < sizeof CURVES / sizeof CURVES[0]; i++)
        json_object_set_new(curves, CURVES[i].name,
                            make_curve(run, CURVES[i].event, CURVES[i].key));
    json_t *object = json_pack(
        "{s:o, s:o, s:b, s:O?, s:O?, s:O?, s:o, s:o, s:o*}", "name", json_value_text(run->name),
        "folder", json_value_text(run->folder), "log", has_log, "config", run->config, "result",
        run->result, "eval", run->eval, "last_step", report_number(number_in(last, "step"), DIGITS),
        "curves", curves, "trace", p->n == 1 ? read_trace(run) : NULL);
    return json_array_append_new(list, object) == 0 ? STATUS_OK
                                                    : FAIL(STATUS_NO_MEMORY, "the data of a page");
}

static void print_runs(const json_t *data, FILE *out)
{
    table_print(json_object_get(data, "outcomes"), out);
}

static status write_runs(const page *p, const char *path)
{
    json_t *list = json_array();
    json_t *title = p->n > 1 ? json_string("Runs side by side") : json_value_text(p->runs[0].name);
    json_t *data = json_pack("{s:s, s:o, s:o, s:o}", "kind", "runs", "title", title, "runs", list,
                             "outcomes", make_outcomes(p));
    status st = STATUS_OK;
    for (int run = 0; run < p->n && st == STATUS_OK; run++)
        st = add_run(p, run, list);
    if (st == STATUS_OK)
        st = page_write(path, data, print_runs);
    json_decref(data);
    return st;
}

status run_page_write(const char *path, const char *const *folders, int n)
{
    page p = {0};
    status st = STATUS_OK;
    if (n > RUN_PAGE_MAX)
        return FAIL(STATUS_INVALID, "%d runs: one page shows at most %d", n, RUN_PAGE_MAX);
    for (; p.n < n && st == STATUS_OK; p.n += st == STATUS_OK)
        st = run_data_read(folders[p.n], &p.runs[p.n]);
    if (st == STATUS_OK)
        st = write_runs(&p, path);
    for (int run = 0; run < p.n; run++)
        run_data_close(&p.runs[run]);
    return st;
}

/* Those that are named, else the newest. */
static status write_named(const options *opts, char path[FILE_PATH_BYTES])
{
    char newest[FILE_PATH_BYTES];
    const char *const found_run = newest, *const *runs = opts->n_runs > 0 ? opts->runs : &found_run;
    bool found = opts->n_runs > 0;
    if (!found)
        TRY(runs_folder_newest(RUN_FILE_CONFIG, newest, &found));
    if (!found)
        return FAIL(STATUS_INVALID, "no folder in ./runs has a run: name the folder of one, or of "
                                    "several: mnist_ddp report RUN");
    if (opts->n_runs > 1)
        snprintf(path, FILE_PATH_BYTES, "%s", RUN_FILE_REPORT);
    else
        TRY(file_join(runs[0], RUN_FILE_REPORT, path));
    return run_page_write(path, runs, opts->n_runs > 0 ? opts->n_runs : 1);
}

int report_command(const options *opts)
{
    char path[FILE_PATH_BYTES];
    status st = write_named(opts, path);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_CHECKPOINT);
    char shown[FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, path, shown, sizeof shown);
    puts(shown);
    return EXIT_SUCCESS;
}
