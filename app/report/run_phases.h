/* Where the time of a run's steps went: result.json's phases as a bar, and what each of them is. */
#ifndef MNIST_DDP_APP_REPORT_RUN_PHASES_H
#define MNIST_DDP_APP_REPORT_RUN_PHASES_H

#include "app/report/run_data.h"

#include <stdio.h>

/* A heading and a bar per run. A run without phases, as one that goes on or was interrupted, has a
 * sentence. */
void run_phases_write(FILE *out, const run_data *runs, int n);

#endif
