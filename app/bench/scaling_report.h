/* Measurements beside what the fitted model says of them. */
#ifndef MNIST_DDP_APP_BENCH_SCALING_REPORT_H
#define MNIST_DDP_APP_BENCH_SCALING_REPORT_H

#include "app/bench/scaling_measure.h"

#define SCALING_GOAL 0.15 /* median error of held-out steps */

/* Adds to the document: the tables of steps and all-reduces, "cases", "fit" and "held_out", the
 * errors in words, and a plot in `folder` (with gnuplot). `fit` NULL: there is none, as after an
 * early stop; then only what was measured. */
status scaling_report(const char *folder, const scaling_plan *plan, const cost_fit *fit,
                      const scaling_measurements *measured, json_t *document);

#endif
