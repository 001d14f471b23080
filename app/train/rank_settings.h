/* What a rank was asked for, in its final form: names have become kinds, and defaults numbers. */
#ifndef MNIST_DDP_APP_TRAIN_RANK_SETTINGS_H
#define MNIST_DDP_APP_TRAIN_RANK_SETTINGS_H

#include "app/options/options.h"
#include "app/options/training_values.h"
#include "dist/rendezvous.h"
#include "model/network.h"
#include "model/optimizer.h"
#include "model/schedule.h"

typedef struct rank_settings {
    model_kind model;
    optimizer_options optimizer;
    schedule_options schedule; /* without its numbers of steps: rank_context.h has those */
    double lr;                 /* as set; schedule.lr is rank_settings_lr of it */
    double weight_decay;
    adam_betas betas;
    double clip_grad_norm; /* 0: gradients are not clipped */
    augment augment;       /* for training images */
    interval eval_every;
    int batch_size; /* one batch's, per rank */
    int replicas;   /* how many share the rank's batches: 1, but with --mode=dp */
    int threads;    /* per rank or replica */
} rank_settings;

/* Looks at what depends on the number of ranks, so that it is said once, before any is started; in
 * an elastic job nobody knows yet how many will begin. STATUS_INVALID: --global-batch-size,
 * --inject. */
status rank_settings_check(const options *opts, int world_size, bool is_elastic);

/* What stays in an elastic job, as --elastic-batch spells it. */
const char *rank_settings_elastic_batch(const options *opts);

/* The learning rate of so many ranks: with --scale-lr `lr` times them. */
double rank_settings_lr(const options *opts, double lr, int64_t world_size);

/* Of each rank or replica: --threads, else an even share of the cores for so many ranks. */
int rank_settings_threads(const options *opts, int ranks, int replicas);

/* STATUS_INVALID with what is wrong. */
status rank_settings_read(const options *opts, const rendezvous_place *place, rank_settings *out);

#endif
