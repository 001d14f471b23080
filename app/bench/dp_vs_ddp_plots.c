/* Three kinds of plots for every model and batch: speed, where a step goes, traffic. */
#include "app/bench/bench_document.h"
#include "app/bench/bench_plot.h"
#include "app/bench/dp_vs_ddp.h"
#include "base/text_stream.h"
#include "dist/plain_message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Told apart without colours too: points and patterns differ. */
static const char *const COLOURS[BENCH_MODES] = {[BENCH_SINGLE] = "#555555",
                                                 [BENCH_DP] = "#d95f02",
                                                 [BENCH_DDP] = "#1b6ca8",
                                                 [BENCH_PS] = "#7a4fa3"};
static const char *const PHASE_COLOURS[BENCH_PHASES] = {
    [BENCH_DATA] = "#b0b0b0",       [BENCH_BROADCAST] = "#d95f02", [BENCH_SCATTER] = "#f0a35e",
    [BENCH_FORWARD] = "#1b6ca8",    [BENCH_GATHER] = "#e7c08f",    [BENCH_BACKWARD] = "#6baed6",
    [BENCH_REDUCE] = "#a63603",     [BENCH_WAITING] = "#e0e0e0",   [BENCH_OPTIMIZER] = "#4d9a4d",
    [BENCH_ACCELERATOR] = "#222222"};

static bool is_in(const view *v, int row)
{
    const bench_case *c = v->rows->list[row].c;
    return strcmp(c->model, v->model) == 0 && c->batch == v->batch &&
           (v->weak ? c->weak : c->strong) && bench_row_samples(v->rows, row) > 0;
}

static bool is_line(const view *v, int row, bool torch, bench_mode mode)
{
    const bench_case *c = v->rows->list[row].c;
    return is_in(v, row) && c->torch == torch && c->mode == mode;
}

static int points(const view *v, bool torch, bench_mode mode)
{
    int n = 0;
    for (int i = 0; i < v->rows->cases->count; i++)
        n += is_line(v, i, torch, mode);
    return n;
}

static double traffic_of(const bench_rows *rows, int row)
{
    return (bench_row_median(rows, row, BENCH_FIELD(sent_busiest_bytes)) +
            bench_row_median(rows, row, BENCH_FIELD(received_busiest_bytes))) /
           1048576.0;
}

/* Draws a finished script, and names the plot in the document. */
static void draw(const view *v, const char *what, const char *caption, const char *script)
{
    char name[NAME_BYTES], text[TEXT_BYTES];
    snprintf(name, sizeof name, "dp-vs-ddp-%s-%s-%d-%s", what, v->model, v->batch,
             v->weak ? "weak" : "strong");
    snprintf(text, sizeof text, "%s: %s, %d images per step%s", caption, v->model, v->batch,
             v->weak ? " on each device (weak scaling)"
                     : ", shared by all devices (strong scaling)");
    if (bench_plot_draw(v->folder, name, script) == STATUS_OK)
        bench_document_plot(v->document, name, text);
    else {
        plain_message(text, sizeof text);
        bench_document_say(v->document, BENCH_NOTES, "plot %s: %s", name, text);
    }
}

static void begin(const view *v, FILE *out, const char *title)
{
    fprintf(out,
            "set title \"%s: %s, %d images per step%s\"\n"
            "set grid ytics lt 1 lw 1 lc rgb '#d8d8d8'\nset border 3\nset tics nomirror out\n"
            "set style fill solid 1.0 noborder\n",
            title, v->model, v->batch, v->weak ? " on each device" : ", shared by all devices");
}

/* The data of one line: world, value, low, high. */
static void write_line(const view *v, FILE *out, bool torch, bench_mode mode, bool traffic)
{
    fprintf(out, "$%s%s << EOD\n", torch ? "torch_" : "", bench_mode_name(mode));
    for (int i = 0; i < v->rows->cases->count; i++) {
        if (!is_line(v, i, torch, mode))
            continue;
        bench_summary s = bench_row_summary(v->rows, i, BENCH_FIELD(images_per_s));
        double value = traffic ? traffic_of(v->rows, i) : s.median;
        bool whiskers = !traffic && isfinite(s.low);
        if (isfinite(value))
            fprintf(out, "%d %.6g %.6g %.6g\n", v->rows->list[i].c->world, value,
                    whiskers ? s.low : value, whiskers ? s.high : value);
    }
    fputs("EOD\n", out);
}

/* The world sizes as tics, on an axis that doubles. */
static void write_worlds(const view *v, FILE *out)
{
    fputs("set logscale x 2\nset xtics (", out);
    int written = 0, largest = 1;
    for (int i = 0; i < v->rows->cases->count; i++) {
        int world = v->rows->list[i].c->world;
        if (is_in(v, i))
            fprintf(out, "%s\"%d\" %d", written++ > 0 ? ", " : "", world, world);
        largest = is_in(v, i) && world > largest ? world : largest;
    }
    fprintf(out, ")\nset xrange [0.9:%g]\nset yrange [0:*]\nset key outside right\n",
            1.15 * largest);
}

static void write_lines(const view *v, FILE *out)
{
    const char *before = "plot ";
    for (int torch = 0; torch < 2; torch++)
        for (int m = 0; m < BENCH_MODES; m++) {
            const char *name = bench_mode_name((bench_mode)m), *prefix = torch ? "torch_" : "";
            if (points(v, torch != 0, (bench_mode)m) == 0)
                continue;
            fprintf(out,
                    "%s$%s%s using 1:2:3:4 with yerrorlines lw 2 dt %d pt %d lc rgb '%s' "
                    "title \"%s%s\"",
                    before, prefix, name, torch ? 2 : 1, 5 + 2 * m, COLOURS[m],
                    torch ? "torch " : "", name);
            before = ", \\\n     ";
        }
    fputc('\n', out);
}

static void plot_lines(const view *v, bool traffic)
{
    char *script = NULL;
    int known = 0;
    text_stream text;
    if (text_stream_open(&text) != STATUS_OK)
        return;
    FILE *out = text.file;
    begin(v, out, traffic ? "Traffic of the busiest device" : "Speed");
    for (int torch = 0; torch < 2; torch++)
        for (int m = 0; m < BENCH_MODES; m++)
            if (points(v, torch != 0, (bench_mode)m) > 0)
                write_line(v, out, torch != 0, (bench_mode)m, traffic);
    for (int i = 0; i < v->rows->cases->count; i++)
        known += is_in(v, i) && (!traffic || isfinite(traffic_of(v->rows, i)));
    write_worlds(v, out);
    fprintf(out, "set xlabel \"devices\"\nset ylabel \"%s\"\n",
            traffic ? "MiB sent and received per step" : "images per second");
    write_lines(v, out);
    if (text_stream_close(&text, &script, NULL) == STATUS_OK && known > 0)
        draw(v, traffic ? "traffic" : "speed",
             traffic ? "Bytes on the busiest device" : "Images per second", script);
    free(script);
}

/* One bar per row, in the order of the table; a stack of phases each. */
static int write_bars(const view *v, FILE *out)
{
    int bars = 0;
    fputs("$bars << EOD\n", out);
    for (int i = 0; i < v->rows->cases->count; i++) {
        const bench_case *c = v->rows->list[i].c;
        if (!is_in(v, i) || !isfinite(bench_row_phase_sum(v->rows, i)))
            continue;
        fprintf(out, "\"%s%s x %d\"", c->torch ? "torch " : "", bench_mode_name(c->mode), c->world);
        double phase_s[BENCH_PHASES];
        bench_row_phases(v->rows, i, phase_s);
        for (int p = 0; p < BENCH_PHASES; p++) /* what is not known: a bar of no height */
            fprintf(out, " %.6g", isfinite(phase_s[p]) ? 1e3 * phase_s[p] : 0);
        fputc('\n', out);
        bars++;
    }
    fputs("EOD\n", out);
    return bars;
}

static bool is_used(const view *v, int phase)
{
    double phase_s[BENCH_PHASES];
    for (int i = 0; i < v->rows->cases->count; i++) {
        bench_row_phases(v->rows, i, phase_s);
        if (is_in(v, i) && phase_s[phase] > 0)
            return true;
    }
    return false;
}

static void plot_phases(const view *v)
{
    char *script = NULL;
    text_stream text;
    if (text_stream_open(&text) != STATUS_OK)
        return;
    FILE *out = text.file;
    begin(v, out, "Where a step goes");
    int bars = write_bars(v, out);
    fputs("set style data histograms\nset style histogram rowstacked\nset boxwidth 0.7\n"
          "set key outside right invert\nset yrange [0:*]\nset xtics rotate by -30\n"
          "set ylabel \"ms per step, rank 0 or the master\"\n",
          out);
    const char *before = "plot ";
    for (int p = 0; p < BENCH_PHASES; p++) {
        if (!is_used(v, p))
            continue;
        fprintf(out, "%s$bars using %d:xtic(1) lc rgb '%s' title \"%s\"", before, p + 2,
                PHASE_COLOURS[p], bench_phase_name((bench_phase)p));
        before = ", \\\n     ";
    }
    fputc('\n', out);
    if (text_stream_close(&text, &script, NULL) == STATUS_OK && bars > 0)
        draw(v, "phases", "Where a step goes", script);
    free(script);
}

static void plot_view(const view *v)
{
    int n = 0;
    for (int i = 0; i < v->rows->cases->count; i++)
        n += is_in(v, i);
    if (n == 0)
        return;
    plot_lines(v, false);
    plot_phases(v);
    plot_lines(v, true);
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
    if (!bench_plot_is_possible()) {
        bench_document_say(document, BENCH_NOTES,
                           "no plots: gnuplot is not installed (Debian: apt-get install "
                           "gnuplot-nox)");
        return;
    }
    for (int i = 0; i < rows->cases->count; i++)
        for (int weak = 0; weak < 2 && is_first(rows->cases, i); weak++)
            plot_view(&(view){rows, rows->cases->list[i].model, rows->cases->list[i].batch,
                              weak != 0, folder, document});
}
