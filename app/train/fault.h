/* What a fault of --inject (app/options/training_values.h) does to a rank. */
#ifndef MNIST_DDP_APP_TRAIN_FAULT_H
#define MNIST_DDP_APP_TRAIN_FAULT_H

#include "app/options/training_values.h"

/* STATUS_INVALID if no rank of the job is meant. */
status fault_check(const inject *what, int world_size);

/* Makes it INJECT_NONE unless it is for this rank and this attempt; says so in the log if it is
 * and lasts. STATUS_INVALID as fault_check. */
status fault_aim(inject *what, int rank, int world_size, int attempt);

/* What happens before optimizer step `step` of the run (from 1). May not return. */
void fault_before_step(const inject *what, int64_t step);

/* How many of an epoch's steps this rank takes, and whose order it takes for an epoch's. */
int fault_steps(const inject *what, int steps);
int fault_order(const inject *what, int64_t epoch);

#endif
