/* The measurements of `bench scaling`: children, repeated in turn. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_MEASURE_H
#define MNIST_DDP_APP_BENCH_SCALING_MEASURE_H

#include "app/bench/child.h"
#include "app/bench/scaling_plan.h"
#include "app/bench/stats.h"

#include <jansson.h>

/* One case and all that was measured of it. */
typedef struct scaling_series {
    cost_sample sample; /* its seconds: the median so far */
    double *values;     /* seconds, (n) */
    int n, room;
    bench_summary summary;
} scaling_series;

typedef struct scaling_measurements {
    scaling_series *series;
    size_t n, room;
    double backward_s[MODEL_COUNT], forward_s[MODEL_COUNT]; /* of all steps of one rank */
} scaling_measurements;

/* Adds one value to its series (same kind, model, ranks, images and bytes), or begins one. */
status scaling_add(scaling_measurements *m, const cost_sample *sample, double seconds);

/* Runs plan->runs plan->repeats times. A child that fails is logged, noted in the document and left
 * out; a signal ends it with what there is. */
status scaling_measure(const options *opts, const scaling_plan *plan, bench_child *place,
                       json_t *document, scaling_measurements *out);
void scaling_measurements_free(scaling_measurements *m);

/* The series' samples, for a fit; free with free(). */
status scaling_samples(const scaling_measurements *m, cost_sample **out);

#endif
