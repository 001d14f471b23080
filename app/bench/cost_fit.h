/* What a training step costs on this machine, where ranks share cores and memory: eight named
 * terms, fitted to measurements. The fit then predicts other numbers of ranks.
 *
 * W ranks of b images each on P cores; s = max(1, W / P) ranks to a core; n bytes to all-reduce, or
 * p bytes of parameters.
 *
 *   term        unit      what it is                                     it counts
 *   latency     s         an all-reduce of several ranks, of any size    once
 *   bandwidth   s/byte    bytes through memory, one rank of a core       n s      all-reduce, DDP
 *                         after the other                                n (W-1)  server, master
 *   switching   s         an all-reduce waits for a core                 s - 1
 *   image[]     s         forward and backward of an image, by model     b s
 *   optimizer   s/byte    the optimizer, and what else a step costs      p s
 *                         whatever its batch
 *   meeting     s         the ranks of a step wait for the last of them  once, of several ranks
 *   sharing     s         a round of a step waits for a core             r (s - 1)
 *
 *   all-reduce   latency + bandwidth + switching     nothing for one rank
 *   step         image + optimizer + meeting + sharing + bandwidth
 *
 * Rounds r: how often the ranks of a step compute and then wait for one another. DDP and a server:
 * 1, for the gradients; DP: 3, for the logits, the gradients of the logits, and the gradients.
 *
 * First the three terms of all-reduces are fitted, then the others, each time by least squares of
 * relative errors, from the normal equations. No term is negative: the most negative one is left
 * out and the rest fitted again.
 */
#ifndef MNIST_DDP_APP_BENCH_COST_FIT_H
#define MNIST_DDP_APP_BENCH_COST_FIT_H

#include "base/status.h"
#include "model/model_kind.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum cost_sample_kind {
    COST_SAMPLE_ALL_REDUCE,
    COST_SAMPLE_DDP, /* and one rank alone */
    COST_SAMPLE_SERVER,
    COST_SAMPLE_MASTER,
    COST_SAMPLE_KINDS,
} cost_sample_kind;

typedef struct cost_sample {
    cost_sample_kind kind;
    int model;              /* a model_kind; 0 of an all-reduce */
    int ranks;              /* or replicas */
    double images;          /* per rank and step; 0 of an all-reduce */
    double parameter_bytes; /* of the model; 0 of an all-reduce */
    double bytes;           /* of an all-reduce; of DDP's gradients; to and from one other rank of a
                               server or a master */
    double seconds;         /* measured: of the all-reduce, or of the step */
    bool held_out;          /* not to be fitted: to be predicted */
} cost_sample;

typedef struct cost_fit {
    int cores;
    double latency_s, s_per_byte, switching_s;
    double image_s[MODEL_COUNT];
    double optimizer_s_per_byte, meeting_s, sharing_s;
} cost_fit;

/* Fits what is not held out. STATUS_INVALID if there are no steps, or no all-reduces although
 * there are steps of DDP with several ranks, or if a sample makes no sense. */
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
