/* mnist_ddp serve: a page to draw digits on, and to watch a run. */
#ifndef MNIST_DDP_APP_SERVE_SERVE_COMMAND_H
#define MNIST_DDP_APP_SERVE_SERVE_COMMAND_H

#include "app/options/options.h"

/* Prints the page's address on stdout and serves it until a signal ends the process. Returns the
 * exit code of a failure. */
int serve_command(const options *opts);

#endif
