/* Key-value store over TCP on c10d's wire (store_wire.h): our ranks can use torchrun's store, and a
 * torch process can use ours. Like torch's client, ours puts "/" before every key and its prefix.
 */
#ifndef MNIST_DDP_DIST_STORE_STORE_H
#define MNIST_DDP_DIST_STORE_STORE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_DEFAULT_PORT = 29500 };

/* The server: one thread of this process. */
typedef struct store_server store_server;

/* Listens on `host` ("127.0.0.1", "::1", a name, or NULL for all addresses of both families) and
 * `port` (0: a free one) and serves until destroyed. Bytes before the greeting are bounded, and a
 * connection that sends anything else is closed at once. One request is answered at a time, and
 * every connection gets its turn, bounded in what it touches. All connections share one budget for
 * what they have sent in part or not read, and the process's descriptors; if these run short, the
 * connections that have not greeted are closed, then those that have never set a key. STATUS_IO if
 * the port cannot be had; the message says who holds it, if that can be read. */
status store_server_create(const char *host, int port, store_server **out);
int store_server_port(const store_server *server);
const char *store_server_host(const store_server *server); /* as processes of this host reach it */
void store_server_destroy(store_server *server); /* accepts NULL; closes all connections */

/* Keys that begin with `prefix` (as a client's prefix: without the first "/"), and connections that
 * set one from now on, will outlive store_server_forget(). One prefix; "" (as at first): none.
 * STATUS_NO_MEMORY. */
status store_server_keep(store_server *server, const char *prefix);

/* Forgets what processes that have ended left: all other keys, and all other connections with what
 * they have sent and nobody has read. */
void store_server_forget(store_server *server);

/* Who has set a key under the kept prefix (as a client names it, prefix in front) last:
 * "10.0.0.3:4711"; "" if that is not known. `out` has SOCKET_ADDRESS_BYTES. */
void store_server_author(store_server *server, const char *key, char *out);

/* A client: one connection, used by one thread at a time (calls lock it; a call's time begins when
 * it has the lock). Keys get `prefix` in front. Every call ends by `timeout_ms` of the client, or
 * STATUS_TIMEOUT; a lost server is STATUS_PEER. A wait that timed out (of store_get and store_wait)
 * leaves the client usable; after any other failure of the connection all calls are STATUS_PEER.
 * STATUS_INVALID if a key or value is too long (store_wire.h). */
typedef struct store store;

/* Connects, trying again until `connect_timeout_ms`: a server may start later. `describe`, unless
 * empty, starts the line that is logged every few seconds meanwhile, with the resolved address and
 * the reason (refused, no answer, no such name). */
typedef struct store_options {
    const char *host;
    int port;
    const char *prefix; /* "mnist_ddp/none/0/"; copied */
    int64_t timeout_ms;
    int64_t connect_timeout_ms;
    const char *describe;           /* "rank 1"; only used while connecting */
    struct socket_breaker *breaker; /* dist/net/socket.h: ends every call from another
                                       thread, also this one; borrowed; NULL: none */
    bool once; /* one attempt, which fails as socket_connect does, or with STATUS_PEER; or with
                  STATUS_INVALID: what answers is no store */
} store_options;

status store_create(const store_options *options, store **out);
void store_destroy(store *client); /* accepts NULL */

/* Has no answer: returns once it is sent. What the same client asks later sees it. */
status store_set(store *client, const char *key, const void *value, size_t size_bytes);

/* Waits for the key; *value is freed by the caller with free(), a zero byte follows its end. */
status store_get(store *client, const char *key, void **value, size_t *size_bytes);

/* The same without a wait: *text is NULL if the key is not there now. */
status store_try_get(store *client, const char *key, char **text);

/* The same into `text`, of size_bytes; waits until the deadline. STATUS_PEER if it does not fit. */
status store_get_text(store *client, const char *key, int64_t deadline_ns, char *text,
                      size_t size_bytes);

/* Adds to a counter (0 if there is none) and sets *result to its new value. */
status store_add(store *client, const char *key, int64_t amount, int64_t *result);

/* *there: whether the key is there now. Does not wait. */
status store_check(store *client, const char *key, bool *there);

/* Waits until the key is there, at most `timeout_ms`: STATUS_TIMEOUT. */
status store_wait(store *client, const char *key, int64_t timeout_ms);

/* Sets the key to `desired` if it holds `expected` (or is not there and expected is empty); *value
 * is what it holds then, freed by the caller. */
status store_compare_set(store *client, const char *key, const char *expected, const char *desired,
                         void **value, size_t *size_bytes);

status store_delete(store *client, const char *key, bool *deleted);

/* Counts this client at the server, in torch's key "init/", which has neither "/" nor prefix: a
 * TCPStore of so many workers waits there until all have come. */
status store_join(store *client);

/* *count: all keys of the server, whatever their prefix. */
status store_num_keys(store *client, int64_t *count);

/* A client's calls for the store's watched keys (store_session.h), which only our server has. Keys
 * get the client's prefix in front. Failures are as above; a server of another kind closes the
 * connection: STATUS_PEER. */

typedef struct store_put_options {
    const char *value;
    int64_t expected;          /* the revision that has set it; 0: none has; -1: in any case */
    int64_t ttl_ms;            /* how long its lease lasts; 0: none */
    bool goes_with_connection; /* when this client's connection closes, the key goes */
} store_put_options;

/* *revision: what has set the key now; 0: what is there is not what was expected. */
status store_put(store *client, const char *key, const store_put_options *how, int64_t *revision);

/* Whether this client has put a watched key: its server is ours. */
bool store_watches(const store *client);

/* Renews the lease. *there: whether the key was still there. */
status store_renew(store *client, const char *key, bool *there);

status store_remove(store *client, const char *key, bool *there);

/* What is under a prefix, in the order of the keys. */
typedef struct store_watch_key {
    const char *key;   /* without the client's prefix */
    const char *value; /* any bytes, and a zero */
    size_t value_bytes;
    int64_t created, set; /* the revisions that made it and that set it last */
} store_watch_key;

typedef struct store_watch_answer {
    int64_t revision; /* the latest change's, whichever key it was */
    store_watch_key *keys;
    size_t n;
    void *memory;
} store_watch_answer;

/* `prefix` is "", or ends in "/", or is one key. */
typedef struct store_watch_options {
    const char *prefix;
    int64_t after;   /* -1: at once */
    int64_t wait_ms; /* at most */
    int wake_fd;     /* once it is readable, the wait is over; 0: none */
} store_watch_options;

/* Returns once anything under the prefix has changed after revision `after`. If nothing has in the
 * given time, *out is all zero. As the store keeps nothing of a key that has gone, that counts for
 * every prefix. To be freed with store_watch_free. */
status store_watch(store *client, const store_watch_options *how, store_watch_answer *out);

void store_watch_free(store_watch_answer *answer); /* accepts one that is all zero */

#endif
