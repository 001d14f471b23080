/* The benchmark's rows, as nccl-tests prints them, and as JSON. */
#ifndef MNIST_DDP_APP_BENCH_ALL_REDUCE_REPORT_H
#define MNIST_DDP_APP_BENCH_ALL_REDUCE_REPORT_H

#include "app/bench/all_reduce.h"

#include <jansson.h>
#include <stdio.h>

typedef struct all_reduce_report {
    FILE *out;    /* for people; NULL: nothing is printed */
    json_t *rows; /* an array */
    int world_size;
    double busbw_sum; /* over all rows, both ways */
    int64_t wrong;
} all_reduce_report;

/* Begins with "# ..." lines: what is measured, and the columns' names. */
status all_reduce_report_open(FILE *out, int world_size, all_reduce_report *report);
void all_reduce_report_row(all_reduce_report *report, const all_reduce_row *row);

/* The last lines: wrong elements and the mean bus bandwidth. */
void all_reduce_report_end(all_reduce_report *report);

/* {"rows": [...], "mean_busbw": GB/s, "wrong": N}; a new reference. */
json_t *all_reduce_report_json(const all_reduce_report *report);
void all_reduce_report_close(all_reduce_report *report);

#endif
