/* The lines of metrics.jsonl: printed, and cut off after a step. */
#ifndef MNIST_DDP_APP_TRAIN_METRICS_LINES_H
#define MNIST_DDP_APP_TRAIN_METRICS_LINES_H

#include "app/train/metrics.h"

#include <stddef.h>

enum { METRICS_LINE_BYTES = 320 }; /* of any line, at most */

/* Writes the line and its newline to `out` (METRICS_LINE_BYTES); returns its length. */
size_t metrics_lines_print(const metrics_entry *entry, double time_s, char *out);

/* Opens the file to be appended to, made if it is missing. Lines about steps after `step` are cut
 * off, and so is all from the first line on that is torn or no JSON object. *time_s: of the last line
 * that stays; 0: there is none. STATUS_IO if the file cannot be opened, read or cut, STATUS_INVALID
 * if it is no file. */
status metrics_lines_open(const char *path, int64_t step, int *fd, double *time_s);

#endif
