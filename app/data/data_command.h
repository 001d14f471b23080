/* mnist_ddp data: the data sets that are here. */
#ifndef MNIST_DDP_APP_DATA_DATA_COMMAND_H
#define MNIST_DDP_APP_DATA_DATA_COMMAND_H

#include "app/options/options.h"

/* Does what opts->action says. Returns the exit code. */
int data_command(const options *opts);

#endif
