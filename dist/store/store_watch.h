/* A client's calls for the store's watched keys (store_watched.h), which only our server has. Keys
 * get the client's prefix in front. Failures are as in store.h; a server of another kind closes the
 * connection: STATUS_PEER. */
#ifndef MNIST_DDP_DIST_STORE_STORE_WATCH_H
#define MNIST_DDP_DIST_STORE_STORE_WATCH_H

#include "dist/store/store.h"

typedef struct store_put_options {
    const char *value;
    int64_t expected;          /* the revision that has set it; 0: none has; -1: in any case */
    int64_t ttl_ms;            /* of its lease; 0: none */
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
    int64_t revision; /* of the latest change of any key */
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
