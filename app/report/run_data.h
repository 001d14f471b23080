/* What a run's folder says of it: config.json, metrics.jsonl, result.json. A run that is under way,
 * was killed or comes from an older program has some of them. */
#ifndef MNIST_DDP_APP_REPORT_RUN_DATA_H
#define MNIST_DDP_APP_REPORT_RUN_DATA_H

#include "base/status.h"

#include <jansson.h>

/* JSON that is missing is NULL: jansson's functions take that for a value without members. */
typedef struct run_data {
    const char *folder; /* the caller's */
    char name[64];      /* the last part of its path */
    json_t *config;     /* app/common/run_config.h */
    json_t *result;     /* of docs/run-folder.md */
    json_t *eval;       /* likewise */
    json_t *lines;      /* an array: those of metrics.jsonl that can be read */
} run_data;

/* STATUS_INVALID if the folder has none of the files, or one that is no JSON; STATUS_IO if one
 * or the folder cannot be read. run_data_close accepts a zeroed one. */
status run_data_read(const char *folder, run_data *out);
void run_data_close(run_data *run);

/* The points of a curve: `key` over the step, and over the seconds since the run's start. */
typedef struct run_curve {
    double *x, *time_s, *y; /* (n), one allocation: free x */
    int n;
    int every; /* so many of the file's points make one here, their mean */
} run_curve;

/* At most `max_points`, of the lines of one event ("step"): a value that is null is NAN. With
 * `event` NULL, of all lines that have a number there. STATUS_NO_MEMORY. */
status run_data_curve(const run_data *run, const char *event, const char *key, int max_points,
                      run_curve *out);

/* The number under `key`; NAN if there is none. */
double run_data_number(const json_t *object, const char *key);

#endif
