/* How much memory this process takes. */
#ifndef MNIST_DDP_APP_TRAIN_MEMORY_USE_H
#define MNIST_DDP_APP_TRAIN_MEMORY_USE_H

#include "base/status.h"

#include <stdint.h>

/* MiB: the largest resident set so far, and what is this process's alone now (Private_Clean +
 * Private_Dirty of /proc/self/smaps_rollup). */
status memory_use(int64_t *rss_mib, int64_t *private_mib);

#endif
