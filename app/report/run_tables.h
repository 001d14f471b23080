/* Settings, facts and machine of one run or several: a row per name, a column per run. Of
 * several runs, rows in which they differ are marked and the others folded away. */
#ifndef MNIST_DDP_APP_REPORT_RUN_TABLES_H
#define MNIST_DDP_APP_REPORT_RUN_TABLES_H

#include "app/report/run_data.h"

#include <stdio.h>

void run_tables_write(FILE *out, const run_data *runs, int n);

/* One paragraph: in which settings, and on which machine, the runs differ. */
void run_tables_differences(FILE *out, const run_data *runs, int n);

/* The run's name after a patch of its colour. */
void run_tables_key(FILE *out, const run_data *run, int colour);

#endif
