/* Names and numbers of TCP endpoints: for socket.c, and for messages. */
#ifndef MNIST_DDP_DIST_SOCKET_ADDRESS_H
#define MNIST_DDP_DIST_SOCKET_ADDRESS_H

#include "base/status.h"

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>

enum { SOCKET_ADDRESS_BYTES = 400 };

/* All stream addresses of host (NULL: the wildcard ones), for freeaddrinfo().
 * STATUS_INVALID where the name has none. */
status socket_address_resolve(const char *host, int port, struct addrinfo **out);

/* "host:port", with brackets around an IPv6 address. `out` has SOCKET_ADDRESS_BYTES. */
void socket_address_name(const char *host, int port, char *out);

/* "host (address):port", or "address:port" where host is the address itself. */
void socket_address_describe(const char *host, int port, const struct addrinfo *address, char *out);

/* Whether connections to `host` cannot leave this host: every address of it is a loopback address.
 * false for a name that does not resolve, and for a name that stands for 127.0.1.1 (which some
 * systems give to their own name, while other hosts know it by another address). */
bool socket_address_is_loopback(const char *host);

/* The port that a socket is bound to; -1 with errno. */
int socket_address_port(int fd);

/* A TCP port that nobody holds just now; 0 where none can be found. */
int socket_address_free_port(void);

/* Who listens on a TCP port of this host, as in "pid 4711 (python train.py)". false where /proc
 * does not tell. */
bool socket_address_holder(int port, char *out, size_t size_bytes);

#endif
