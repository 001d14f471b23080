/* What the model of a run has learned, by its eval.json (docs/run-folder.md): confusion matrix,
 * accuracy of each class, the worst mistakes, the filters of the first layer. */
#ifndef MNIST_DDP_APP_REPORT_RUN_EVAL_H
#define MNIST_DDP_APP_REPORT_RUN_EVAL_H

#include "app/report/run_data.h"

#include <stdio.h>

extern const char RUN_EVAL_STYLE[]; /* CSS */

/* Of one run all; of several each one's matrix and first mistakes. Of a run without the file, why
 * it may have none and how to get it. STATUS_NO_MEMORY. */
status run_eval_write(FILE *out, const run_data *runs, int n);

#endif
