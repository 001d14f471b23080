/* Three plots for every model, batch and kind of scaling: speed, where a step goes, traffic. */
#include "app/bench/cases.h"
#include "app/bench/dp_vs_ddp.h"
#include "app/report/plot.h"
#include "app/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96, TEXT_BYTES = 256 };

/* One set of plots. */
typedef struct view {
    const bench_rows *rows;
    const char *model;
    int batch;
    bool weak;
    const char *folder;
    json_t *document;
} view;

static const char *const PHASE_COLOURS[N_PHASES] = {
    [MOMENT_LOAD] = "#b0b0b0",       [MOMENT_BROADCAST] = "#d95f02", [MOMENT_SCATTER] = "#f0a35e",
    [MOMENT_FORWARD] = "#1b6ca8",    [MOMENT_GATHER] = "#e7c08f",    [MOMENT_BACKWARD] = "#6baed6",
    [MOMENT_REDUCE] = "#a63603",     [MOMENT_WAITING] = "#e0e0e0",   [MOMENT_OPTIMIZER] = "#4d9a4d",
    [MOMENT_ACCELERATOR] = "#222222"};

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
    return (bench_summary){.median = bytes / 1048576.0, .low = (double)NAN};
}

static status begin(const view *v, plot_writer *p, const char *title, const char *x, const char *y)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s: %s, %d images per step%s", title, v->model, v->batch,
             v->weak ? " on each device" : ", shared by all devices");
    TRY(plot_open(p, &(plot_labels){.title = text, .x = x, .y = y}));
    plot_set(p, "set grid ytics lt 1 lw 1 lc rgb '#d8d8d8'\nset border 3\nset tics nomirror out\n"
                "set style fill solid 1.0 noborder\nset key outside right\nset yrange [0:*]");
    return STATUS_OK;
}

static void finish(const view *v, plot_writer *p, const char *what, const char *caption)
{
    char name[NAME_BYTES], text[TEXT_BYTES];
    snprintf(name, sizeof name, "dp-vs-ddp-%s-%s-%d-%s", what, v->model, v->batch,
             v->weak ? "weak" : "strong");
    snprintf(text, sizeof text, "%s: %s, %d images per step%s", caption, v->model, v->batch,
             v->weak ? " on each device (weak scaling)"
                     : ", shared by all devices (strong scaling)");
    plot_finish(p, v->document, v->folder, name, text);
}

/* The curve of one mode over the world sizes, if it has points. */
static void add_mode(const view *v, plot_writer *p, bool torch, strategy_kind mode, value_fn *value)
{
    bool begun = false;
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        bench_summary s = value(v->rows, i);
        if (!is_in(v, i) || c->torch != torch || c->mode != mode || !isfinite(s.median))
            continue;
        if (!begun)
            plot_curve(p,
                       "using 1:2:3:4 with yerrorlines lw 2 dt %d pt %d lc rgb '%s' title '%s%s'",
                       torch ? 2 : 1, 5 + 2 * (int)mode, mode_colours[mode], torch ? "torch " : "",
                       strategy_about(mode)->name);
        begun = true;
        plot_point(p, "%d %.6g %.6g %.6g", c->world, s.median, isfinite(s.low) ? s.low : s.median,
                   isfinite(s.low) ? s.high : s.median);
    }
}

/* The world sizes as tics, on an axis that doubles. */
static void set_worlds(const view *v, plot_writer *p)
{
    int largest = 1;
    plot_set(p, "set logscale x 2\nset xtics ()");
    for (int i = 0; i < v->rows->cases->count; i++) {
        int world = v->rows->list[i].c->world;
        if (is_in(v, i))
            plot_set(p, "set xtics add (\"%d\" %d)", world, world);
        largest = is_in(v, i) && world > largest ? world : largest;
    }
    plot_set(p, "set xrange [0.9:%g]", 1.15 * largest);
}

static void plot_modes(const view *v, value_fn *value, const char *title, const char *y,
                       const char *what, const char *caption)
{
    plot_writer p;
    if (begin(v, &p, title, "devices", y) != STATUS_OK)
        return;
    set_worlds(v, &p);
    for (int torch = 0; torch < 2; torch++)
        for (int mode = 0; mode < STRATEGY_COUNT; mode++)
            add_mode(v, &p, torch != 0, (strategy_kind)mode, value);
    finish(v, &p, what, caption);
}

/* What a phase adds to each bar, one bar per row in the order of the table. What is not known has
 * no height; a phase without any height is left out. */
static void add_phase(const view *v, plot_writer *p, moment phase)
{
    double phase_s[N_PHASES];
    bool used = false;
    for (int i = 0; i < v->rows->cases->count && !used; i++) {
        bench_row_phases(v->rows, i, phase_s);
        used = is_in(v, i) && phase_s[phase] > 0;
    }
    if (!used)
        return;
    plot_curve(p, "using 2:xtic(1) lc rgb '%s' title '%s'", PHASE_COLOURS[phase],
               moment_about(phase)->name);
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        bench_row_phases(v->rows, i, phase_s);
        if (is_in(v, i) && isfinite(bench_row_phase_sum(v->rows, i)))
            plot_point(p, "\"%s%s x %d\" %.6g", c->torch ? "torch " : "",
                       strategy_about(c->mode)->name, c->world,
                       isfinite(phase_s[phase]) ? 1e3 * phase_s[phase] : 0);
    }
}

static void plot_phases(const view *v)
{
    plot_writer p;
    if (begin(v, &p, "Where a step goes", NULL,
              "ms per step, warm-up included, rank 0 or the master") != STATUS_OK)
        return;
    plot_set(&p, "set style data histograms\nset style histogram rowstacked\nset boxwidth 0.7\n"
                 "set key outside right invert\nset xtics rotate by -30");
    for (int phase = 0; phase < N_PHASES; phase++)
        add_phase(v, &p, (moment)phase);
    finish(v, &p, "phases", "Where a step goes");
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

void dp_vs_ddp_plots(const bench_rows *rows, const char *folder, json_t *document)
{
    for (int i = 0; i < rows->cases->count; i++)
        for (int weak = 0; weak < 2 && is_first(rows->cases, i); weak++) {
            const bench_case *c = &rows->cases->list[i];
            view v = {rows, c->model, c->batch, weak != 0, folder, document};
            plot_modes(&v, speed_of, "Speed", "images per second", "speed", "Images per second");
            plot_phases(&v);
            plot_modes(&v, traffic_of, "Traffic of the busiest device",
                       "MiB sent and received per step", "traffic", "Bytes on the busiest device");
        }
}
