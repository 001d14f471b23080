/* Ranks that were started with different settings would train nonsense or wait for each other for
 * ever: they compare what they were told before they begin. */
#ifndef MNIST_DDP_APP_TRAIN_AGREEMENT_H
#define MNIST_DDP_APP_TRAIN_AGREEMENT_H

#include "base/cores.h"
#include "dist/store/store.h"

#include <stdint.h>

enum { AGREEMENT_BYTES = 1536 };

/* `settings`: a line "name value" for each, in a fixed order; at most AGREEMENT_BYTES with the 0.
 * All ranks' are compared with rank 0's. *peers: the ranks that may use this rank's cores, however
 * many launchers have started them; left as it is if that is not known. Blocks until all ranks are
 * there, at most timeout_ms. STATUS_INVALID, on all ranks, names the setting and both values;
 * STATUS_PEER a rank whose record in the store is none. */
status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms, cores_peers *peers);

#endif
