/* The parts of `mnist_ddp bench scaling`: it measures, tells what it found beside what the fitted
 * model says, and projects. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_H
#define MNIST_DDP_APP_BENCH_SCALING_H

#include "app/bench/child.h"
#include "app/bench/scaling_plan.h"
#include "app/bench/stats.h"

#include <jansson.h>

#define SCALING_GOAL 0.15 /* median error of held-out steps */

/* One case and all that was measured of it. */
typedef struct scaling_series {
    cost_sample sample; /* its seconds: the median so far */
    double *values;     /* seconds, (n) */
    int n, room;
    bench_summary summary;
} scaling_series;

typedef struct scaling_measurements {
    scaling_series *series;
    size_t n, room;
    double backward_s[MODEL_COUNT], forward_s[MODEL_COUNT]; /* of all steps of one rank */
} scaling_measurements;

/* Adds one value to its series (same kind, model, ranks, images and bytes), or begins one. */
status scaling_add(scaling_measurements *m, const cost_sample *sample, double seconds);

/* Measures plan->runs (app/bench/measure.h). A run that fails is noted in the document and left
 * out. */
status scaling_measure(const options *opts, const scaling_plan *plan, bench_child *place,
                       json_t *document, scaling_measurements *out);
void scaling_measurements_free(scaling_measurements *m);

/* The series' samples, for a fit; free with free(). */
status scaling_samples(const scaling_measurements *m, cost_sample **out);

/* What report and projection are made from. */
typedef struct scaling_view {
    const scaling_plan *plan;
    const cost_fit *fit; /* NULL: there is none, as after an early stop; not of a projection */
    const scaling_measurements *measured;
    bool overlap; /* DDP's all-reduces run beside backward */
} scaling_view;

/* Adds to the document: the tables of steps and all-reduces, and "cases"; with a fit also "fit" and
 * "held_out", the errors in words, and a plot in `folder`. `samples`: those of the series. */
void scaling_report(const scaling_view *view, const cost_sample *samples, const char *folder,
                    json_t *document);

/* What a rank of the cluster does in a step of this model: the plan's --images-per-s and no other
 * cost per step, or what the fit says of one rank here, or, if that has no cost per image, its
 * measured step as if that were all of it. STATUS_INVALID if none tells. */
status scaling_project_work(const scaling_view *view, model_kind model, cost_work *out);

/* Adds to the document the cost model's word on a cluster that is not here, by its numbers a
 * projection and no measurement: for every model and both kinds of scaling a table, a plot in
 * `folder`, the figures as "projection", and in words where DP's master and the server saturate and
 * where DDP stops scaling. */
void scaling_project(const scaling_view *view, const char *folder, json_t *document);

#endif
