/* What this machine knows of its own network: its addresses and interfaces. */
#ifndef MNIST_DDP_APP_COMMON_LOCAL_NETWORK_H
#define MNIST_DDP_APP_COMMON_LOCAL_NETWORK_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOCAL_NETWORK_NAME_BYTES = 64, LOCAL_NETWORK_MAX = 64 };

/* An address of an interface that is up. */
typedef struct local_address {
    char interface[LOCAL_NETWORK_NAME_BYTES]; /* "eth0" */
    char number[LOCAL_NETWORK_NAME_BYTES];    /* "10.0.0.1", "fe80::1" */
    int prefix_bits;                          /* of its network */
    bool loopback, link_local;
} local_address;

/* Lists at most LOCAL_NETWORK_MAX of them into `out`; returns how many. */
int local_network_list(local_address *out);

/* Whether `host` (a name or an address) stands for this machine: its own name, or one that resolves
 * to an address of an interface. */
bool local_network_owns(const char *host);

/* "HOST:PORT" of what listens on `bind`, as another machine would type it if it is for other
 * machines. `out` has SOCKET_ADDRESS_BYTES (dist/net/socket_address.h). */
void local_network_name(const char *bind, int port, char *out);

/* "10.0.0.1 on eth0, ...": all but loopback, for messages. */
void local_network_describe(char *out, size_t size_bytes);

#endif
