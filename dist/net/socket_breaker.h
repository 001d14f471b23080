/* Ends what one thread does with a connection, from another thread: a wait for it fails at once.
 */
#ifndef MNIST_DDP_DIST_NET_SOCKET_BREAKER_H
#define MNIST_DDP_DIST_NET_SOCKET_BREAKER_H

#include <pthread.h>
#include <stdbool.h>

/* Begins with socket_breaker_init, and stays where it is. */
typedef struct socket_breaker {
    pthread_mutex_t lock; /* of all below */
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
