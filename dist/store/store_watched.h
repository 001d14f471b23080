/* The keys that clients watch: apart from the others, so that those cost no more for them. Every
 * change of one, its end included, has a revision of its own, by one counter of this table. A key
 * may lie under a lease, by this process's monotonic clock: it goes when that is not renewed in
 * time. One thread's.
 *
 * A prefix that ends in "/" stands for all keys that begin with it, any other for that key alone.
 */
#ifndef MNIST_DDP_DIST_STORE_STORE_WATCHED_H
#define MNIST_DDP_DIST_STORE_STORE_WATCHED_H

#include "base/status.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct store_watched store_watched;

/* Called for each key that was put or has gone, after the change. It may not change the table. */
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

/* What stands under a prefix, in the order of the keys. Valid until the table changes. */
typedef struct store_watched_key {
    store_bytes key, value;
    int64_t created, set; /* the revisions that made it and that set it last */
} store_watched_key;

size_t store_watched_count(const store_watched *watched, store_bytes prefix, size_t *first);
store_watched_key store_watched_at(const store_watched *watched, size_t i); /* first .. */

/* When the table is to be looked at for ended leases; INT64_MAX: there are none. */
int64_t store_watched_due_ns(const store_watched *watched);

/* Removes keys whose lease has ended; looks at all, but only if that is due. */
void store_watched_expire(store_watched *watched);

/* The owner is gone: so are the keys that go with it. Looks at all keys. */
void store_watched_release(store_watched *watched, const void *owner);

#endif
