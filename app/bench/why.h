/* Why a run is as fast as it is: one sentence, made from where its time goes by stated rules.
 *
 * Each rule looks at the medians of one row (and of the run on one device beside it), and either
 * does not apply or names a cause and the share of the step that it explains. The sentence tells
 * the causes with the largest shares. A number that is not known (NAN) fulfils no condition.
 */
#ifndef MNIST_DDP_APP_BENCH_WHY_H
#define MNIST_DDP_APP_BENCH_WHY_H

#include "app/bench/cases.h"
#include "app/bench/measure.h"

typedef struct bench_facts {
    strategy_kind mode;
    int world, global_batch;
    int threads, cores; /* per rank or replica; of the machine */
    bool is_cuda;
    double step_s;            /* of which the phases are parts; NAN: not known */
    double phase_s[N_PHASES]; /* per step */
    double comm_total_s;      /* per step, from launch to end, hidden or not */
    double base_compute_s;    /* forward + backward of one image on one device alone */
    int base_batch;           /* images at a time there */
} bench_facts;

enum { BENCH_WHY_BYTES = 400 };
void bench_why(const bench_facts *facts, char out[BENCH_WHY_BYTES]);

/* Rule i (from 0) in words, for the documentation in each report; NULL after the last. */
const char *bench_why_rule(int i);

#endif
