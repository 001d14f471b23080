#include "app/bench/scaling_report.h"

#include "app/bench/bench_document.h"
#include "app/bench/bench_plot.h"
#include "base/text_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROW_BYTES = 400 };

enum { CELL_BYTES = 32 };

/* The model's word on a sample and its error in per cent, or nothing without a fit. */
static void tell_model(const cost_fit *fit, const cost_sample *s, double per_unit,
                       char seconds[CELL_BYTES], char error[CELL_BYTES])
{
    seconds[0] = error[0] = '\0';
    if (fit == NULL)
        return;
    double said = cost_fit_predict(fit, s);
    snprintf(seconds, CELL_BYTES, "%.3f", said * per_unit);
    snprintf(error, CELL_BYTES, "%+.1f", 100 * (said / s->seconds - 1));
}

static const char *use_of(const cost_fit *fit, const cost_sample *s)
{
    return fit == NULL ? "" : s->held_out ? "held out" : "fitted";
}

static void add_step(json_t *table, const cost_fit *fit, const scaling_series *series)
{
    const cost_sample *s = &series->sample;
    char cells[ROW_BYTES], model[CELL_BYTES], error[CELL_BYTES], interval[64] = "n too small";
    if (isfinite(series->summary.low))
        snprintf(interval, sizeof interval, "%.3f to %.3f", series->summary.low * 1e3,
                 series->summary.high * 1e3);
    tell_model(fit, s, 1e3, model, error);
    snprintf(cells, sizeof cells, "%s|%s|%d|%g|%d|%.3f|%s|%s|%s|%s", scaling_kind_name(s->kind),
             model_kind_name((model_kind)s->model), s->ranks, s->images, series->n,
             s->seconds * 1e3, interval, model, error, use_of(fit, s));
    bench_document_row(table, NULL, cells);
}

static void add_all_reduce(json_t *table, const cost_fit *fit, const scaling_series *series)
{
    const cost_sample *s = &series->sample;
    char cells[ROW_BYTES], model[CELL_BYTES], error[CELL_BYTES];
    tell_model(fit, s, 1e6, model, error);
    snprintf(cells, sizeof cells, "%d|%.0f|%d|%.3f|%s|%s|%s", s->ranks, s->bytes, series->n,
             s->seconds * 1e6, model, error, use_of(fit, s));
    bench_document_row(table, NULL, cells);
}

static void add_tables(json_t *document, const cost_fit *fit, const scaling_measurements *m)
{
    json_t *steps = bench_document_table(
        document, "Steps: measured here, and what the fitted model says",
        "mode|model|ranks|images per rank|n|ms|95 % interval|model ms|error %|use");
    for (size_t i = 0; i < m->n; i++)
        if (m->series[i].sample.kind != COST_SAMPLE_ALL_REDUCE)
            add_step(steps, fit, &m->series[i]);
    json_t *sums =
        bench_document_table(document, "All-reduces: measured here, and what the fitted model says",
                             "ranks|bytes|n|us|model us|error %|use");
    for (size_t i = 0; i < m->n; i++)
        if (m->series[i].sample.kind == COST_SAMPLE_ALL_REDUCE)
            add_all_reduce(sums, fit, &m->series[i]);
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
        json_array_append_new(values, bench_document_number(series->values[i], 6));
    json_object_set_new(object, "values_s", values);
    json_object_set_new(object, "median_s", bench_document_number(s->seconds, 6));
    json_object_set_new(object, "low_s", bench_document_number(series->summary.low, 6));
    json_object_set_new(object, "high_s", bench_document_number(series->summary.high, 6));
    if (fit != NULL)
        json_object_set_new(object, "model_s", bench_document_number(cost_fit_predict(fit, s), 6));
    json_object_set_new(object, "held_out", json_boolean(s->held_out));
    return object;
}

static json_t *numbers(const double *values, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, bench_document_number(values[i], 8));
    return list;
}

/* The coefficients, as app/bench/cost_fit.h names them: a1.., c1.. by model, d1.., m1... */
static json_t *fit_json(const scaling_plan *plan, const cost_fit *fit)
{
    json_t *object = json_object(), *compute = json_object();
    for (int i = 0; i < plan->n_models; i++)
        json_object_set_new(compute, model_kind_name((model_kind)plan->models[i]),
                            numbers(fit->compute[plan->models[i]], COST_FIT_COMPUTE));
    json_object_set_new(object, "cores", json_integer(fit->cores));
    json_object_set_new(object, "threads_per_rank", json_integer(plan->threads));
    json_object_set_new(object, "all_reduce", numbers(fit->all_reduce, COST_FIT_ALL_REDUCE));
    json_object_set_new(object, "compute", compute);
    json_object_set_new(object, "ddp", numbers(fit->ddp, COST_FIT_DDP));
    json_object_set_new(object, "server", numbers(fit->star[0], COST_FIT_STAR));
    json_object_set_new(object, "master", numbers(fit->star[1], COST_FIT_STAR));
    return object;
}

/* "3, 6" */
static void list_held_out(const scaling_plan *plan, char *out, size_t size_bytes)
{
    int used = snprintf(out, size_bytes, "none");
    for (int i = 0; i < plan->n_held_out; i++)
        used = snprintf(out + (i > 0 ? used : 0), size_bytes - (size_t)(i > 0 ? used : 0), "%s%d",
                        i > 0 ? ", " : "", plan->held_out[i]) +
               (i > 0 ? used : 0);
}

static json_t *error_json(cost_error error)
{
    json_t *object = json_object();
    json_object_set_new(object, "cases", json_integer((json_int_t)error.samples));
    json_object_set_new(object, "median",
                        bench_document_number(error.samples > 0 ? error.median : (double)NAN, 4));
    json_object_set_new(object, "most",
                        bench_document_number(error.samples > 0 ? error.most : (double)NAN, 4));
    return object;
}

static void add_errors(json_t *document, const scaling_plan *plan, const cost_fit *fit,
                       const cost_sample *samples, size_t n)
{
    char which[128];
    unsigned sums_kind = 1u << COST_SAMPLE_ALL_REDUCE;
    cost_error steps = cost_fit_error(fit, samples, n, COST_SAMPLES_OF_STEPS, true);
    cost_error sums = cost_fit_error(fit, samples, n, sums_kind, true);
    cost_error fitted = cost_fit_error(fit, samples, n, COST_SAMPLES_OF_STEPS, false);
    json_t *object = json_object();
    list_held_out(plan, which, sizeof which);
    json_object_set_new(object, "world_sizes", json_string(which));
    json_object_set_new(object, "goal", json_real(SCALING_GOAL));
    json_object_set_new(object, "met",
                        steps.samples > 0 ? json_boolean(steps.median <= SCALING_GOAL)
                                          : json_null());
    json_object_set_new(object, "steps", error_json(steps));
    json_object_set_new(object, "all_reduces", error_json(sums));
    json_object_set_new(object, "fitted_steps", error_json(fitted));
    json_object_set_new(document, "held_out", object);
    if (steps.samples == 0) {
        bench_document_say(document, BENCH_SUMMARY,
                           "no world size was both measured and held out (--hold-out: %s): the "
                           "model's error is not known",
                           which);
        return;
    }
    bench_document_say(
        document, BENCH_SUMMARY,
        "world sizes %s were held out of the fit: the model is off by %.1f %% in the "
        "median over %zu steps (goal: %.0f %%, %s), by %.1f %% at most; all-reduces "
        "by %.1f %% over %zu; what it was fitted to by %.1f %%",
        which, 100 * steps.median, steps.samples, 100 * SCALING_GOAL,
        steps.median <= SCALING_GOAL ? "met" : "NOT met", 100 * steps.most, 100 * sums.median,
        sums.samples, 100 * fitted.median);
}

static void say_costs(json_t *document, const scaling_plan *plan, const cost_fit *fit)
{
    for (int i = 0; i < plan->n_models; i++) {
        const double *c = fit->compute[plan->models[i]];
        bench_document_say(document, BENCH_SUMMARY,
                           "%s: an image takes %.1f us on one of %d cores, a step %.0f us more "
                           "whatever its batch",
                           model_kind_name((model_kind)plan->models[i]), c[0] * 1e6, fit->cores,
                           c[3] * 1e6);
    }
}

static int most_ranks(const scaling_measurements *m)
{
    int most = 1;
    for (size_t i = 0; i < m->n; i++)
        most = m->series[i].sample.ranks > most ? m->series[i].sample.ranks : most;
    return most;
}

/* The first of the series with this mode, model and batch: one line of the plot. */
static bool begins_line(const scaling_measurements *m, size_t at)
{
    const cost_sample *s = &m->series[at].sample;
    for (size_t i = 0; i < at; i++) {
        const cost_sample *t = &m->series[i].sample;
        if (t->kind == s->kind && t->model == s->model && fabs(t->images - s->images) < 0.5 &&
            t->ranks > 1)
            return false;
    }
    return s->kind != COST_SAMPLE_ALL_REDUCE && s->ranks > 1;
}

static void write_line(FILE *file, const cost_fit *fit, const scaling_measurements *m, size_t at,
                       int line)
{
    cost_sample s = m->series[at].sample;
    const cost_sample *first = &m->series[at].sample;
    fprintf(file, "$measured%d << EOD\n", line);
    for (size_t i = 0; i < m->n; i++) {
        const cost_sample *t = &m->series[i].sample;
        if (t->kind == first->kind && t->model == first->model && t->ranks > 1 &&
            fabs(t->images - first->images) < 0.5)
            fprintf(file, "%d %.6g %d\n", t->ranks, t->seconds * 1e3, t->held_out ? 6 : 7);
    }
    fprintf(file, "EOD\n$model%d << EOD\n", line);
    for (s.ranks = 2; s.ranks <= most_ranks(m); s.ranks++)
        fprintf(file, "%d %.6g\n", s.ranks, cost_fit_predict(fit, &s) * 1e3);
    fprintf(file, "EOD\n");
}

static void write_script(FILE *file, const cost_fit *fit, const scaling_measurements *m)
{
    int lines = 0;
    for (size_t i = 0; i < m->n; i++)
        if (begins_line(m, i))
            write_line(file, fit, m, i, lines++);
    fprintf(file,
            "set title 'A step on this machine: dots measured (open: held out), lines the model'\n"
            "set xlabel 'ranks'\nset ylabel 'ms per step'\nset logscale y\nset grid\n"
            "set key outside right top font ',11'\nset xrange [1.5:%g]\nplot ",
            most_ranks(m) + 0.5);
    int line = 0;
    for (size_t i = 0; i < m->n; i++) {
        const cost_sample *s = &m->series[i].sample;
        if (!begins_line(m, i))
            continue;
        fprintf(file,
                "%s$model%d title '%s %s, %g a rank' with lines linewidth 2 linecolor %d, "
                "\\\n  $measured%d using 1:2:3 notitle with points pointtype variable pointsize "
                "1.2 linecolor %d",
                line > 0 ? ", \\\n  " : "", line, scaling_kind_name(s->kind),
                model_kind_name((model_kind)s->model), s->images, line + 1, line, line + 1);
        line++;
    }
    fputc('\n', file);
}

/* A plot that cannot be drawn is no reason to lose the figures. */
static void plot(const options *opts, json_t *document, const cost_fit *fit,
                 const scaling_measurements *m)
{
    static const char name[] = "scaling_fit";
    char *script = NULL;
    text_stream text;
    if (most_ranks(m) < 2)
        return;
    status st = text_stream_open(&text);
    if (st == STATUS_OK) {
        write_script(text.file, fit, m);
        st = text_stream_close(&text, &script, NULL);
    }
    if (st == STATUS_OK)
        st = bench_plot_draw(opts->out, name, script);
    if (st == STATUS_OK)
        bench_document_plot(document, name,
                            "Time of a step by ranks on this machine: medians, and the fitted "
                            "model. Open dots were held out of the fit.");
    else
        bench_document_say(document, BENCH_NOTES, "no plot %s: %s", name, status_message());
    free(script);
}

status scaling_report(const options *opts, const scaling_plan *plan, const cost_fit *fit,
                      const scaling_measurements *m, json_t *document)
{
    cost_sample *samples = NULL;
    json_t *cases = json_array();
    for (size_t i = 0; i < m->n; i++)
        json_array_append_new(cases, case_json(fit, &m->series[i]));
    json_object_set_new(document, "cases", cases);
    add_tables(document, fit, m);
    if (fit == NULL)
        return STATUS_OK;
    TRY(scaling_samples(m, &samples));
    json_object_set_new(document, "fit", fit_json(plan, fit));
    add_errors(document, plan, fit, samples, m->n);
    say_costs(document, plan, fit);
    free(samples);
    if (bench_plot_is_possible())
        plot(opts, document, fit, m);
    return STATUS_OK;
}
