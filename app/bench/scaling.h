/* The parts of `mnist_ddp bench scaling`: it measures, tells what it found beside what the fitted
 * model says, and projects. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_H
#define MNIST_DDP_APP_BENCH_SCALING_H

#include "app/bench/cases.h"
#include "app/bench/child.h"
#include "app/bench/cost_fit.h"
#include "app/bench/cost_model.h"
#include "app/bench/stats.h"
#include "app/options/options.h"
#include "app/train/strategy.h"
#include "model/network.h"

#include <jansson.h>

enum { SCALING_MAX_RUNS = 1024 };

/* One child process. */
typedef struct scaling_run {
    cost_sample_kind kind;
    model_kind model; /* of steps */
    int ranks;        /* or replicas */
    int batch;        /* images per rank and step */
} scaling_run;

/* What is measured, fitted and projected: the settings in their final form. */
typedef struct scaling_plan {
    scaling_run runs[SCALING_MAX_RUNS]; /* of one repeat */
    int n_runs;
    bench_list held_out;    /* world sizes that are not fitted */
    bench_list models;      /* model_kinds */
    int cores;              /* that ranks share: cores by threads, or GPUs */
    int gpus;               /* 0: the CPU computes */
    int threads;            /* of a rank */
    int64_t repeats, steps; /* steps: of an epoch */

    cost_cluster cluster; /* of the projection */
    double images_per_s;  /* of one of its devices; <= 0: as measured here */
    int64_t most_ranks;
    int64_t rank_batch;   /* weak scaling: images of a rank */
    int64_t global_batch; /* strong scaling: images of all */
} scaling_plan;

/* Settings not given have defaults of this benchmark. STATUS_INVALID if a list makes no sense,
 * or if nothing would be left to fit. */
status scaling_plan_make(const options *opts, scaling_plan *out);

bool scaling_plan_holds_out(const scaling_plan *plan, int ranks);

/* What a run's steps move and compute, without `seconds`. */
cost_sample scaling_plan_sample(const scaling_plan *plan, const scaling_run *run);

/* What runs the steps of a kind; not of all-reduces. */
strategy_kind scaling_kind_mode(cost_sample_kind kind);

/* "ddp", "ps", "dp", "all-reduce". */
const char *scaling_kind_name(cost_sample_kind kind);

/* What a rank does in a step, but for its times: bytes of gradients, of the bucket that is complete
 * last (DDP's default buckets), of an image and its logits. */
cost_work scaling_work(model_kind model);

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
