/* Which way packets leave this host. */
#ifndef MNIST_DDP_DIST_NET_SOCKET_ROUTE_H
#define MNIST_DDP_DIST_NET_SOCKET_ROUTE_H

#include "base/status.h"

enum { SOCKET_ROUTE_BYTES = 128, SOCKET_ROUTE_NUMBER_BYTES = 80, SOCKET_ROUTE_NAME_BYTES = 33 };

/* The address from which this host talks to `host`, "192.168.0.5". STATUS_UNKNOWN_HOST;
 * STATUS_IO if there is no route; STATUS_NO_MEMORY, also if no descriptor is left. Sends nothing,
 * but may look the name up. `out` is set only on success. */
status socket_route_source(const char *host, char out[SOCKET_ROUTE_NUMBER_BYTES]);

/* "eth0 (192.168.0.5)": the interface and address from which this host talks to `host`; "" if there
 * is no route, or no such name. For messages: keeps this thread's. */
void socket_route_describe(const char *host, char out[SOCKET_ROUTE_BYTES]);

/* The interface alone, "eth0"; "" also if it is the loopback. */
void socket_route_interface(const char *host, char out[SOCKET_ROUTE_NAME_BYTES]);

#endif
