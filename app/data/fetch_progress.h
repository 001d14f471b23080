/* How far a fetching is: a status line on a terminal, else a line of the log every two seconds. */
#ifndef MNIST_DDP_APP_DATA_FETCH_PROGRESS_H
#define MNIST_DDP_APP_DATA_FETCH_PROGRESS_H

#include "app/common/status_line.h"

#include <stdint.h>

enum { FETCH_NAME_BYTES = 64 };

/* Begins zeroed, and stays where it is while it is open. */
typedef struct fetch_progress {
    status_line line;
    int64_t started_ns, next_line_ns;
    int64_t ended_ns;     /* 0: it is open */
    uint64_t all_bytes;   /* of all files */
    pthread_mutex_t lock; /* of what follows: the status line's thread reads it */
    bool open;
    char name[FETCH_NAME_BYTES]; /* of the file under way */
    uint64_t before_bytes;       /* of the files before it */
    uint64_t done_bytes;         /* of it */
    uint64_t came_bytes;         /* of all files; without what was there before */
    bool begins;                 /* nothing was told of the file yet */
} fetch_progress;

/* quiet: nothing is shown. */
void fetch_progress_open(uint64_t all_bytes, bool quiet, fetch_progress *out);

/* The next file, from its beginning. */
void fetch_progress_next(fetch_progress *p, const char *name);

/* So much of the file is there; the first time for a file: was there. Less than the last time: it
 * begins anew. A download_tell. */
void fetch_progress_tell(void *ctx, uint64_t done_bytes);

/* Seconds since it was opened, until it was closed. */
double fetch_progress_s(const fetch_progress *p);

void fetch_progress_close(fetch_progress *p); /* accepts a zeroed one */

#endif
