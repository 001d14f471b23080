/* TCP and UNIX sockets with deadlines, and their addresses. Short transfers and EINTR are handled
 * here, and only here. */
#ifndef MNIST_DDP_DIST_NET_SOCKET_H
#define MNIST_DDP_DIST_NET_SOCKET_H

#include "base/status.h"

#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names and numbers of TCP endpoints, and the way to them. */

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
 * false if nobody does, or /proc does not say it. `number` has SOCKET_ADDRESS_BYTES. */
bool socket_address_own_listener(int port, char *number);

/* A TCP port that nobody holds just now; 0 if none can be found. */
int socket_address_free_port(void);

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

/* All sockets are close-on-exec and non-blocking; TCP ones also TCP_NODELAY. *fd is owned by the
 * caller, who closes it with close(). A fork without exec shares them. */

/* Listens on host (a name or address; NULL: all addresses of both families) and port (0: a free
 * one); *bound_port is the port. STATUS_UNKNOWN_HOST if the name does not resolve. STATUS_IO if the
 * port cannot be had; the message says who holds it, if that can be read, and suggests a free one.
 */
status socket_listen(const char *host, int port, int *fd, int *bound_port);

/* A connection that is waiting to be accepted; *fd is -1 if there is none. Does not block.
 * STATUS_NO_MEMORY if this process or host has no descriptor left for it; STATUS_IO for a failure
 * that the next call would meet again. */
status socket_accept(int listen_fd, int *fd);

/* One attempt at every address of host. STATUS_REFUSED if nobody listens there, STATUS_TIMEOUT if
 * nobody has answered by the deadline (as if a firewall swallows the packets), STATUS_PEER if there
 * is no way there, STATUS_UNKNOWN_HOST if the name does not resolve, STATUS_INVALID for a port that
 * is none, STATUS_NO_MEMORY without a descriptor; the message names the address. Looking the name
 * up is the resolver's and has its own timeout. */
status socket_connect(const char *host, int port, int64_t deadline_ns, int *fd);

/* Waits for poll()'s `events`. STATUS_TIMEOUT at the deadline, without a message: the caller knows
 * what it waited for. */
status socket_await(int fd, short events, int64_t deadline_ns);

/* Moves exactly size_bytes. STATUS_PEER if the other side hung up, STATUS_TIMEOUT at the deadline.
 */
status socket_send(int fd, const void *data, size_t size_bytes, int64_t deadline_ns);
status socket_receive(int fd, void *data, size_t size_bytes, int64_t deadline_ns);

/* Moves what can be moved without blocking; *moved may be 0. STATUS_PEER if the other side hung up.
 */
status socket_send_some(int fd, const void *data, size_t size_bytes, size_t *moved);
status socket_receive_some(int fd, void *data, size_t size_bytes, size_t *moved);

/* UNIX sockets in the abstract namespace, for handing descriptors from process to process of one
 * user on one host: `name` without the leading zero byte, at most 100 bytes. Processes of another
 * user are turned away: accept goes on waiting, connect is STATUS_PEER. */
status socket_listen_local(const char *name, int *fd);
status socket_accept_local(int listen_fd, int64_t deadline_ns, int *fd);

/* STATUS_PEER at once if nobody listens on the name. */
status socket_connect_local(const char *name, int64_t deadline_ns, int *fd);

/* Passes one open descriptor; the receiver gets its own, close-on-exec. The sender keeps its own.
 */
status socket_send_descriptor(int fd, int descriptor, int64_t deadline_ns);
status socket_receive_descriptor(int fd, int *descriptor, int64_t deadline_ns);

/* Ends what one thread does with a connection, from another thread: a wait for it fails at once.
 *
 * Begins with socket_breaker_init, and stays where it is. */
typedef struct socket_breaker {
    pthread_mutex_t lock; /* guards all below */
    bool broken;          /* for good */
    int fd;               /* the connection; -1: none */
} socket_breaker;

void socket_breaker_init(socket_breaker *breaker);
void socket_breaker_close(socket_breaker *breaker);

/* The connection from now on; -1, before it is closed: none. All accept NULL. */
void socket_breaker_set(socket_breaker *breaker, int fd);

/* From any thread. */
void socket_breaker_break(socket_breaker *breaker);
bool socket_breaker_is_broken(socket_breaker *breaker);

#endif
