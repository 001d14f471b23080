#include "app/bench/scaling_projection.h"

#include "app/bench/bench_document.h"
#include "app/bench/bench_plot.h"
#include "base/log.h"
#include "base/text_stream.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 64, ROW_BYTES = 512, PER_DECADE = 12, SHOWN = 6, QUOTED_BYTES = 512 };

/* One kind of scaling of one model on the plan's cluster. */
typedef struct scene {
    const scaling_plan *plan;
    model_kind model;
    cost_work work;
    cost_scaling scaling;
    double batch;
    int64_t stops[COST_KINDS], half[COST_KINDS]; /* 0: not up to plan->most_ranks */
} scene;

static const char *scaling_name(cost_scaling scaling)
{
    return scaling == COST_WEAK ? "weak" : "strong";
}

/* The step of one rank with the largest batch; NULL: none was measured. */
static const cost_sample *largest_alone(const scaling_measurements *measured, model_kind model)
{
    const cost_sample *best = NULL;
    for (size_t i = 0; i < measured->n; i++) {
        const cost_sample *s = &measured->series[i].sample;
        if (s->kind == COST_SAMPLE_DDP && s->model == (int)model && s->ranks == 1 &&
            (best == NULL || s->images > best->images))
            best = s;
    }
    return best;
}

status scaling_project_work(const scaling_plan *plan, const cost_fit *fit,
                            const scaling_measurements *measured, model_kind model, bool overlap,
                            cost_work *out)
{
    cost_work work = scaling_work(model);
    double forward = measured->forward_s[model], backward = measured->backward_s[model];
    const cost_sample *alone = largest_alone(measured, model);
    if (forward + backward > 0)
        work.backward_share = backward / (forward + backward);
    work.overlap = overlap ? 1 : 0;
    if (plan->images_per_s > 0) {
        work.image_s = 1 / plan->images_per_s;
    } else if (fit->compute[model][0] > 0) {
        work.image_s = fit->compute[model][0];
        work.step_s = fit->compute[model][3];
    } else if (alone != NULL) { /* one batch size, or noise, tells no part from the other */
        work.image_s = alone->seconds / alone->images;
    } else {
        return FAIL(STATUS_INVALID, "%s: one rank's steps were not measured; give --images-per-s",
                    model_kind_name(model));
    }
    *out = work;
    return STATUS_OK;
}

static double speed(const scene *s, cost_kind kind, int64_t ranks)
{
    return cost_images_per_s(kind, &s->plan->cluster, &s->work, s->scaling, ranks, s->batch);
}

static double efficiency(const scene *s, cost_kind kind, int64_t ranks)
{
    return cost_efficiency(kind, &s->plan->cluster, &s->work, s->scaling, ranks, s->batch);
}

static scene set_scene(const scaling_plan *plan, model_kind model, cost_work work,
                       cost_scaling scaling)
{
    scene s = {.plan = plan, .model = model, .work = work, .scaling = scaling};
    s.batch = (double)(scaling == COST_WEAK ? plan->rank_batch : plan->global_batch);
    for (int kind = 0; kind < COST_KINDS; kind++) {
        s.stops[kind] = cost_saturation((cost_kind)kind, &plan->cluster, &s.work, scaling, s.batch,
                                        plan->most_ranks);
        s.half[kind] = cost_half_efficiency((cost_kind)kind, &plan->cluster, &s.work, scaling,
                                            s.batch, plan->most_ranks);
    }
    return s;
}

/* Point i of the curves, evenly spread on a logarithmic axis; the last is plan->most_ranks, and
 * then there is none: 0. */
static int64_t ranks_at(const scaling_plan *plan, int64_t before)
{
    if (before >= plan->most_ranks)
        return 0;
    int64_t next = (int64_t)((double)before * pow(10, 1.0 / PER_DECADE));
    next = next > before ? next : before + 1;
    return next < plan->most_ranks ? next : plan->most_ranks;
}

static void add_row(json_t *table, const scene *s, cost_kind kind)
{
    char cells[ROW_BYTES], stops[32] = "not reached", half[32] = "not reached";
    if (s->stops[kind] > 0)
        snprintf(stops, sizeof stops, "%" PRId64, s->stops[kind]);
    if (s->half[kind] > 0)
        snprintf(half, sizeof half, "%" PRId64, s->half[kind]);
    int used = snprintf(cells, sizeof cells, "%s|%s|%s", cost_kind_name(kind), half, stops);
    for (int i = 0; i < SHOWN; i++) {
        double ranks = pow((double)s->plan->most_ranks, (double)i / (SHOWN - 1));
        used += snprintf(cells + used, sizeof cells - (size_t)used, "|%.4g",
                         speed(s, kind, (int64_t)llround(ranks)));
    }
    bench_document_row(table, NULL, cells);
}

static void add_table(json_t *document, const scene *s)
{
    char title[ROW_BYTES], columns[ROW_BYTES];
    snprintf(title, sizeof title,
             "PROJECTION, not measured: %s, %s scaling, %g images %s; images per second by ranks",
             model_kind_name(s->model), scaling_name(s->scaling), s->batch,
             s->scaling == COST_WEAK ? "per rank" : "of all ranks");
    int used = snprintf(columns, sizeof columns, "how|efficiency below 1/2 at|stops scaling at");
    for (int i = 0; i < SHOWN; i++) {
        double ranks = pow((double)s->plan->most_ranks, (double)i / (SHOWN - 1));
        used += snprintf(columns + used, sizeof columns - (size_t)used, "|%lld", llround(ranks));
    }
    json_t *table = bench_document_table(document, title, columns);
    for (int kind = 0; kind < COST_KINDS; kind++)
        add_row(table, s, (cost_kind)kind);
}

static void say_where(json_t *document, const scene *s)
{
    char where[COST_KINDS][64];
    for (int kind = 0; kind < COST_KINDS; kind++)
        if (s->stops[kind] > 0)
            snprintf(where[kind], sizeof where[kind], "at %" PRId64 " ranks", s->stops[kind]);
        else
            snprintf(where[kind], sizeof where[kind], "not up to %" PRId64, s->plan->most_ranks);
    bench_document_say(document, BENCH_SUMMARY,
                       "projection, %s, %s scaling: DP's master saturates %s, a parameter server "
                       "%s; DDP stops scaling: ring %s, tree %s, hierarchical %s",
                       model_kind_name(s->model), scaling_name(s->scaling), where[COST_MASTER],
                       where[COST_SERVER], where[COST_RING], where[COST_TREE],
                       where[COST_HIERARCHICAL]);
}

static json_t *curve_json(const scene *s, cost_kind kind)
{
    json_t *curve = json_object(), *ranks = json_array(), *speeds = json_array();
    json_t *efficiencies = json_array();
    for (int64_t n = 1; n > 0; n = ranks_at(s->plan, n)) {
        json_array_append_new(ranks, json_integer(n));
        json_array_append_new(speeds, bench_document_number(speed(s, kind, n), 6));
        json_array_append_new(efficiencies, bench_document_number(efficiency(s, kind, n), 4));
    }
    json_object_set_new(curve, "how", json_string(cost_kind_name(kind)));
    json_object_set_new(curve, "model", json_string(model_kind_name(s->model)));
    json_object_set_new(curve, "scaling", json_string(scaling_name(s->scaling)));
    json_object_set_new(curve, "batch", json_real(s->batch));
    json_object_set_new(curve, "stops_scaling_at",
                        s->stops[kind] > 0 ? json_integer(s->stops[kind]) : json_null());
    json_object_set_new(curve, "half_efficiency_at",
                        s->half[kind] > 0 ? json_integer(s->half[kind]) : json_null());
    json_object_set_new(curve, "ranks", ranks);
    json_object_set_new(curve, "images_per_s", speeds);
    json_object_set_new(curve, "efficiency", efficiencies);
    return curve;
}

/* A block of data per kind, and one for the place where it stops. */
static void write_data(const scene *s, FILE *file)
{
    for (int i = 0; i < COST_KINDS; i++) {
        cost_kind kind = (cost_kind)i;
        fprintf(file, "$curve%d << EOD\n", i);
        for (int64_t n = 1; n > 0; n = ranks_at(s->plan, n))
            fprintf(file, "%" PRId64 " %.6g\n", n, speed(s, kind, n));
        fprintf(file, "EOD\n");
        if (s->stops[i] > 0)
            fprintf(file, "$stop%d << EOD\n%" PRId64 " %.6g\nEOD\n", i, s->stops[i],
                    speed(s, kind, s->stops[i]));
    }
}

/* "DDP ring: stops scaling at 1479 ranks" */
static void name_curve(const scene *s, cost_kind kind, char *out, size_t size_bytes)
{
    const char *verb = cost_kind_is_ddp(kind) ? "stops scaling" : "saturates";
    if (s->stops[kind] > 0)
        snprintf(out, size_bytes, "%s: %s at %" PRId64 " ranks", cost_kind_name(kind), verb,
                 s->stops[kind]);
    else
        snprintf(out, size_bytes, "%s: no end up to %" PRId64 " ranks", cost_kind_name(kind),
                 s->plan->most_ranks);
}

static void write_script(const scene *s, FILE *file)
{
    /* Told apart also where two lie on one another, and without telling red from green. */
    static const char *const styles[COST_KINDS] = {
        "linecolor '#9400d3'", "linecolor '#009e73'", "linecolor '#56b4e9' dashtype 4",
        "linecolor '#e69f00'", "linecolor '#d62728' dashtype 4"};
    char title[128];
    write_data(s, file);
    fprintf(file,
            "set title \"PROJECTION, not measured: %s, %s scaling, %g images %s\"\n"
            "set logscale xy 10\nset format x '10^{%%L}'\nset format y '10^{%%L}'\n"
            "set xlabel 'ranks'\nset ylabel 'images per second'\nset grid\n"
            "set key left top Left reverse samplen 3 font ',11'\nset xrange [1:%" PRId64 "]\n"
            "set yrange [*:%.6g]\nplot x * %.6g title 'perfect' with lines dashtype 3 linecolor "
            "'gray40'",
            model_kind_name(s->model), scaling_name(s->scaling), s->batch,
            s->scaling == COST_WEAK ? "per rank" : "of all ranks", s->plan->most_ranks,
            100 * speed(s, COST_RING, 1) * (double)s->plan->most_ranks, speed(s, COST_RING, 1));
    for (int i = 0; i < COST_KINDS; i++) {
        name_curve(s, (cost_kind)i, title, sizeof title);
        fprintf(file, ", \\\n  $curve%d title '%s' with lines linewidth 2 %s", i, title, styles[i]);
        if (s->stops[i] > 0)
            fprintf(file, ", \\\n  $stop%d notitle with points pointtype 7 pointsize 1.3 %.19s", i,
                    styles[i]);
    }
    fputc('\n', file);
}

/* A plot that cannot be drawn is no reason to lose the figures. */
static void plot(const options *opts, json_t *document, const scene *s)
{
    char name[NAME_BYTES], caption[ROW_BYTES];
    char *script = NULL;
    text_stream text;
    snprintf(name, sizeof name, "scaling_projection_%s_%s", model_kind_name(s->model),
             scaling_name(s->scaling));
    snprintf(caption, sizeof caption,
             "Projection, not measured: %s, %s scaling. A dot marks where twice the ranks bring "
             "less than a tenth more images per second.",
             model_kind_name(s->model), scaling_name(s->scaling));
    status st = text_stream_open(&text);
    if (st == STATUS_OK) {
        write_script(s, text.file);
        st = text_stream_close(&text, &script, NULL);
    }
    if (st == STATUS_OK)
        st = bench_plot_draw(opts->out, name, script);
    if (st == STATUS_OK)
        bench_document_plot(document, name, caption);
    else
        bench_document_say(document, BENCH_NOTES, "no plot %s: %s", name, status_message());
    free(script);
}

static json_t *link_json(cost_link link)
{
    json_t *object = json_object();
    json_object_set_new(object, "latency_us", bench_document_number(link.latency_s * 1e6, 6));
    json_object_set_new(object, "gbps", bench_document_number(8e-9 / link.s_per_byte, 6));
    return object;
}

static json_t *projection_json(const scaling_plan *plan)
{
    json_t *object = json_object();
    json_object_set_new(object, "what",
                        json_string("a projection by the cost model: nothing here was measured"));
    json_object_set_new(object, "between_nodes", link_json(plan->cluster.between));
    json_object_set_new(object, "inside_a_node", link_json(plan->cluster.inside));
    json_object_set_new(object, "ranks_per_node", json_integer(plan->cluster.ranks_per_node));
    json_object_set_new(object, "most_ranks", json_integer(plan->most_ranks));
    json_object_set_new(object, "models", json_object());
    json_object_set_new(object, "curves", json_array());
    return object;
}

static void add_work(json_t *projection, const scene *s)
{
    json_t *object = json_object();
    json_object_set_new(object, "image_us", bench_document_number(s->work.image_s * 1e6, 6));
    json_object_set_new(object, "step_us", bench_document_number(s->work.step_s * 1e6, 6));
    json_object_set_new(object, "backward_share", bench_document_number(s->work.backward_share, 4));
    json_object_set_new(object, "overlap", json_real(s->work.overlap));
    json_object_set_new(object, "gradient_bytes", json_real(s->work.gradient_bytes));
    json_object_set_new(object, "last_bucket_bytes", json_real(s->work.last_bytes));
    json_object_set_new(
        object, "speed_from",
        json_string(s->plan->images_per_s > 0 ? "--images-per-s" : "one rank, as measured here"));
    json_object_set_new(json_object_get(projection, "models"), model_kind_name(s->model), object);
}

static void say_limits(json_t *document, const scaling_plan *plan)
{
    bench_document_say(
        document, BENCH_LIMITS,
        "The projection is arithmetic: %lld ranks a node, %g us and %g Gb/s between "
        "nodes, %g us and %g Gb/s inside, every rank equally fast, no contention in "
        "the network. It shows what limits each way, not what a cluster would reach.",
        (long long)plan->cluster.ranks_per_node, plan->cluster.between.latency_s * 1e6,
        8e-9 / plan->cluster.between.s_per_byte, plan->cluster.inside.latency_s * 1e6,
        8e-9 / plan->cluster.inside.s_per_byte);
    bench_document_say(document, BENCH_LIMITS,
                       "DataParallel is one process on one machine: beyond %lld replicas its curve "
                       "is that of a master which reaches them over the network, as point-to-point "
                       "copies; no program runs it so.",
                       (long long)plan->cluster.ranks_per_node);
}

static void project_model(const options *opts, const scaling_plan *plan, const cost_work *work,
                          model_kind model, json_t *document)
{
    static const cost_scaling scalings[] = {COST_WEAK, COST_STRONG};
    json_t *projection = json_object_get(document, "projection");
    bool draws = bench_plot_is_possible();
    for (int i = 0; i < 2; i++) {
        scene s = set_scene(plan, model, *work, scalings[i]);
        add_work(projection, &s);
        add_table(document, &s);
        say_where(document, &s);
        for (int kind = 0; kind < COST_KINDS; kind++)
            json_array_append_new(json_object_get(projection, "curves"),
                                  curve_json(&s, (cost_kind)kind));
        if (draws)
            plot(opts, document, &s);
    }
}

void scaling_project(const options *opts, const scaling_plan *plan, const cost_fit *fit,
                     const scaling_measurements *measured, json_t *document)
{
    json_object_set_new(document, "projection", projection_json(plan));
    say_limits(document, plan);
    for (int i = 0; i < plan->n_models; i++) {
        cost_work work;
        model_kind model = (model_kind)plan->models[i];
        if (scaling_project_work(plan, fit, measured, model, opts->overlap, &work) == STATUS_OK) {
            project_model(opts, plan, &work, model, document);
            continue;
        }
        LOG_W("no projection of %s", status_message());
        bench_document_say(document, BENCH_NOTES, "no projection of %s", status_message());
    }
}
