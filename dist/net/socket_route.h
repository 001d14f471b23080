/* Which way packets leave this host, for messages. */
#ifndef MNIST_DDP_DIST_SOCKET_ROUTE_H
#define MNIST_DDP_DIST_SOCKET_ROUTE_H

enum { SOCKET_ROUTE_BYTES = 96 };

/* "eth0 (192.168.0.5)": the interface and address from which this host talks to `host`; "" if there
 * is no route, or no such name. Sends nothing, but may look the name up. */
void socket_route_describe(const char *host, char out[SOCKET_ROUTE_BYTES]);

#endif
