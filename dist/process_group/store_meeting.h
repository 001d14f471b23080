/* The ranks of a group meet in the store, past the backend: again and again, each time under the
 * next number. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_STORE_MEETING_H
#define MNIST_DDP_DIST_PROCESS_GROUP_STORE_MEETING_H

#include "dist/membership/membership.h"
#include "dist/process_group/process_group.h"

typedef struct store_meeting {
    const char *name; /* part of its keys: keys.h */
    uint64_t number;  /* from 1; all ranks count alike */
    const char *record;
    const char *of; /* what they come to: "barrier #3" */
    int64_t timeout_ms;
    status (*compare)(void *ctx, char *const records[], char **outcome); /* as a meeting's */
    void *ctx;
} store_meeting;

/* Returns once all ranks of the group have come, with compare's verdict. The same failure on all of
 * them; STATUS_TIMEOUT names all that have not come. Deletes the keys of the meeting before. */
status store_meeting_hold(process_group *group, const store_meeting *what);

#endif
