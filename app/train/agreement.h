/* Ranks that were started with different settings would train nonsense or wait for each other for
 * ever: they compare what they were told before they begin. */
#ifndef MNIST_DDP_APP_TRAIN_AGREEMENT_H
#define MNIST_DDP_APP_TRAIN_AGREEMENT_H

#include "dist/store/store.h"

#include <stdint.h>

enum { AGREEMENT_BYTES = 1024 };

/* `settings`: a line "name value" for each, in a fixed order; at most AGREEMENT_BYTES with the 0.
 * Every rank leaves its own in the store; rank 0 compares all with its own, the others theirs with
 * rank 0's. Blocks until they are there, at most timeout_ms. STATUS_INVALID names the setting and
 * both values. */
status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms);

#endif
