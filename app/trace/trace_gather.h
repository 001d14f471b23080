/* How the ranks' parts of a trace become one file. */
#ifndef MNIST_DDP_APP_TRACE_TRACE_GATHER_H
#define MNIST_DDP_APP_TRACE_TRACE_GATHER_H

#include "dist/store/store.h"

#include <stdbool.h>

/* How the run came to its end. */
typedef enum trace_ending {
    TRACE_DONE,
    TRACE_STOPPED, /* all ranks, at a step that they agreed on */
    TRACE_FAILED,  /* some ranks may be gone */
} trace_ending;

typedef struct trace_gathering {
    const char *path; /* of the file */
    store *shared;    /* NULL: there are no other ranks */
    int rank, world_size, attempt;
    trace_ending ending;
    int64_t wait_ms; /* for the others' parts */
} trace_gathering;

/* Replaces the file by one without events: also a run that is killed leaves a trace that can be
 * opened, and a name that cannot be written to shows at the start. */
status trace_gather_start(const trace_gathering *g);

/* `about`: a JSON object, `events`: JSON objects with commas between them; of this rank. Every rank
 * calls it. Rank 0 gets the others' parts through the store and replaces the file by all of them.
 * After a failure it takes what comes within wait_ms; and the first rank that finds rank 0 gone
 * does it in its place, or, if rank 0 has taken the store with it, leaves its own part beside
 * the file, as FILE.rank<r>.
 * *parts: the ranks in the file that this rank has written; 0: it has written none. */
status trace_gather(const trace_gathering *g, const char *about, const char *events, int *parts);

#endif
