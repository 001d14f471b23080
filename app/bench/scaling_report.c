/* Measurements beside what the fitted model says of them. */
#include "app/bench/scaling.h"

#include "app/bench/cases.h"
#include "app/report/plot.h"
#include "app/report/report.h"
#include "app/report/table.h"

#include <math.h>
#include <stdio.h>

enum { DIGITS = 6 };

/* What the model says of a sample, its error in per cent, and what the sample was used for; empty
 * without a fit. */
static void add_model(json_t *table, const cost_fit *fit, const cost_sample *s, double per_unit)
{
    if (fit == NULL)
        return;
    double said = cost_fit_predict(fit, s);
    table_number(table, said * per_unit);
    table_cell(table, "%+.1f", 100 * (said / s->seconds - 1));
    table_cell(table, "%s", s->held_out ? "held out" : "fitted");
}

static void add_step(json_t *table, const cost_fit *fit, const scaling_series *series)
{
    const cost_sample *s = &series->sample;
    table_row(table);
    table_cell(table, "%s", scaling_kind_name(s->kind));
    table_cell(table, "%s", model_kind_name((model_kind)s->model));
    table_cell(table, "%d", s->ranks);
    table_cell(table, "%g", s->images);
    table_cell(table, "%d", series->n);
    table_number(table, s->seconds * 1e3);
    table_interval(table, series->summary.low * 1e3, series->summary.high * 1e3);
    add_model(table, fit, s, 1e3);
}

static void add_all_reduce(json_t *table, const cost_fit *fit, const scaling_series *series)
{
    const cost_sample *s = &series->sample;
    table_row(table);
    table_cell(table, "%d", s->ranks);
    table_cell(table, "%.0f", s->bytes);
    table_cell(table, "%d", series->n);
    table_number(table, s->seconds * 1e6);
    add_model(table, fit, s, 1e6);
}

static json_t *case_json(const cost_fit *fit, const scaling_series *series)
{
    const cost_sample *s = &series->sample;
    json_t *object = json_object(), *values = json_array();
    bool step = s->kind != COST_SAMPLE_ALL_REDUCE;
    json_object_set_new(object, "what", json_string(scaling_kind_name(s->kind)));
    if (step)
        json_object_set_new(object, "model", json_string(model_kind_name((model_kind)s->model)));
    json_object_set_new(object, "ranks", json_integer(s->ranks));
    if (step)
        json_object_set_new(object, "images_per_rank", json_real(s->images));
    json_object_set_new(object, "bytes", json_real(s->bytes));
    for (int i = 0; i < series->n; i++)
        json_array_append_new(values, report_number(series->values[i], DIGITS));
    json_object_set_new(object, "values_s", values);
    report_set_number(object, "median_s", s->seconds, DIGITS);
    report_set_number(object, "low_s", series->summary.low, DIGITS);
    report_set_number(object, "high_s", series->summary.high, DIGITS);
    if (fit != NULL)
        report_set_number(object, "model_s", cost_fit_predict(fit, s), DIGITS);
    json_object_set_new(object, "held_out", json_boolean(s->held_out));
    return object;
}

static void add_cases(json_t *document, const cost_fit *fit, const scaling_measurements *m)
{
    static const char *const step_columns[] = {
        "mode",    "model", "ranks", "images per rank", "n", "ms", "95 % interval", "model ms",
        "error %", "use",   NULL};
    static const char *const sum_columns[] = {"ranks",    "bytes",   "n",   "us",
                                              "model us", "error %", "use", NULL};
    json_t *cases = json_array();
    json_t *steps = report_table(document, "Steps: measured here, and what the fitted model says",
                                 step_columns);
    json_t *sums = report_table(
        document, "All-reduces: measured here, and what the fitted model says", sum_columns);
    for (size_t i = 0; i < m->n; i++) {
        json_array_append_new(cases, case_json(fit, &m->series[i]));
        if (m->series[i].sample.kind == COST_SAMPLE_ALL_REDUCE)
            add_all_reduce(sums, fit, &m->series[i]);
        else
            add_step(steps, fit, &m->series[i]);
    }
    json_object_set_new(document, "cases", cases);
}

/* The terms, as app/bench/cost_fit.h names them; the image's by model. */
static json_t *fit_json(const scaling_plan *plan, const cost_fit *fit)
{
    json_t *object = json_object(), *compute = json_object();
    for (int i = 0; i < plan->models.n; i++)
        report_set_number(compute, model_kind_name((model_kind)plan->models.values[i]),
                          fit->image_s[plan->models.values[i]], DIGITS);
    json_object_set_new(object, "cores", json_integer(fit->cores));
    json_object_set_new(object, "threads_per_rank", json_integer(plan->threads));
    report_set_number(object, "latency_s", fit->latency_s, DIGITS);
    report_set_number(object, "bandwidth_s_per_byte", fit->s_per_byte, DIGITS);
    report_set_number(object, "switching_s", fit->switching_s, DIGITS);
    json_object_set_new(object, "compute", compute);
    report_set_number(object, "optimizer_s_per_byte", fit->optimizer_s_per_byte, DIGITS);
    report_set_number(object, "meeting_s", fit->meeting_s, DIGITS);
    report_set_number(object, "sharing_s", fit->sharing_s, DIGITS);
    return object;
}

/* "3, 6", or "none" */
static void list_held_out(const scaling_plan *plan, char *out, size_t size_bytes)
{
    size_t used = 0;
    snprintf(out, size_bytes, "none");
    for (int i = 0; i < plan->held_out.n && used < size_bytes; i++)
        used += (size_t)snprintf(out + used, size_bytes - used, "%s%d", i > 0 ? ", " : "",
                                 plan->held_out.values[i]);
}

static json_t *error_json(cost_error error)
{
    bool known = error.samples > 0;
    json_t *object = json_object();
    json_object_set_new(object, "cases", json_integer((json_int_t)error.samples));
    report_set_number(object, "median", known ? error.median : (double)NAN, 4);
    report_set_number(object, "most", known ? error.most : (double)NAN, 4);
    return object;
}

static void add_errors(json_t *document, const scaling_view *view, const cost_sample *samples)
{
    char which[128];
    const cost_fit *fit = view->fit;
    size_t n = view->measured->n;
    cost_error steps = cost_fit_error(fit, samples, n, COST_SAMPLES_OF_STEPS, true);
    cost_error sums = cost_fit_error(fit, samples, n, 1u << COST_SAMPLE_ALL_REDUCE, true);
    cost_error fitted = cost_fit_error(fit, samples, n, COST_SAMPLES_OF_STEPS, false);
    bool known = steps.samples > 0, met = known && steps.median <= SCALING_GOAL;
    json_t *object = json_object();
    list_held_out(view->plan, which, sizeof which);
    json_object_set_new(object, "world_sizes", json_string(which));
    json_object_set_new(object, "goal", json_real(SCALING_GOAL));
    json_object_set_new(object, "met", known ? json_boolean(met) : json_null());
    json_object_set_new(object, "steps", error_json(steps));
    json_object_set_new(object, "all_reduces", error_json(sums));
    json_object_set_new(object, "fitted_steps", error_json(fitted));
    json_object_set_new(document, "held_out", object);
    if (!known) {
        report_say(document, REPORT_SUMMARY,
                   "no world size was both measured and held out (--hold-out: %s): the model's "
                   "error is not known",
                   which);
        return;
    }
    report_say(document, REPORT_SUMMARY,
               "world sizes %s were held out of the fit: the model is off by %.1f %% in the median "
               "over %zu steps (goal: %.0f %%, %s), by %.1f %% at worst; all-reduces by %.1f %% "
               "over %zu; what it was fitted to by %.1f %%",
               which, 100 * steps.median, steps.samples, 100 * SCALING_GOAL,
               met ? "met" : "NOT met", 100 * steps.most, 100 * sums.median, sums.samples,
               100 * fitted.median);
}

static void say_costs(json_t *document, const scaling_plan *plan, const cost_fit *fit)
{
    for (int i = 0; i < plan->models.n; i++) {
        model_kind model = (model_kind)plan->models.values[i];
        report_say(
            document, REPORT_SUMMARY,
            "%s: an image takes %.1f us on one of %d cores, a step %.0f us more whatever its "
            "batch",
            model_kind_name(model), fit->image_s[model] * 1e6, fit->cores,
            fit->optimizer_s_per_byte * scaling_work(model).gradient_bytes * 1e6);
    }
}

static bool is_same_line(const cost_sample *a, const cost_sample *b)
{
    return a->kind == b->kind && a->model == b->model && fabs(a->images - b->images) < 0.5 &&
           a->ranks > 1 && b->ranks > 1;
}

static int most_ranks(const scaling_measurements *m)
{
    int most = 1;
    for (size_t i = 0; i < m->n; i++)
        most = m->series[i].sample.ranks > most ? m->series[i].sample.ranks : most;
    return most;
}

/* One mode, model and batch, the nth of its mode: dots for what was measured, a line for the
 * model. */
static void add_line(plot_writer *p, const cost_fit *fit, const scaling_measurements *m,
                     size_t first, int nth)
{
    cost_sample s = m->series[first].sample;
    int most = 1;
    const char *colour = mode_colours[scaling_kind_mode(s.kind)];
    plot_curve(p,
               "using 1:2:3 notitle with points pointtype variable pointsize 1.2 "
               "linecolor rgb '%s'",
               colour);
    for (size_t i = 0; i < m->n; i++) {
        const cost_sample *t = &m->series[i].sample;
        if (!is_same_line(t, &s))
            continue;
        plot_point(p, "%d %.6g %d", t->ranks, t->seconds * 1e3, t->held_out ? 6 : 7);
        most = t->ranks > most ? t->ranks : most;
    }
    plot_curve(p, "title '%s %s, %g a rank' with lines linewidth 2 linecolor rgb '%s' dashtype %d",
               scaling_kind_name(s.kind), model_kind_name((model_kind)s.model), s.images, colour,
               nth);
    for (s.ranks = 2; s.ranks <= most; s.ranks++)
        plot_point(p, "%d %.6g", s.ranks, cost_fit_predict(fit, &s) * 1e3);
}

static void plot_fit(const char *folder, json_t *document, const cost_fit *fit,
                     const scaling_measurements *m)
{
    static const plot_labels labels = {
        "A step on this machine: dots measured (open: held out), lines the model", "ranks",
        "ms per step"};
    plot_writer p;
    int lines[STRATEGY_COUNT] = {0};
    if (plot_open(&p, &labels) != STATUS_OK)
        return;
    plot_set(&p, "set logscale y\nset grid\nset key outside right top font ',11'\nset xtics 1");
    plot_set(&p, "set ytics (0.1)"); /* 1, 2, 5, 10, 20, 50: a decade is too far apart */
    plot_set(&p, "do for [e=-1:5] { do for [m in \"1 2 5\"] { set ytics add "
                 "(sprintf(\"%%g\", m * 10.0**e) m * 10.0**e) } }");
    plot_set(&p, "set xrange [1.5:%g]", most_ranks(m) + 0.5);
    for (size_t i = 0; i < m->n; i++) {
        const cost_sample *s = &m->series[i].sample;
        size_t first = 0;
        while (first < i && !is_same_line(&m->series[first].sample, s))
            first++;
        if (s->kind != COST_SAMPLE_ALL_REDUCE && s->ranks > 1 && first == i)
            add_line(&p, fit, m, i, ++lines[scaling_kind_mode(s->kind)]);
    }
    plot_finish(&p, document, folder, "scaling_fit",
                "Time of a step by ranks on this machine: medians, and the fitted model. Open dots "
                "were held out of the fit.");
}

void scaling_report(const scaling_view *view, const cost_sample *samples, const char *folder,
                    json_t *document)
{
    add_cases(document, view->fit, view->measured);
    if (view->fit == NULL)
        return;
    json_object_set_new(document, "fit", fit_json(view->plan, view->fit));
    add_errors(document, view, samples);
    say_costs(document, view->plan, view->fit);
    plot_fit(folder, document, view->fit, view->measured);
}
