/* One measured run, as its JSON line tells of it. */
#ifndef MNIST_DDP_APP_BENCH_SAMPLE_H
#define MNIST_DDP_APP_BENCH_SAMPLE_H

#include "base/status.h"
#include "dist/health/moment.h"

#include <jansson.h>

/* Everything is NAN (peak_mib_count 0) if the line does not say it. */
enum { BENCH_MAX_DEVICES = 64 };
typedef struct bench_sample {
    double images_per_s;      /* of the epochs after the warm-up, together */
    double step_s;            /* of one optimizer step, likewise */
    double whole_step_s;      /* of one optimizer step, over all epochs: what the phases are of */
    double phase_s[N_PHASES]; /* of one optimizer step, over all epochs: of the main thread of
                                 rank 0, or of dp's master */
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
