/* The cost model's word on a cluster that is not here. */
#include "app/bench/scaling.h"

#include "app/bench/cases.h"
#include "app/report/plot.h"
#include "app/report/report.h"
#include "app/report/table.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 64, TEXT_BYTES = 256, PER_DECADE = 12, SHOWN = 6 };

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

status scaling_project_work(const scaling_view *view, model_kind model, cost_work *out)
{
    cost_work work = scaling_work(model);
    double forward = view->measured->forward_s[model], backward = view->measured->backward_s[model];
    const cost_sample *alone = largest_alone(view->measured, model);
    if (forward + backward > 0)
        work.backward_share = backward / (forward + backward);
    work.overlap = view->overlap ? 1 : 0;
    if (view->plan->images_per_s > 0) {
        work.image_s = 1 / view->plan->images_per_s;
    } else if (view->fit->image_s[model] > 0) {
        work.image_s = view->fit->image_s[model];
        work.step_s = view->fit->optimizer_s_per_byte * work.gradient_bytes;
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

/* The point of a curve after the one at `before`, evenly spread on a logarithmic axis; the last is
 * plan->most_ranks, and after it there is none: 0. */
static int64_t next_ranks(const scaling_plan *plan, int64_t before)
{
    if (before >= plan->most_ranks)
        return 0;
    int64_t next = (int64_t)((double)before * pow(10, 1.0 / PER_DECADE));
    next = next > before ? next : before + 1;
    return next < plan->most_ranks ? next : plan->most_ranks;
}

/* Column i of the table: evenly spread on a logarithmic axis, too. */
static int64_t shown_ranks(const scene *s, int i)
{
    return llround(pow((double)s->plan->most_ranks, (double)i / (SHOWN - 1)));
}

/* "weak scaling, 64 images per rank" */
static void name_scaling(const scene *s, char out[TEXT_BYTES])
{
    snprintf(out, TEXT_BYTES, "%s, %s scaling, %g images %s", model_kind_name(s->model),
             scaling_name(s->scaling), s->batch,
             s->scaling == COST_WEAK ? "per rank" : "of all ranks");
}

static void add_place(json_t *table, const scene *s, int64_t ranks)
{
    bool reached = ranks > 0;
    table_cell(table, "%s%" PRId64, reached ? "" : ">", reached ? ranks : s->plan->most_ranks);
}

/* "2.38M": nobody knows a projection's fourth digit. */
static void add_speed(json_t *table, double images_per_s)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    char digits[TABLE_DIGITS_BYTES];
    size_t unit = 0;
    for (; images_per_s >= 999.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        images_per_s /= 1000;
    table_digits(images_per_s, digits);
    table_cell(table, "%s%s", digits, units[unit]);
}

static void add_table(json_t *document, const scene *s)
{
    char title[TEXT_BYTES + 64], scaling[TEXT_BYTES], heads[SHOWN][24];
    const char *columns[SHOWN + 4] = {"how", "efficiency below 1/2 at", "stops scaling at"};
    name_scaling(s, scaling);
    snprintf(title, sizeof title, "PROJECTION, not measured: %s; images per second by ranks",
             scaling);
    for (int i = 0; i < SHOWN; i++) {
        snprintf(heads[i], sizeof heads[i], "%" PRId64, shown_ranks(s, i));
        columns[3 + i] = heads[i];
    }
    json_t *table = report_table(document, title, columns);
    for (int kind = 0; kind < COST_KINDS; kind++) {
        table_row(table);
        table_cell(table, "%s", cost_kind_name((cost_kind)kind));
        add_place(table, s, s->half[kind]);
        add_place(table, s, s->stops[kind]);
        for (int i = 0; i < SHOWN; i++)
            add_speed(table, speed(s, (cost_kind)kind, shown_ranks(s, i)));
    }
}

static void say_where(json_t *document, const scene *s)
{
    char where[COST_KINDS][64];
    for (int kind = 0; kind < COST_KINDS; kind++)
        if (s->stops[kind] > 0)
            snprintf(where[kind], sizeof where[kind], "at %" PRId64 " ranks", s->stops[kind]);
        else
            snprintf(where[kind], sizeof where[kind], "not up to %" PRId64, s->plan->most_ranks);
    report_say(document, REPORT_SUMMARY,
               "projection, %s, %s scaling: DP's master saturates %s, a parameter server "
               "%s; DDP stops scaling: ring %s, tree %s, hierarchical %s",
               model_kind_name(s->model), scaling_name(s->scaling), where[COST_MASTER],
               where[COST_SERVER], where[COST_RING], where[COST_TREE], where[COST_HIERARCHICAL]);
}

static json_t *curve_json(const scene *s, cost_kind kind)
{
    json_t *curve = json_object(), *ranks = json_array(), *speeds = json_array();
    json_t *efficiencies = json_array();
    for (int64_t n = 1; n > 0; n = next_ranks(s->plan, n)) {
        json_array_append_new(ranks, json_integer(n));
        json_array_append_new(speeds, report_number(speed(s, kind, n), 6));
        json_array_append_new(efficiencies, report_number(efficiency(s, kind, n), 4));
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

/* The curve of one kind, and a dot where it stops. */
static void add_curve(const scene *s, plot_writer *p, cost_kind kind)
{
    /* Told apart also where two lie on one another, and without telling red from green. */
    const char *const colours[COST_KINDS] = {[COST_RING] = mode_colours[STRATEGY_DDP],
                                             [COST_TREE] = "#009e73",
                                             [COST_HIERARCHICAL] = "#56b4e9",
                                             [COST_SERVER] = mode_colours[STRATEGY_PS],
                                             [COST_MASTER] = mode_colours[STRATEGY_DP]};
    const char *verb = cost_kind_is_ddp(kind) ? "stops scaling" : "saturates";
    bool dashed = kind == COST_HIERARCHICAL || kind == COST_MASTER;
    char where[TEXT_BYTES];
    if (s->stops[kind] > 0)
        snprintf(where, sizeof where, "%s at %" PRId64 " ranks", verb, s->stops[kind]);
    else
        snprintf(where, sizeof where, "no end up to %" PRId64 " ranks", s->plan->most_ranks);
    plot_curve(p, "title '%s: %s' with lines linewidth 2 linecolor '%s' dashtype %d",
               cost_kind_name(kind), where, colours[kind], dashed ? 4 : 1);
    for (int64_t n = 1; n > 0; n = next_ranks(s->plan, n))
        plot_point(p, "%" PRId64 " %.6g", n, speed(s, kind, n));
    if (s->stops[kind] == 0)
        return;
    plot_curve(p, "notitle with points pointtype 7 pointsize 1.3 linecolor '%s'", colours[kind]);
    plot_point(p, "%" PRId64 " %.6g", s->stops[kind], speed(s, kind, s->stops[kind]));
}

static void plot_scene(const char *folder, json_t *document, const scene *s)
{
    char name[NAME_BYTES], title[TEXT_BYTES + 32], text[TEXT_BYTES], caption[TEXT_BYTES];
    plot_writer p;
    double alone = speed(s, COST_RING, 1);
    name_scaling(s, text);
    snprintf(title, sizeof title, "PROJECTION, not measured: %s", text);
    if (plot_open(&p, &(plot_labels){title, "ranks", "images per second"}) != STATUS_OK)
        return;
    plot_set(&p, "set logscale xy 10\nset format x '10^{%%L}'\nset format y '10^{%%L}'\nset grid\n"
                 "set key left top Left reverse samplen 3 font ',11'");
    plot_set(&p, "set xrange [1:%" PRId64 "]\nset yrange [*:%.6g]", s->plan->most_ranks,
             100 * alone * (double)s->plan->most_ranks);
    plot_function(&p, "x * %.6g title 'perfect' with lines dashtype 3 linecolor 'gray40'", alone);
    for (int kind = 0; kind < COST_KINDS; kind++)
        add_curve(s, &p, (cost_kind)kind);
    snprintf(name, sizeof name, "scaling_projection_%s_%s", model_kind_name(s->model),
             scaling_name(s->scaling));
    snprintf(caption, sizeof caption,
             "Projection, not measured: %s, %s scaling. A dot marks where twice the ranks bring "
             "less than a tenth more images per second.",
             model_kind_name(s->model), scaling_name(s->scaling));
    plot_finish(&p, document, folder, name, caption);
}

static json_t *link_json(cost_link link)
{
    json_t *object = json_object();
    report_set_number(object, "latency_us", link.latency_s * 1e6, 6);
    report_set_number(object, "gbps", 8e-9 / link.s_per_byte, 6);
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
    report_set_number(object, "image_us", s->work.image_s * 1e6, 6);
    report_set_number(object, "step_us", s->work.step_s * 1e6, 6);
    report_set_number(object, "backward_share", s->work.backward_share, 4);
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
    report_say(document, REPORT_LIMITS,
               "The projection is arithmetic: %lld ranks a node, %g us and %g Gb/s between "
               "nodes, %g us and %g Gb/s inside, every rank equally fast, no contention in "
               "the network. It shows what limits each way, not what a cluster would reach.",
               (long long)plan->cluster.ranks_per_node, plan->cluster.between.latency_s * 1e6,
               8e-9 / plan->cluster.between.s_per_byte, plan->cluster.inside.latency_s * 1e6,
               8e-9 / plan->cluster.inside.s_per_byte);
    report_say(document, REPORT_LIMITS,
               "DataParallel is one process on one machine: beyond %lld replicas its curve "
               "is that of a master which reaches them over the network, as point-to-point "
               "copies; no program runs it so.",
               (long long)plan->cluster.ranks_per_node);
}

static void project_model(const scaling_plan *plan, const cost_work *work, model_kind model,
                          const char *folder, json_t *document)
{
    static const cost_scaling scalings[] = {COST_WEAK, COST_STRONG};
    json_t *projection = json_object_get(document, "projection");
    for (int i = 0; i < 2; i++) {
        scene s = set_scene(plan, model, *work, scalings[i]);
        add_work(projection, &s);
        add_table(document, &s);
        say_where(document, &s);
        for (int kind = 0; kind < COST_KINDS; kind++)
            json_array_append_new(json_object_get(projection, "curves"),
                                  curve_json(&s, (cost_kind)kind));
        plot_scene(folder, document, &s);
    }
}

void scaling_project(const scaling_view *view, const char *folder, json_t *document)
{
    const bench_list *models = &view->plan->models;
    json_object_set_new(document, "projection", projection_json(view->plan));
    say_limits(document, view->plan);
    for (int i = 0; i < models->n; i++) {
        cost_work work;
        model_kind model = (model_kind)models->values[i];
        if (scaling_project_work(view, model, &work) == STATUS_OK) {
            project_model(view->plan, &work, model, folder, document);
            continue;
        }
        LOG_W("no projection of %s", status_text());
        report_say(document, REPORT_NOTES, "no projection of %s", status_text());
    }
}
