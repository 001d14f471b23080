/* What a launch would start, on every node, without starting it. */
#ifndef MNIST_DDP_APP_LAUNCH_DRY_RUN_H
#define MNIST_DDP_APP_LAUNCH_DRY_RUN_H

#include "app/launch/worker_spec.h"

/* Prints it on stdout. */
status launch_dry_run(const worker_spec *spec);

#endif
