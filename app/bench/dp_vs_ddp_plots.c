/* Three plots for every model, batch and kind of scaling: speed, where a step goes, traffic. */
#include "app/bench/cases.h"
#include "app/bench/dp_vs_ddp.h"
#include "app/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96, TEXT_BYTES = 256, DIGITS = 6 };

/* One set of plots. */
typedef struct view {
    const bench_rows *rows;
    const char *model;
    int batch;
    bool weak;
    json_t *document;
} view;

static bool is_in(const view *v, int row)
{
    const bench_case *c = v->rows->list[row].c;
    return strcmp(c->model, v->model) == 0 && c->batch == v->batch &&
           (v->weak ? c->weak : c->strong) && bench_row_samples(v->rows, row) > 0;
}

/* A value of a row with the ends of its interval; all NAN if it is not known. */
typedef bench_summary value_fn(const bench_rows *rows, int row);

static bench_summary speed_of(const bench_rows *rows, int row)
{
    return bench_row_summary(rows, row, BENCH_FIELD(images_per_s));
}

static bench_summary traffic_of(const bench_rows *rows, int row)
{
    double bytes = bench_row_median(rows, row, BENCH_FIELD(sent_busiest_bytes)) +
                   bench_row_median(rows, row, BENCH_FIELD(received_busiest_bytes));
    return (bench_summary){.median = bytes / 1048576.0, .low = (double)NAN, .high = (double)NAN};
}

static json_t *new_plot(const view *v, const char *what, const char *title, const char *y)
{
    char name[NAME_BYTES], text[TEXT_BYTES];
    snprintf(name, sizeof name, "dp-vs-ddp-%s-%s-%d-%s", what, v->model, v->batch,
             v->weak ? "weak" : "strong");
    snprintf(text, sizeof text, "%s: %s, %d images per step%s", title, v->model, v->batch,
             v->weak ? " on each device (weak scaling)"
                     : ", shared by all devices (strong scaling)");
    json_t *plot = report_plot(v->document, name, text);
    json_object_set_new(plot, "y", json_string(y));
    return plot;
}

/* The curve of one mode over the world sizes, if it has points. */
static void add_mode(const view *v, json_t *plot, bool torch, strategy_kind mode, value_fn *value)
{
    char name[NAME_BYTES];
    json_t *series = NULL;
    snprintf(name, sizeof name, "%s%s", torch ? "torch " : "", strategy_about(mode)->name);
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        bench_summary s = value(v->rows, i);
        if (!is_in(v, i) || c->torch != torch || c->mode != mode || !isfinite(s.median))
            continue;
        if (series == NULL) {
            series = report_series(plot, name);
            json_object_set_new(series, "colour", json_integer((json_int_t)mode));
            json_object_set_new(series, "dashed", json_boolean(torch));
        }
        json_array_append_new(json_object_get(series, "points"),
                              json_pack("[i, o, o, o]", c->world, report_number(s.median, DIGITS),
                                        report_number(s.low, DIGITS),
                                        report_number(s.high, DIGITS)));
    }
}

static void plot_modes(const view *v, value_fn *value, const char *what, const char *title,
                       const char *y)
{
    json_t *plot = new_plot(v, what, title, y);
    json_object_set_new(plot, "x", json_string("devices"));
    json_object_set_new(plot, "x_axis", json_string("log2"));
    for (int torch = 0; torch < 2; torch++)
        for (int mode = 0; mode < STRATEGY_COUNT; mode++)
            add_mode(v, plot, torch != 0, (strategy_kind)mode, value);
}

/* What a phase adds to each bar. What is not known has no height; a phase without any height is
 * left out. */
static void add_phase(const view *v, json_t *plot, moment phase)
{
    double phase_s[N_PHASES];
    json_t *points = json_array();
    bool used = false;
    for (int i = 0; i < v->rows->cases->count; i++) {
        if (!is_in(v, i) || !isfinite(bench_row_phase_sum(v->rows, i)))
            continue;
        bench_row_phases(v->rows, i, phase_s);
        used = used || phase_s[phase] > 0;
        json_array_append_new(points, report_number(1e3 * phase_s[phase], DIGITS));
    }
    if (used)
        json_object_set(report_series(plot, moment_about(phase)->name), "points", points);
    json_decref(points);
}

/* One bar per row, in the order of the table. */
static void plot_phases(const view *v)
{
    json_t *labels = json_array();
    json_t *plot = new_plot(v, "phases", "Where a step goes",
                            "ms per step, warm-up included, rank 0 or the master");
    json_object_set_new(plot, "labels", labels);
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        if (is_in(v, i) && isfinite(bench_row_phase_sum(v->rows, i)))
            json_array_append_new(labels, json_sprintf("%s%s x %d", c->torch ? "torch " : "",
                                                       strategy_about(c->mode)->name, c->world));
    }
    for (int phase = 0; phase < N_PHASES; phase++)
        add_phase(v, plot, (moment)phase);
}

/* Is this the first row of its model and batch? */
static bool is_first(const bench_cases *cases, int i)
{
    for (int k = 0; k < i; k++)
        if (cases->list[k].batch == cases->list[i].batch &&
            strcmp(cases->list[k].model, cases->list[i].model) == 0)
            return false;
    return true;
}

static bool has_rows(const view *v)
{
    for (int i = 0; i < v->rows->cases->count; i++)
        if (is_in(v, i))
            return true;
    return false;
}

void dp_vs_ddp_plots(const bench_rows *rows, json_t *document)
{
    for (int i = 0; i < rows->cases->count; i++)
        for (int weak = 0; weak < 2 && is_first(rows->cases, i); weak++) {
            const bench_case *c = &rows->cases->list[i];
            view v = {rows, c->model, c->batch, weak != 0, document};
            if (!has_rows(&v))
                continue;
            plot_modes(&v, speed_of, "speed", "Images per second", "images per second");
            plot_phases(&v);
            plot_modes(&v, traffic_of, "traffic", "Bytes on the busiest device",
                       "MiB sent and received per step");
        }
}
