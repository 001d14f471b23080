/* One client's conversation with the store, without its socket: bytes in, bytes out. */
#ifndef MNIST_DDP_DIST_STORE_STORE_SESSION_H
#define MNIST_DDP_DIST_STORE_STORE_SESSION_H

#include "base/memory.h"
#include "base/status.h"
#include "dist/store/store_table.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdint.h>

enum { STORE_SESSION_OUT_BYTES = 64 << 20 }; /* more answers than that, unread: the end */

/* All zero is a new session. A request that waits for a key stays at the front of `in` until it can
 * be answered. */
typedef struct store_session {
    byte_buffer in;  /* the caller appends what came in and drops nothing */
    byte_buffer out; /* the caller sends and consumes */
    bool greeted;
    bool waiting;      /* for the key at `awaited_at` */
    bool pending;      /* the budget ended before the requests that are there */
    store_scan scan;   /* of the request at the front of `in` */
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
    store_table *queues; /* store_queue_push and so on */
    store_key_fn on_set;
    void *ctx;              /* of on_set */
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

void store_session_close(store_session *session);

#endif
