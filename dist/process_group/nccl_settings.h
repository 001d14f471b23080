/* NCCL's settings: it reads them from the environment when a process first uses it. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_NCCL_SETTINGS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_NCCL_SETTINGS_H

#include "base/status.h"

#include <stdbool.h>

/* Sets what this rank's NCCL is to use, while the process has no other thread (setenv) and before
 * it first uses NCCL. What the user has set stays, in the environment or in a file that NCCL reads:
 * $NCCL_CONF_FILE, else ~/.nccl.conf; /etc/nccl.conf.
 *
 *   NCCL_ALGO        unless `nvls`: "^NVLS,NVLSTree". NVLink SHARP adds up in the switch, in an
 *                    order that may change from one call to the next; ring and tree keep theirs.
 *                    The names are compared as a whole: ^NVLS alone leaves NVLSTree in, which is
 *                    NVLS inside each of several nodes. A version that does not know a name yet
 *                    ignores it.
 *   NCCL_DEBUG_FILE  if NCCL_DEBUG is set: stderr; if that is a file, another one beside it.
 *                    NCCL's own default is stdout, to which --json writes its result. */
status nccl_settings_apply(bool nvls);

typedef enum nccl_nvls { NCCL_NVLS_OFF, NCCL_NVLS_ALLOWED, NCCL_NVLS_UNKNOWN } nccl_nvls;

/* Whether NCCL may choose NVLS for an all-reduce, as far as NCCL_ALGO and NCCL_NVLS_ENABLE tell.
 * Ask after NCCL was used: it puts its files' settings into the environment. */
nccl_nvls nccl_settings_nvls(void);

/* "2.28.9", or "" if there is no NCCL. */
enum { NCCL_VERSION_BYTES = 32 };
void nccl_settings_version(char out[NCCL_VERSION_BYTES]);

#endif
