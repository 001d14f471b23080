/* Which backend a group uses. All its ranks agree on it through the store before any of them opens
 * it: so a mistake on one rank is one clear message on all, not a hang. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_BACKEND_CHOICE_H
#define MNIST_DDP_DIST_PROCESS_GROUP_BACKEND_CHOICE_H

#include "base/status.h"
#include "dist/collective/process_group_ops.h"

#include <stdbool.h>

typedef struct backend_choice {
    const process_group_ops *ops;
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* the group's keys in the store begin so */
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

/* NCCL's settings: it reads them from the environment when a process first uses it. */

/* Sets what this rank's NCCL is to use, while the process has no other thread (setenv) and before
 * it first uses NCCL. What the user has set stays, in the environment or in a file that NCCL reads:
 * $NCCL_CONF_FILE, else ~/.nccl.conf; /etc/nccl.conf.
 *
 *   NCCL_NVLS_ENABLE  unless `nvls`, or NCCL_ALGO is set: 0, so neither NVLS nor NVLSTree. NVLink
 *                     SHARP adds up in the switch, in an order that may change from one call to
 *                     the next; ring and tree keep theirs.
 *   NCCL_DEBUG_FILE   if NCCL_DEBUG is set: stderr; if that is a file, another one beside it.
 *                     NCCL's own default is stdout, to which --json writes its result. */
status nccl_settings_apply(bool nvls);

typedef enum nccl_nvls { NCCL_NVLS_OFF, NCCL_NVLS_ALLOWED, NCCL_NVLS_UNKNOWN } nccl_nvls;

/* Whether NCCL may choose NVLS for an all-reduce, as far as NCCL_ALGO and NCCL_NVLS_ENABLE tell.
 * Ask after NCCL was used: it puts its files' settings into the environment. */
nccl_nvls nccl_settings_nvls(void);

/* "2.28.9", or "" if there is no NCCL. */
enum { NCCL_VERSION_BYTES = 32 };
void nccl_settings_version(char out[NCCL_VERSION_BYTES]);

#endif
