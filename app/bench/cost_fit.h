/* The cost of steps on this machine, where ranks share cores and memory: a model with coefficients
 * that are fitted to measurements, and then predicts other numbers of ranks.
 *
 * With W ranks of b images each on P cores, s = max(1, W / P) ranks to a core, and u = ceil(s) - s,
 * what the fullest core has more than the others:
 *
 *   all-reduce of n bytes   a1 + a2 (W-1) + a3 (s-1) + a4 n s + a5 n s 2(W-1)/W + a6 n (s-1)
 *                           meeting at all, looking at each of the others, being scheduled where
 *                           cores are too few; memory traffic of a shared-memory all-reduce, and of
 *                           a ring's parts; what caches lose when ranks take turns
 *   computation             c1 b s + c2 b (min(W, P) - 1) + c3 b (s-1) + c4 s + c5 b u
 *                           images one after the other on a core; slower the more cores compete for
 *                           memory; what switching costs; optimizer and overhead, once per step;
 *                           cores that wait for the fullest one
 *   DDP                     computation + d1 (all-reduce of the gradients) + d2 (s-1) + d3 u
 *                           d1: the exposed share, below 1 with overlap, above where ranks come
 * late server, master          computation, with c4 on rank 0 alone, + m1 + m2 (s-1)
 *                           + m3 (W-1) (bytes to and from one rank) + m4 s (the same bytes)
 *                           rank 0 moves everything itself, or all ranks move their own
 *
 * All coefficients are >= 0; c of every model, the others shared by all. Their sum of absolute
 * relative errors is least, nearly. First the all-reduces are
 * fitted, then the steps.
 */
#ifndef MNIST_DDP_APP_BENCH_COST_FIT_H
#define MNIST_DDP_APP_BENCH_COST_FIT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    COST_FIT_MODELS = 2,
    COST_FIT_ALL_REDUCE = 6, /* a1 to a6 */
    COST_FIT_COMPUTE = 5,    /* c1 to c5 */
    COST_FIT_DDP = 3,
    COST_FIT_STAR = 4,
};

typedef enum cost_sample_kind {
    COST_SAMPLE_ALL_REDUCE,
    COST_SAMPLE_DDP, /* and one rank alone */
    COST_SAMPLE_SERVER,
    COST_SAMPLE_MASTER,
    COST_SAMPLE_KINDS,
} cost_sample_kind;

typedef struct cost_sample {
    cost_sample_kind kind;
    int model;      /* < COST_FIT_MODELS; 0 of an all-reduce */
    int ranks;      /* or replicas */
    double images;  /* per rank and step; 0 of an all-reduce */
    double bytes;   /* of an all-reduce; of DDP's gradients; to and from one rank in a star */
    double seconds; /* measured: of the all-reduce, or of the step */
    bool held_out;  /* not to be fitted: to be predicted */
} cost_sample;

typedef struct cost_fit {
    int cores;
    double all_reduce[COST_FIT_ALL_REDUCE];
    double compute[COST_FIT_MODELS][COST_FIT_COMPUTE];
    double ddp[COST_FIT_DDP];
    double star[2][COST_FIT_STAR]; /* server, master */
} cost_fit;

/* Fits what is not held out. STATUS_INVALID where there are no steps, or no all-reduces although
 * steps of DDP with several ranks are there, or a sample makes no sense. */
status cost_fit_make(const cost_sample *samples, size_t n, int cores, cost_fit *out);

/* Seconds. */
double cost_fit_predict(const cost_fit *fit, const cost_sample *sample);

/* Median and largest of |predicted - measured| / measured over the samples that are held out, or
 * that are not, of kinds in the set (bits 1 << kind). */
typedef struct cost_error {
    size_t samples; /* 0: then the others mean nothing */
    double median, most;
} cost_error;
cost_error cost_fit_error(const cost_fit *fit, const cost_sample *samples, size_t n, unsigned kinds,
                          bool held_out);

enum {
    COST_SAMPLES_OF_STEPS =
        1 << COST_SAMPLE_DDP | 1 << COST_SAMPLE_SERVER | 1 << COST_SAMPLE_MASTER,
};

#endif
