#include "dist/store/store_waiters.h"

#include <stdlib.h>

enum { FIRST_BUCKETS = 64 };

static void put(store_waiter **bucket, store_waiter *waiter)
{
    waiter->next = *bucket;
    waiter->link = bucket;
    if (*bucket != NULL)
        (*bucket)->link = &waiter->next;
    *bucket = waiter;
}

static status grow(store_waiters *waiters)
{
    size_t n = waiters->n_buckets > 0 ? waiters->n_buckets * 2 : FIRST_BUCKETS;
    store_waiter **buckets = calloc(n, sizeof *buckets);
    if (buckets == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu that wait", n);
    for (size_t b = 0; b < waiters->n_buckets; b++) {
        for (store_waiter *w = waiters->buckets[b], *next; w != NULL; w = next) {
            next = w->next;
            put(&buckets[w->hash & (n - 1)], w);
        }
    }
    free(waiters->buckets);
    waiters->buckets = buckets;
    waiters->n_buckets = n;
    return STATUS_OK;
}

status store_waiters_add(store_waiters *waiters, store_waiter *waiter, uint64_t hash)
{
    store_waiters_remove(waiters, waiter);
    if (waiters->count >= waiters->n_buckets)
        TRY(grow(waiters));
    waiter->hash = hash;
    put(&waiters->buckets[hash & (waiters->n_buckets - 1)], waiter);
    waiters->count++;
    return STATUS_OK;
}

void store_waiters_remove(store_waiters *waiters, store_waiter *waiter)
{
    if (waiter->link == NULL)
        return;
    *waiter->link = waiter->next;
    if (waiter->next != NULL)
        waiter->next->link = waiter->link;
    *waiter = (store_waiter){0};
    waiters->count--;
}

store_waiter *store_waiters_first(const store_waiters *waiters, uint64_t hash)
{
    return waiters->n_buckets > 0 ? waiters->buckets[hash & (waiters->n_buckets - 1)] : NULL;
}

void store_waiters_close(store_waiters *waiters)
{
    ASSERT(waiters->count == 0);
    free(waiters->buckets);
    *waiters = (store_waiters){0};
}
