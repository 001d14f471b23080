/* The cost model's word on a cluster that is not here: by its numbers, a projection and no
 * measurement. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_PROJECTION_H
#define MNIST_DDP_APP_BENCH_SCALING_PROJECTION_H

#include "app/bench/scaling_measure.h"

/* What a projection is made from. */
typedef struct scaling_view {
    const scaling_plan *plan;
    const cost_fit *fit;
    const scaling_measurements *measured;
    bool overlap; /* DDP's all-reduces run beside backward */
} scaling_view;

/* What a rank of the cluster does in a step of this model: the plan's --images-per-s and no other
 * cost per step, or what the fit says of one rank here, or, if that has no cost per image, its
 * measured step as if that were all of it. STATUS_INVALID if none tells. */
status scaling_project_work(const scaling_view *view, model_kind model, cost_work *out);

/* Adds to the document, for every model and both kinds of scaling: a table, a plot in `folder`
 * (with gnuplot), the figures as "projection", and in words where DP's master and the server
 * saturate and where DDP stops scaling. */
void scaling_project(const scaling_view *view, const char *folder, json_t *document);

#endif
