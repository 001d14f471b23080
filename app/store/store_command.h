/* mnist_ddp store: a job's key-value store from the command line, as PyTorch's TCPStore. */
#ifndef MNIST_DDP_APP_STORE_STORE_COMMAND_H
#define MNIST_DDP_APP_STORE_STORE_COMMAND_H

#include "app/options/options.h"

/* Does what opts->action says: serves a store until a signal comes, or asks one. Returns the exit
 * code. */
int store_command(const options *opts);

/* The actions' names, with spaces between them: "serve set get ...". */
const char *store_command_actions(void);

#endif
