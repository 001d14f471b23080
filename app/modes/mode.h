/* How the work of a step is spread: --mode.
 *
 *   ddp     processes, each with a part of the batch; all-reduced gradients
 * (DistributedDataParallel) dp      one process, a thread per replica; the master sends parameters
 * and inputs out and adds gradients up (DataParallel) ps      processes; rank 0 adds gradients up
 * and sends parameters back (a parameter server) single  one process, the whole batch
 */
#ifndef MNIST_DDP_APP_MODES_MODE_H
#define MNIST_DDP_APP_MODES_MODE_H

#include "app/options/options.h"
#include "base/status.h"

#include <stdbool.h>

typedef enum train_mode { MODE_DDP, MODE_DP, MODE_PS, MODE_SINGLE } train_mode;

enum { MODE_MAX_REPLICAS = 64 };

/* The option's value, checked by the option table. */
train_mode mode_of(const options *opts);

/* Whether one process does all of it: its --batch-size is the whole batch. */
bool mode_is_one_process(train_mode mode);

/* STATUS_INVALID, with what to type, for settings that do not go with the mode or with a job of
 * `world_size` ranks. */
status mode_check(const options *opts, int world_size);

/* Replicas of dp: --replicas, else a replica per GPU, else 2 on the CPU; 1 in the other modes. */
status mode_replicas(const options *opts, int *out);

#endif
