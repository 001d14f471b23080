/* The cost model's word on a cluster that is not here: by its numbers, a projection and no
 * measurement. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_PROJECTION_H
#define MNIST_DDP_APP_BENCH_SCALING_PROJECTION_H

#include "app/bench/scaling_measure.h"

/* A rank of the cluster, at this model: the plan's --images-per-s and no other cost per step, or
 * what the fit says of one rank here, or where it finds no cost per image, its measured step as if
 * that were all of it. STATUS_INVALID where none tells. */
status scaling_project_work(const scaling_plan *plan, const cost_fit *fit,
                            const scaling_measurements *measured, model_kind model, bool overlap,
                            cost_work *out);

/* Adds to the document, for every model and both kinds of scaling: a table, a plot in opts->out
 * (with gnuplot), the figures as "projection", and in words where DP's master and the server
 * saturate and where DDP stops scaling. */
void scaling_project(const options *opts, const scaling_plan *plan, const cost_fit *fit,
                     const scaling_measurements *measured, json_t *document);

#endif
