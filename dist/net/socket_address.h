/* Names and numbers of TCP endpoints, and the way to them: for socket.c, and for messages. */
#ifndef MNIST_DDP_DIST_NET_SOCKET_ADDRESS_H
#define MNIST_DDP_DIST_NET_SOCKET_ADDRESS_H

#include "base/status.h"

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>

enum { SOCKET_ADDRESS_BYTES = 400 };

/* All stream addresses of host (NULL: the wildcard ones), for freeaddrinfo().
 * STATUS_UNKNOWN_HOST if the name has none, STATUS_INVALID for a port out of range. */
status socket_address_resolve(const char *host, int port, struct addrinfo **out);

/* Takes "HOST", "HOST:PORT", "[::1]:PORT" or "::1" apart; `host` gets no brackets. STATUS_INVALID,
 * with what is expected. */
status socket_address_parse(const char *text, int default_port, char *host, size_t host_bytes,
                            int *port);

/* "host:port", with brackets around an IPv6 address. `out` has SOCKET_ADDRESS_BYTES. */
void socket_address_name(const char *host, int port, char *out);

/* "host (address):port", or "address:port" if host is the address itself. */
void socket_address_describe(const char *host, int port, const struct addrinfo *address, char *out);

/* The other side of a connection, "10.0.0.3:4711"; "?" if there is none. */
void socket_address_peer(int fd, char *out);

/* Whether connections to `host` cannot leave this host: every address of it is a loopback address.
 * false for a name that does not resolve, and for a name that stands for 127.0.1.1 (which some
 * systems give to their own name, while other hosts know it by another address). */
bool socket_address_is_loopback(const char *host);

/* Whether what this host's own name stands for here is of no use to other hosts: the first address
 * of it that a socket can have is a loopback address, or there is none. */
bool socket_address_own_name_is_loopback(void);

/* Whether `host` says so itself: "localhost", 127.*, ::1. Nothing is looked up. */
bool socket_address_says_loopback(const char *host);

/* Where to listen so that other hosts, which know this one as `host`, reach it and no others do.
 * true: `host` stands for one address, of this machine and not of its loopback; `number` is it.
 * false: on all addresses, and `why` says why. `number` has SOCKET_ADDRESS_BYTES, `why` 80 more. */
bool socket_address_home(const char *host, char *number, char *why);

/* Where a process of this user, on this host, listens on a TCP port: "10.0.0.1", "::" for all.
 * false if nobody does, or /proc does not tell. `number` has SOCKET_ADDRESS_BYTES. */
bool socket_address_own_listener(int port, char *number);

/* The port that a socket is bound to; -1 with errno. */
int socket_address_port(int fd);

/* A TCP port that nobody holds just now; 0 if none can be found. */
int socket_address_free_port(void);

/* Who listens on a TCP port of this host, as in "pid 4711 (python train.py)". false if /proc does
 * not tell. */
bool socket_address_holder(int port, char *out, size_t size_bytes);

/* Which way packets leave this host. */

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
