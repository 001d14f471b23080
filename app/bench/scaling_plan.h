/* What `bench scaling` measures, fits and projects: its settings in their final form. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_PLAN_H
#define MNIST_DDP_APP_BENCH_SCALING_PLAN_H

#include "app/bench/cases.h"
#include "app/bench/cost_fit.h"
#include "app/bench/cost_model.h"
#include "app/options/options.h"
#include "app/train/strategy.h"
#include "model/network.h"

enum { SCALING_MAX_RUNS = 1024 };

/* One child process. */
typedef struct scaling_run {
    cost_sample_kind kind;
    model_kind model; /* of steps */
    int ranks;        /* or replicas */
    int batch;        /* images per rank and step */
} scaling_run;

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

#endif
