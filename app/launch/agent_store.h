/* The store of a job, as its launcher opens it. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_STORE_H
#define MNIST_DDP_APP_LAUNCH_AGENT_STORE_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

/* Where this node would listen: at the address it was given, if others reach it and no others do
 * by it. false: on all addresses, and `why` says why. Of SOCKET_ADDRESS_BYTES, `why` 80 more. */
bool agent_store_home(const worker_spec *spec, char *host, char *why);

/* Serves the store where that is this node's part; else *server is NULL. *port: where workers find
 * it. Where another launcher of this machine was first, the spec's master_addr is where it listens.
 * STATUS_IO where the port is taken: by whom, and a free one. */
status agent_store_open(worker_spec *spec, store_server **server, int *port);

/* Says in the log where this node stands and where the store is. */
void agent_store_describe(const worker_spec *spec, int port);

#endif
