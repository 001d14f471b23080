/* One measured run, as its JSON line tells of it. */
#ifndef MNIST_DDP_APP_BENCH_SAMPLE_H
#define MNIST_DDP_APP_BENCH_SAMPLE_H

#include "base/status.h"

#include <jansson.h>

/* Where the main thread of rank 0 (dp: of the master) spends a step; "phases" of the line. */
typedef enum bench_phase {
    BENCH_DATA,
    BENCH_BROADCAST, /* parameters to replicas or ranks */
    BENCH_SCATTER,   /* inputs to replicas */
    BENCH_FORWARD,
    BENCH_GATHER, /* logits to the master, their gradients back */
    BENCH_BACKWARD,
    BENCH_REDUCE,  /* gradients */
    BENCH_WAITING, /* for a replica or rank that still computes */
    BENCH_OPTIMIZER,
    BENCH_ACCELERATOR, /* all of it, if the host only enqueues */
    BENCH_PHASES,
} bench_phase;

const char *bench_phase_name(bench_phase phase);

/* Everything is NAN (peak_mib_count 0) if the line does not say it. */
enum { BENCH_MAX_DEVICES = 64 };
typedef struct bench_sample {
    double images_per_s; /* of the epochs after the warm-up, together */
    double step_s;       /* of one optimizer step, likewise */
    double whole_step_s; /* of one optimizer step, over all epochs: what the phases are of */
    double phase_s[BENCH_PHASES];                      /* of one optimizer step, over all epochs */
    double comm_total_s, comm_exposed_s;               /* likewise */
    double sent_bytes, received_bytes;                 /* rank 0's, of one optimizer step */
    double sent_busiest_bytes, received_busiest_bytes; /* the busiest rank's */
    double peak_mib[BENCH_MAX_DEVICES];                /* per rank or replica */
    int peak_mib_count;
    double test_acc, last_loss;
} bench_sample;

/* Reads a line. `global_batch`: images of an optimizer step. STATUS_PEER if it is not a run of more
 * epochs than `warmup`. */
status bench_sample_read(const json_t *line, int warmup, int global_batch, bench_sample *out);

#endif
