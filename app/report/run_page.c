#include "app/report/run_page.h"

#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "app/report/page.h"
#include "app/report/report.h"
#include "app/report/run_data.h"
#include "app/report/table.h"
#include "app/report/trace_picture.h"
#include "base/file.h"
#include "base/log.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POINTS = 400, DIGITS = 10, NUMBER_BYTES = 32 };

/* The curves of a page; its charts are in app/report/page/main.js. */
static const struct {
    const char *name, *event, *key; /* as run_data_curve takes them */
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
        double value = run_data_number(line, key);
        if (isfinite(value) && (!best || found == NULL || value > run_data_number(found, key)))
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
            best = fmax(best, run_data_number(line, "images_per_s"));
    }
    return isfinite(best) ? best : run_data_number(run->result, "images_per_s");
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

static void say(json_t *table, const char *fmt, double value)
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
    double accuracy = run_data_number(last, "test_acc");
    table_row(table);
    table_cell(table, "%s", run->name);
    say(table, "%.2f %%",
        100 * (isfinite(accuracy) ? accuracy : run_data_number(run->result, "test_acc")));
    say(table, "%.2f %%", 100 * run_data_number(best, "test_acc"));
    say(table, "%.4f", run_data_number(last, "test_loss"));
    say(table, "%.4f", run_data_number(find_line(run, "train_loss", false), "train_loss"));
    say(table, "%.0f", best_rate(run));
    say(table, "%.0f", run_data_number(end, "step"));
    say(table, "%.1f", run_data_number(end, "time_s"));
    if (validated)
        say(table, "%.2f %%", 100 * run_data_number(find_line(run, "val_acc", true), "val_acc"));
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

/* Each point as [step, seconds, value]. */
static status add_curve(const run_data *run, size_t i, json_t *curves)
{
    run_curve c;
    json_t *points = json_array();
    status st = run_data_curve(run, CURVES[i].event, CURVES[i].key, MAX_POINTS, &c);
    for (int k = 0; st == STATUS_OK && k < c.n; k++)
        json_array_append_new(points, json_pack("[o, o, o]", report_number(c.x[k], DIGITS),
                                                report_number(c.time_s[k], DIGITS),
                                                report_number(c.y[k], DIGITS)));
    if (st == STATUS_OK)
        free(c.x);
    json_object_set_new(curves, CURVES[i].name,
                        json_pack("{s:i, s:o}", "every", c.every, "points", points));
    return st;
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
    status st = STATUS_OK;
    for (size_t i = 0; i < sizeof CURVES / sizeof CURVES[0] && st == STATUS_OK; i++)
        st = add_curve(run, i, curves);
    json_t *object =
        json_pack("{s:o, s:o, s:b, s:O?, s:O?, s:O?, s:o, s:o, s:o*}", "name",
                  json_value_text(run->name), "folder", json_value_text(run->folder), "log",
                  has_log, "config", run->config, "result", run->result, "eval", run->eval,
                  "last_step", report_number(run_data_number(last, "step"), DIGITS), "curves",
                  curves, "trace", p->n == 1 ? read_trace(run) : NULL);
    if (st == STATUS_OK && object == NULL)
        st = FAIL(STATUS_NO_MEMORY, "the data of a page");
    json_array_append_new(list, object);
    return st;
}

static void print_runs(const json_t *data, FILE *out)
{
    table_print(json_object_get(data, "outcomes"), out);
}

static status write_page(const page *p, const char *path)
{
    json_t *list = json_array();
    json_t *title = p->n > 1 ? json_string("Runs side by side") : json_value_text(p->runs[0].name);
    json_t *data = json_pack("{s:s, s:o, s:o, s:o}", "kind", "runs", "title", title, "runs", list,
                             "outcomes", make_outcomes(p));
    status st = STATUS_OK;
    for (int run = 0; run < p->n && st == STATUS_OK; run++)
        st = add_run(p, run, list);
    if (st == STATUS_OK)
        st = page_save(path, data, print_runs);
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
        st = write_page(&p, path);
    for (int run = 0; run < p.n; run++)
        run_data_close(&p.runs[run]);
    return st;
}
