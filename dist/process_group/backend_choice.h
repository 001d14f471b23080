/* Which backend a group uses. All its ranks agree on it through the store before any of them opens
 * it: so a mistake on one rank is one clear message on all, not a hang. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_BACKEND_CHOICE_H
#define MNIST_DDP_DIST_PROCESS_GROUP_BACKEND_CHOICE_H

#include "dist/collective/process_group_ops.h"

#include <stdbool.h>

typedef struct backend_choice {
    const process_group_ops *ops;
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* of the group's keys in the store */
    bool one_host; /* all ranks share host, network and process namespace, and user */
    int *hosts;    /* and the next: as in group_setup; the caller frees it */
    const process_group_ops *between;
} backend_choice;

/* STATUS_INVALID, with the names that exist, if `name` (or NULL) is none of them. */
status backend_choice_check(const char *name);

/* STATUS_INVALID if `name` is a backend for GPUs only, for ranks that compute on the CPU. */
status backend_choice_check_cpu(const char *name);

/* Returns once every rank is there, within process_group_patience_ms(options): else STATUS_TIMEOUT
 * with the first missing rank. STATUS_INVALID if ranks disagree on backend, world_size or
 * shared_bytes, if shm is asked for and they are not on one host, or nccl and not every rank has a
 * GPU of its own; the module's error if the backend cannot be opened. All ranks return the same. */
status backend_choice_make(const process_group_options *options, backend_choice *out);

#endif
