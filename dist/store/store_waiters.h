/* Who waits for which key: found by the key, however many wait for others. */
#ifndef MNIST_DDP_DIST_STORE_STORE_WAITERS_H
#define MNIST_DDP_DIST_STORE_STORE_WAITERS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* One that waits, in the caller's memory. All zero: it waits for nothing. */
typedef struct store_waiter {
    struct store_waiter *next, **link; /* of its bucket; link is NULL if it is in none */
    uint64_t hash;
} store_waiter;

/* All zero is empty. */
typedef struct store_waiters {
    store_waiter **buckets; /* a power of two of them, at least as many as waiters */
    size_t n_buckets, count;
} store_waiters;

/* From now on it waits for a key of this hash, and for nothing else. STATUS_NO_MEMORY. */
status store_waiters_add(store_waiters *waiters, store_waiter *waiter, uint64_t hash);

/* Accepts one that waits for nothing. */
void store_waiters_remove(store_waiters *waiters, store_waiter *waiter);

/* The first of a list of waiters, linked by `next`, that holds all who wait for a key of this hash.
 * The caller compares hash and key, and takes `next` before it removes the one that it has.
 */
store_waiter *store_waiters_first(const store_waiters *waiters, uint64_t hash);

/* Nobody may be waiting. */
void store_waiters_close(store_waiters *waiters);

#endif
