/* The lines of metrics.jsonl: printed, and cut off after a step. */
#ifndef MNIST_DDP_APP_TRAIN_METRICS_LINES_H
#define MNIST_DDP_APP_TRAIN_METRICS_LINES_H

#include "app/train/metrics.h"

#include <stddef.h>

enum { METRICS_LINE_BYTES = 400 }; /* of any line, at most */

/* Writes the line and its newline to `out` (METRICS_LINE_BYTES); returns its length. */
size_t metrics_lines_print(const metrics_entry *entry, double time_s, char *out);

/* What was there. */
typedef struct metrics_lines_found {
    double time_s; /* of the last line that stays; 0: there is none */
    unsigned cut;  /* 1u << metrics_event of each test that was cut off and is of from->step */
} metrics_lines_found;

/* Opens the file to be appended to, made if it is missing. All from the first line on is cut off
 * that is about a step after from->step, ends an epoch after from->epochs or is the test at the
 * run's end after that step; so is a last line that is torn or names no step. Such a line before
 * others stays, with one warning. A file that has no other line is kept as "<path>.damaged", with a
 * warning. STATUS_IO if the file cannot be opened, read, cut or kept, STATUS_INVALID if it is no
 * file, STATUS_NO_MEMORY: nothing is cut off. */
status metrics_lines_open(const char *path, const metrics_options *from, int *fd,
                          metrics_lines_found *found);

#endif
