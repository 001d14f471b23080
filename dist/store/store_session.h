/* What a store holds, in memory, and one client's conversation with it, without its socket: bytes
 * in, bytes out. */
#ifndef MNIST_DDP_DIST_STORE_STORE_SESSION_H
#define MNIST_DDP_DIST_STORE_STORE_SESSION_H

#include "base/memory.h"
#include "base/status.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdint.h>

/* Keys and values. */

typedef struct store_table store_table;

/* Holds at most `limit_bytes` of keys, values and bookkeeping. */
status store_table_create(size_t limit_bytes, store_table **out);
void store_table_destroy(store_table *table); /* accepts NULL */

/* false if the key is not there. *value is valid until the table changes. */
bool store_table_find(const store_table *table, store_bytes key, store_bytes *value);

/* Copies both; `value` may point into the table. STATUS_NO_MEMORY beyond the limit: nothing changes
 * then. */
status store_table_set(store_table *table, store_bytes key, store_bytes value);

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

/* When the table is to be looked at for ended leases; INT64_MAX: there are none. */
int64_t store_watched_due_ns(const store_watched *watched);

/* Removes keys whose lease has ended; looks at all, but only if that is due. */
void store_watched_expire(store_watched *watched);

/* The owner is gone: so are the keys that go with it. Looks at all keys. */
void store_watched_release(store_watched *watched, const void *owner);

enum { STORE_SESSION_OUT_BYTES = 64 << 20 }; /* more answers than that, unread: the end */

/* Where a search for the end of a request stands; all zero at its start. */
typedef struct store_scan {
    const char *fields; /* still to come, NULL before the opcode is known */
    size_t at;          /* bytes of the request passed so far */
    uint64_t repeats;   /* how many repeated fields are still to come */
} store_scan;

/* All zero is a new session. A request that waits for a key stays at the front of `in` until it can
 * be answered. */
typedef struct store_session {
    byte_buffer in;  /* the caller appends what came in and drops nothing */
    byte_buffer out; /* the caller sends and consumes */
    bool greeted;
    bool waiting;      /* for the key at `awaited_at` */
    bool pending;      /* the budget ended before the requests that are there */
    store_scan scan;   /* how far the request at the front of `in` was scanned */
    size_t awaited_at; /* the place in the request of the first key that is not there yet */
    uint64_t awaited;  /* it and the keys after it; 0 before the request was looked at */
    int64_t due_ns;    /* when a WATCH that waits is answered in any case; 0: none waits */
    bool watches;      /* it has sent requests about watched keys */
} store_session;

/* Who is to go on that waits for a key. */
typedef enum store_wake { STORE_WAKE_ALL, STORE_WAKE_ONE } store_wake;

/* Called for every key that a request gave a value (all may go on), or one value more (one may). */
typedef void (*store_key_fn)(void *ctx, store_bytes key, store_wake who);

/* What sessions work with. */
typedef struct store_service {
    store_table *table;
    store_table *queues; /* in a table of their own */
    store_key_fn on_set;
    void *ctx;              /* on_set's */
    store_watched *watched; /* NULL: requests about them are refused */
} store_service;

/* Answers the requests that are whole and need not wait, until it has touched *budget_bytes of
 * them, of values and of answers; takes from the budget what it has touched. One request is not
 * divided: it may touch STORE_REQUEST_BYTES and STORE_SESSION_OUT_BYTES more. Call it when bytes
 * have come in, when the key that the session waits for was set, when something under the prefix
 * that it watches has changed, at due_ns, and while it is pending.
 * STATUS_PEER if the client sent nonsense (a wrong greeting's first wrong byte is enough),
 * STATUS_NO_MEMORY if the store or the answers grow too large: then the session can only be closed.
 */
status store_session_run(store_session *session, const store_service *service,
                         size_t *budget_bytes);

/* Whether the session waits, and for which key or prefix; *key is valid until bytes come in. */
bool store_session_awaits(const store_session *session, store_bytes *key);

/* The most bytes to read before the session runs again: a greeting alone, and little while a
 * request waits or others are pending. */
size_t store_session_read_limit(const store_session *session);

/* Whether there is such a request. */
bool store_session_knows(uint8_t opcode);

void store_session_close(store_session *session);

#endif
