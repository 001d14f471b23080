/* mnist_ddp bench scaling: what steps and all-reduces take, by the number of ranks. What they would
 * take elsewhere is bench/scaling.py's to say. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_H
#define MNIST_DDP_APP_BENCH_SCALING_H

#include "app/options/options.h"
#include "app/train/strategy.h"
#include "base/status.h"
#include "model/model_kind.h"

#include <stdbool.h>

enum { SCALING_MAX_RUNS = 1024 };

/* One child process. */
typedef struct scaling_run {
    bool is_all_reduce; /* of several sizes; then mode, model and batch mean nothing */
    strategy_kind mode;
    model_kind model;
    int ranks; /* or replicas */
    int batch; /* images per rank and step */
} scaling_run;

typedef struct scaling_plan {
    scaling_run runs[SCALING_MAX_RUNS]; /* of one repeat */
    int n_runs;
    int cores; /* that ranks share: cores by threads, or GPUs */
    int gpus;  /* 0: the CPU computes */
} scaling_plan;

/* STATUS_INVALID if a list makes no sense. */
status scaling_plan_make(const options *opts, scaling_plan *out);

/* Of a step: DDP's gradients; what rank 0 of a server or a master exchanges with one other rank. */
double scaling_bytes(const scaling_run *run);

/* Of the bucket that DDP fills last, by default. */
double scaling_last_bucket_bytes(model_kind model);

#endif
