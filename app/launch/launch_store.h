/* The store of a job, as its launcher opens it. */
#ifndef MNIST_DDP_APP_LAUNCH_STORE_H
#define MNIST_DDP_APP_LAUNCH_STORE_H

#include "app/launch/launch_settings.h"
#include "dist/store/store.h"

/* Serves the store where that is this node's part; else *server is NULL. *port: where workers find
 * it. STATUS_IO where the port is taken: by whom, and a free one. */
status launch_store_open(const launch_settings *settings, store_server **server, int *port);

/* Says in the log where this node stands and where the store is. */
void launch_store_say(const launch_settings *settings, int port);

#endif
