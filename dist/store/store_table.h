/* What the store holds, in memory: keys and values, queues, and keys that clients watch. */
#ifndef MNIST_DDP_DIST_STORE_STORE_TABLE_H
#define MNIST_DDP_DIST_STORE_STORE_TABLE_H

#include "base/status.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The store's keys and values, in memory. */

typedef struct store_table store_table;

/* Holds at most `limit_bytes` of keys, values and bookkeeping. */
status store_table_create(size_t limit_bytes, store_table **out);
void store_table_destroy(store_table *table); /* accepts NULL */

/* false if the key is not there. *value is valid until the table changes. */
bool store_table_find(const store_table *table, store_bytes key, store_bytes *value);

/* Copies both; `value` may point into the table. STATUS_NO_MEMORY beyond the limit: nothing changes
 * then. */
status store_table_set(store_table *table, store_bytes key, store_bytes value);

/* Appends `more`, which lies outside the table, to the value; a key that is not there has none.
 * Costs what it appends, taken over all calls. STATUS_INVALID if the value would become longer than
 * `limit_bytes`, STATUS_NO_MEMORY beyond the table's limit: nothing changes then. */
status store_table_append(store_table *table, store_bytes key, store_bytes more,
                          size_t limit_bytes);

/* What the table finds the key by; random from table to table. */
uint64_t store_table_hash(const store_table *table, store_bytes key);

/* Whether the key was there. */
bool store_table_delete(store_table *table, store_bytes key);

/* Goes through all keys, in any order; all zero at its start. The key that it is at may be deleted,
 * and no other may be set or deleted meanwhile. */
typedef struct store_iterator {
    store_bytes key, value;
    size_t bucket;
    const void *next;
} store_iterator;

/* false: there is no other key. */
bool store_table_next(const store_table *table, store_iterator *at);

size_t store_table_count(const store_table *table);

/* Queues of the store, by key. They lie in a table of their own, as pieces: where a queue begins
 * and ends, and each of its values. A queue that is empty is not there. */

/* STATUS_NO_MEMORY beyond the table's limit: nothing is pushed then. */
status store_queue_push(store_table *queues, store_bytes key, store_bytes value);

/* How many values it holds; if any, *value is the one that is there longest, until the table
 * changes. */
uint64_t store_queue_look(const store_table *queues, store_bytes key, store_bytes *value);

/* Takes that one out. */
status store_queue_drop(store_table *queues, store_bytes key);

/* The keys that clients watch: apart from the others, so that those cost no more for them. Every
 * change of one, its end included, has a revision of its own, by one counter of this table. A key
 * may lie under a lease, by this process's monotonic clock: it goes when that is not renewed in
 * time. One thread's.
 *
 * A prefix that ends in "/" stands for all keys that begin with it, any other for that key alone.
 */

typedef struct store_watched store_watched;

/* Called for each key that was put or goes. It may not change the table. */
typedef void (*store_watched_fn)(void *ctx, store_bytes key);

/* Holds at most `limit_bytes` of keys, values and bookkeeping. The first revision is random, so
 * that one of another server is taken for none of this one. */
status store_watched_create(size_t limit_bytes, store_watched_fn on_change, void *ctx,
                            store_watched **out);
void store_watched_destroy(store_watched *watched); /* accepts NULL */

int64_t store_watched_revision(const store_watched *watched); /* of the latest change */

typedef struct store_watched_put {
    store_bytes key, value;
    int64_t expected;  /* the revision that has set it; 0: it is not there; -1: whatever is there */
    int64_t ttl_ms;    /* 0: no lease. At least STORE_TTL_MS else. */
    const void *owner; /* the connection that is the first to go */
    bool goes_with_owner;
} store_watched_put;

/* Sets the key, whose lease begins anew; *revision is what set it, 0 if it is not as expected.
 * STATUS_NO_MEMORY beyond the limit: nothing changes then. */
status store_watched_set(store_watched *watched, const store_watched_put *put, int64_t *revision);

/* Renews the lease, for the owner from now on. That is no change. false: the key is not there. */
bool store_watched_renew(store_watched *watched, store_bytes key, const void *owner);

bool store_watched_remove(store_watched *watched, store_bytes key); /* whether it was there */

/* Whether a key of the prefix has changed since revision `after`. As what has gone is not kept, the
 * end of any key counts for all prefixes; so does a revision that is not this table's. */
bool store_watched_changed(const store_watched *watched, store_bytes prefix, int64_t after);

/* What stands under a prefix. Valid until the table changes. */
typedef struct store_watched_key {
    store_bytes key, value;
    int64_t created, set; /* the revisions that made it and that set it last */
} store_watched_key;

/* false: there is no other one. In any order. */
bool store_watched_next(const store_watched *watched, store_bytes prefix, store_iterator *at,
                        store_watched_key *out);

/* When the table is to be looked at for ended leases; INT64_MAX: there are none. */
int64_t store_watched_due_ns(const store_watched *watched);

/* Removes keys whose lease has ended; looks at all, but only if that is due. */
void store_watched_expire(store_watched *watched);

/* The owner is gone: so are the keys that go with it. Looks at all keys. */
void store_watched_release(store_watched *watched, const void *owner);

#endif
