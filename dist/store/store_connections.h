/* The connections of the store's server: who waits for what, what they hold, and which one is
 * closed if descriptors or buffers are short. One thread's. */
#ifndef MNIST_DDP_DIST_STORE_STORE_CONNECTIONS_H
#define MNIST_DDP_DIST_STORE_STORE_CONNECTIONS_H

#include "base/status.h"
#include "dist/store/store_session.h"

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

typedef struct store_connection {
    store_waiter waiter; /* first: a waiter is its connection */
    struct store_connection *next, *next_to_run;
    int fd;           /* -1 once closed */
    uint32_t watched; /* what epoll looks for */
    uint32_t events;  /* what it reported this turn */
    bool to_run;      /* what it waits for has come */
    bool is_pending;  /* as its session was at the end of its last turn */
    bool wrote;       /* it has set a key: it takes part in the job */
    bool kept;        /* it has set a key that outlives its process */
    int64_t greeting_deadline_ns;
    int64_t moved_ns; /* when bytes last came or went */
    size_t held_bytes;
    store_session session;
} store_connection;

typedef struct store_connections {
    store_connection *first, **end; /* in the order of their arrival */
    store_connection *first_to_run, **end_to_run;
    size_t count, closed;      /* count: with those that are closed and not yet swept */
    size_t ungreeted, pending; /* of those that are open */
    size_t held_bytes;         /* in all buffers */
    store_waiters waiters;
    int64_t due_ns;         /* none that watches is to be answered before */
    store_watched *watched; /* is told who is closed; NULL: nobody is to be told */
    int queue;              /* the server's epoll, which knows each of them */
    int port;               /* for messages */
    bool told_unknown;      /* that a request is unknown here, once */
} store_connections;

void store_connections_init(store_connections *all, int queue, int port);
void store_connections_close(store_connections *all);

/* Takes `fd` at once, also on failure, and watches it for requests: STATUS_NO_MEMORY. */
status store_connections_add(store_connections *all, int fd, store_connection **out);

/* It stays in the list until the next sweep. Accepts one that is closed. A request that no store of
 * ours has is told as a warning, once: its client may wait long for what it was to bring. */
void store_connections_drop(store_connections *all, store_connection *c, const char *why);

/* Frees what is closed, after closing those whose greeting is overdue. */
void store_connections_sweep(store_connections *all);

store_connection *store_connections_oldest_ungreeted(const store_connections *all);

/* To be called at the end of a connection's turn: epoll looks for what its session can do next. */
void store_connections_watch(store_connections *all, store_connection *c);

/* To be called when a session has run: notes what it holds and waits for. STATUS_NO_MEMORY. */
status store_connections_settle(store_connections *all, store_connection *c,
                                const store_table *table);

/* All that wait for the key are to run, or of those that wait for nothing else only one. */
void store_connections_wake(store_connections *all, const store_table *table, store_bytes key,
                            store_wake who);

/* All that watch a prefix of the key are to run. */
void store_connections_wake_watchers(store_connections *all, const store_table *table,
                                     store_bytes key);

/* All that have watched for long enough are to run. Looks at all, but only if one is due. */
void store_connections_wake_due(store_connections *all);

/* The next one that is to run, in the order in which they were woken; NULL: none. */
store_connection *store_connections_next_to_run(store_connections *all);

/* Closes one connection so that another has its descriptor: the oldest that has not greeted, else
 * of those that have never set a key the one that is idle longest. false: there is none of them. */
bool store_connections_shed_one(store_connections *all);

/* Closes connections until all buffers together hold `limit_bytes` at most: of those that hold more
 * than their share the one that is idle longest, and one that takes part in the job last. */
void store_connections_shed_bytes(store_connections *all, size_t limit_bytes);

#endif
