/* One request of a store's client and its answer: what store.c and store_watch.c send. */
#ifndef MNIST_DDP_DIST_STORE_STORE_EXCHANGE_H
#define MNIST_DDP_DIST_STORE_STORE_EXCHANGE_H

#include "base/memory.h"
#include "dist/net/socket_breaker.h"
#include "dist/store/store.h"

#include <pthread.h>

enum { STORE_WHY_BYTES = 256 };

struct store {
    pthread_mutex_t lock;
    int fd; /* -1 once an answer was lost: what came next could not be told apart */
    int64_t timeout_ms;
    bool watches;            /* the server has answered a store_put: it has watched keys */
    char *prefix;            /* "/", as torch's own client begins every key, and the caller's */
    char *where;             /* "host:port", for messages */
    socket_breaker *breaker; /* borrowed; NULL */
    char why[STORE_WHY_BYTES];
};

/* Also if there is no connection. */
void store_exchange_disconnect(store *client);

/* It holds the client's lock from begin() to end(). The first thing that goes wrong is kept in
 * `st`; what follows does nothing then. */
typedef struct store_exchange {
    store *client;
    const char *key;
    int64_t timeout_ms, deadline_ns;
    byte_buffer out;
    status st;
    bool sent; /* from here on a failure leaves the connection of no use */
} store_exchange;

void store_exchange_begin(store_exchange *x, store *client, const char *key, int64_t timeout_ms);
void store_exchange_put(store_exchange *x, const void *data, size_t size_bytes);
void store_exchange_put_u8(store_exchange *x, uint8_t value);
void store_exchange_put_u64(store_exchange *x, uint64_t value);
void store_exchange_put_key(store_exchange *x); /* with the client's prefix */
void store_exchange_put_value(store_exchange *x, const void *data, size_t size_bytes);

void store_exchange_send(store_exchange *x); /* what was put */

void store_exchange_receive(store_exchange *x, void *data, size_t size_bytes);
uint8_t store_exchange_receive_u8(store_exchange *x);
uint64_t store_exchange_receive_u64(store_exchange *x);

/* *value is the caller's, with a zero byte after it; NULL unless all went well. */
void store_exchange_receive_value(store_exchange *x, char **value, size_t *size_bytes);

status store_exchange_end(store_exchange *x);

#endif
