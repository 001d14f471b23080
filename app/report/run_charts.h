/* The curves of one run or several, over the steps of the optimizer. */
#ifndef MNIST_DDP_APP_REPORT_RUN_CHARTS_H
#define MNIST_DDP_APP_REPORT_RUN_CHARTS_H

#include "app/report/run_data.h"

#include <stdio.h>

/* A heading and the charts. With several runs a run's number is its colour. STATUS_NO_MEMORY. */
status run_charts_write(FILE *out, const run_data *runs, int n);

#endif
