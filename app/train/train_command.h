/* mnist_ddp train, as one rank. */
#ifndef MNIST_DDP_APP_TRAIN_TRAIN_COMMAND_H
#define MNIST_DDP_APP_TRAIN_TRAIN_COMMAND_H

#include "app/options/options.h"
#include "dist/rendezvous.h"

/* Whether --init, if it is given, names a whole file with the model that is trained; else
 * *exit_code is what to exit with: of a wrong model usage, of a broken file data. */
status train_check_init(const options *opts, int *exit_code);

/* Returns the exit code and has said why on stderr if it is not 0. `started_ns`: when the launcher,
 * or this process, began. */
int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

#endif
