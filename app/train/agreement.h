/* Ranks that were started with different settings would train nonsense or wait for each other for
 * ever: they compare what they were told before they begin. */
#ifndef MNIST_DDP_APP_TRAIN_AGREEMENT_H
#define MNIST_DDP_APP_TRAIN_AGREEMENT_H

#include "app/train/job.h"

/* Every rank leaves its settings in the store; rank 0 compares all with its own, the others theirs
 * with rank 0's. Alone there is nothing to compare. Blocks until they are there, at most --timeout.
 * STATUS_INVALID names the setting and both values. */
status agreement_check(const job *j);

#endif
