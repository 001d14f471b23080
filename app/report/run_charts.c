#include "app/report/run_charts.h"

#include "app/report/chart.h"
#include "app/report/html.h"

#include <stdlib.h>

enum { MAX_POINTS = 400, MAX_CURVES = 4, MAX_RUNS = CHART_COLOURS, MAX_MARKS = 64 };

/* One curve of a chart, of each run. */
typedef struct curve_row {
    const char *event, *key, *name; /* as run_data_curve; key NULL: the list has ended */
    chart_form form;
    int colour; /* if there is one run: several have their own */
} curve_row;

typedef struct chart_row {
    const char *title;
    chart_axis y_axis;
    curve_row curves[MAX_CURVES];
} chart_row;

static const chart_row CHARTS[] = {
    {"Loss",
     CHART_LOG,
     {{"step", "loss", "training, rank 0's batches", CHART_THIN, 0},
      {"epoch", "train_loss", "training, mean of the epoch", CHART_DASHED, 0},
      {NULL, "val_loss", "validation", CHART_DOTS, 2},
      {NULL, "test_loss", "test", CHART_DOTS, 1}}},
    {"Accuracy",
     CHART_PERCENT,
     {{NULL, "val_acc", "validation", CHART_DOTS, 2}, {NULL, "test_acc", "test", CHART_DOTS, 1}}},
    {"Learning rate", CHART_LINEAR, {{"step", "lr", "learning rate", CHART_LINE, 2}}},
    {"Images per second",
     CHART_LINEAR,
     {{"step", "images_per_s", "since the last logged step", CHART_THIN, 3},
      {"epoch", "images_per_s", "of the epoch", CHART_DOTS, 3}}},
};
enum { N_CHARTS = sizeof CHARTS / sizeof CHARTS[0] };

/* Where a run was resumed. */
static int list_marks(const run_data *run, double out[MAX_MARKS])
{
    const json_t *starts = json_object_get(run->config, "starts");
    int n = 0;
    for (size_t i = 1; i < json_array_size(starts) && n < MAX_MARKS; i++)
        out[n++] = run_data_number(json_array_get(starts, i), "step");
    return n;
}

/* What is what: by colour for one run, by form for several. `points`: of each curve. */
static void put_key(FILE *out, const chart_row *row, const int *points, int n_runs, int every)
{
    static const char *const forms[] = {[CHART_LINE] = "line",
                                        [CHART_DASHED] = "dashed line",
                                        [CHART_THIN] = "faint line",
                                        [CHART_DOTS] = "dots"};
    fputs("<p class=\"faint\">", out);
    for (int i = 0; i < MAX_CURVES && row->curves[i].key != NULL; i++) {
        const curve_row *c = &row->curves[i];
        if (points[i] == 0)
            continue;
        if (n_runs == 1)
            fprintf(out, "<span class=\"key\" style=\"background:var(--c%d)\"></span>", c->colour);
        fprintf(out, "%s: %s. ", forms[c->form], c->name);
    }
    if (every > 1)
        fprintf(out, "The faint line is the mean of %d logged steps each.", every);
    fputs("</p>\n", out);
}

static status put_chart(FILE *out, const chart_row *row, const run_data *runs, int n_runs)
{
    chart_series series[MAX_RUNS * MAX_CURVES];
    run_curve curves[MAX_RUNS * MAX_CURVES] = {{0}};
    double marks[MAX_MARKS];
    int points[MAX_CURVES] = {0}, n = 0, every = 1;
    status st = STATUS_OK;
    for (int run = 0; run < n_runs; run++)
        for (int i = 0; i < MAX_CURVES && row->curves[i].key != NULL && st == STATUS_OK; i++) {
            const curve_row *c = &row->curves[i];
            st = run_data_curve(&runs[run], c->event, c->key, MAX_POINTS, &curves[n]);
            if (st != STATUS_OK)
                break;
            series[n] = (chart_series){.name = n_runs > 1 ? runs[run].name : c->name,
                                       .colour = n_runs > 1 ? run : c->colour,
                                       .form = c->form,
                                       .x = curves[n].x,
                                       .y = curves[n].y,
                                       .n = curves[n].n};
            points[i] += curves[n].n;
            every = c->form == CHART_THIN && curves[n].every > every ? curves[n].every : every;
            n++;
        }
    if (st == STATUS_OK) {
        fputs("<div>\n", out);
        chart_write(out, &(chart){.title = row->title,
                                  .x_label = "steps",
                                  .y_axis = row->y_axis,
                                  .series = series,
                                  .n_series = n,
                                  .marks = marks,
                                  .n_marks = n_runs == 1 ? list_marks(&runs[0], marks) : 0});
        put_key(out, row, points, n_runs, every);
        fputs("</div>\n", out);
    }
    for (int i = 0; i < n; i++)
        free(curves[i].x);
    return st;
}

status run_charts_write(FILE *out, const run_data *runs, int n)
{
    html_tagged(out, "h2", "Curves");
    fputs("<div class=\"charts\">\n", out);
    for (int i = 0; i < N_CHARTS; i++)
        TRY(put_chart(out, &CHARTS[i], runs, n));
    fputs("</div>\n", out);
    return STATUS_OK;
}
