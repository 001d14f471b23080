/* What other threads want of the store's thread: each waits until its order is carried out. */
#ifndef MNIST_DDP_DIST_STORE_ORDERS_H
#define MNIST_DDP_DIST_STORE_ORDERS_H

#include "base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef enum store_task { STORE_KEEP, STORE_FORGET, STORE_AUTHOR, STORE_STOP } store_task;

/* In the memory of the thread that waits for it. */
typedef struct store_order {
    struct store_order *next;
    store_task task;
    const char *text; /* the prefix to keep; the key whose author is asked for */
    char *author;     /* SOCKET_ADDRESS_BYTES, set */
    status result;
    bool done;
} store_order;

typedef struct store_orders {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    store_order *first; /* in the order in which they were given */
    int givers;         /* threads inside store_orders_give() */
    bool stopped;       /* STORE_STOP was carried out, and nothing is any more */
    atomic_bool waiting;
    int wake_fd; /* readable while orders wait */
} store_orders;

status store_orders_init(store_orders *orders); /* STATUS_IO */
void store_orders_close(store_orders *orders);  /* waits until no thread is inside; after a stop */

/* Returns once the order is carried out, or another one has stopped the thread before. */
void store_orders_give(store_orders *orders, store_order *order);

/* Whether the thread should look: it ends its turn early. Costs nothing. */
static inline bool store_orders_wait(store_orders *orders)
{
    return atomic_load_explicit(&orders->waiting, memory_order_relaxed);
}

/* The thread's part: carries out all that were given; false: it is to end. */
typedef void (*store_order_fn)(void *ctx, store_order *order);
bool store_orders_take(store_orders *orders, store_order_fn carry_out, void *ctx);

#endif
