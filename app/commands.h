/* One function per subcommand. Each returns the exit code and has said why on stderr where it is
 * not 0. */
#ifndef MNIST_DDP_APP_COMMANDS_H
#define MNIST_DDP_APP_COMMANDS_H

#include "app/options/options.h"
#include "dist/rendezvous.h"

/* Trains as one rank. `started_ns`: when the launcher, or this process, began. */
int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

/* Accuracy of a checkpoint on the test set. */
int eval_command(const options *opts);

/* A rank's indices of one epoch. */
int sampler_command(const options *opts);

#endif
