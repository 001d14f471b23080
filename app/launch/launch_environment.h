/* The environment of a worker: the launcher's own, with torchrun's variables. */
#ifndef MNIST_DDP_APP_LAUNCH_ENVIRONMENT_H
#define MNIST_DDP_APP_LAUNCH_ENVIRONMENT_H

#include "app/launch/launch_worker.h"

/* Sets *out to a NULL-ended array of "NAME=value", one block of memory: free with free(). The
 * launcher's environ must not change before. */
status launch_environment_create(const launch_start *start, int rank, int local_rank, char ***out);

#endif
