/* mnist_ddp store serve. */
#ifndef MNIST_DDP_APP_STORE_STORE_SERVE_H
#define MNIST_DDP_APP_STORE_STORE_SERVE_H

#include "app/options/options.h"

/* Serves a store at --bind and --port: prints its address, and returns after SIGINT, SIGTERM or
 * SIGHUP, or after --timeout if that was given. STATUS_IO if the port cannot be had or stdout does
 * not take the address; on failure *code is what to exit with. */
status store_serve(const options *opts, int *code);

#endif
