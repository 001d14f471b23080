/* report.html of one run, or of several overlaid: curves, phases, what was learned, settings and
 * machine. */
#ifndef MNIST_DDP_APP_REPORT_RUN_PAGE_H
#define MNIST_DDP_APP_REPORT_RUN_PAGE_H

#include "base/status.h"

#include <jansson.h>

struct options;

enum { RUN_PAGE_MAX = 8 }; /* runs on one page: each has a colour */

/* Writes the page of these folders to `path`, whole or not at all. STATUS_INVALID if one is no
 * folder of a run (run_data_read), or for more than RUN_PAGE_MAX. */
status run_page_write(const char *path, const char *const *folders, int n);

/* What a run's folder says of it: config.json, metrics.jsonl, result.json. A run that is under way,
 * was killed or comes from an older program has some of them. JSON that is missing is NULL:
 * jansson's functions take that for a value without members. */
typedef struct run_data {
    const char *folder; /* the caller's */
    char name[64];      /* the last part of its path */
    json_t *config;     /* app/common/run_files.h */
    json_t *result;     /* as docs/run-folder.md says */
    json_t *eval;       /* likewise */
    json_t *lines;      /* an array: those of metrics.jsonl that can be read */
} run_data;

/* STATUS_INVALID if the folder has none of the files, or one that is no JSON; STATUS_IO if one
 * or the folder cannot be read. run_data_close accepts a zeroed one. */
status run_data_read(const char *folder, run_data *out);
void run_data_close(run_data *run);

/* `report`: the page of the runs that are named, or of the newest; prints its path. */
int report_command(const struct options *opts);

#endif
