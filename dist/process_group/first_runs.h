/* Which collectives of a group run for the first time. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_FIRST_RUNS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_FIRST_RUNS_H

#include "dist/collective/process_group_ops.h"

#include <stdbool.h>

enum { FIRST_RUNS_MOST = 64 };

/* {0}: none so far. */
typedef struct first_runs {
    int n;
    struct {
        collective_kind kind;
        dtype type;
        int root;
        size_t count;
    } seen[FIRST_RUNS_MOST];
} first_runs;

/* Notes the collective; whether none of its kind, type, size and root or peer was noted before.
 * Beyond FIRST_RUNS_MOST of them none counts as the first. */
bool first_runs_note(first_runs *runs, const collective *c);

#endif
