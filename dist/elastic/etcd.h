/* What is needed of etcd's v3 API: keys, leases, one watch. All calls fail as etcd_gateway.h
 * says. */
#ifndef MNIST_DDP_DIST_ELASTIC_ETCD_H
#define MNIST_DDP_DIST_ELASTIC_ETCD_H

#include "dist/elastic/etcd_gateway.h"

#include <stddef.h>

typedef struct etcd_pair {
    char *key;   /* "" if it is no text */
    char *value; /* any bytes, and a zero */
    size_t value_bytes;
    int64_t created, modified; /* revisions */
} etcd_pair;

typedef struct etcd_pairs {
    int64_t revision; /* of the whole of etcd, at which all these were there */
    etcd_pair *pairs;
    int n;
} etcd_pairs;

/* All keys that begin with `prefix`, at one revision, which is the latest: a majority of etcd's
 * members knows of no later one. *out is the caller's: etcd_pairs_free. */
status etcd_list(etcd_gateway *gateway, const char *prefix, etcd_pairs *out);
void etcd_pairs_free(etcd_pairs *pairs);

/* Returns as soon as a key that begins with `prefix` has changed at `revision` or later; also if so
 * old changes are forgotten, if wake_fd (-1: none) is readable, and after wait_ms. */
status etcd_await_change(etcd_gateway *gateway, const char *prefix, int64_t revision,
                         int64_t wait_ms, int wake_fd);

enum { ETCD_ANY_REVISION = -1 };

typedef enum etcd_put_result {
    ETCD_PUT,
    ETCD_PUT_CHANGED,  /* nothing was put: the key's revision is another */
    ETCD_PUT_NO_LEASE, /* likewise: there is no such lease */
} etcd_put_result;

typedef struct etcd_value {
    const char *key, *value;
    int64_t lease;    /* the key goes when that ends */
    int64_t modified; /* only if this is the key's revision (0: it is not there), or ETCD_ANY_... */
} etcd_value;

status etcd_put(etcd_gateway *gateway, const etcd_value *what, etcd_put_result *result);

/* A lease for ttl_ms, in whole seconds, rounded up; etcd may make it longer. `id`: its own choice,
 * or 0. *out is its id. Does nothing if `id` is there already. */
status etcd_lease_grant(etcd_gateway *gateway, int64_t id, int64_t ttl_ms, int64_t *out);

/* It begins anew; *lives: false if it has ended, or never was. */
status etcd_lease_renew(etcd_gateway *gateway, int64_t lease, bool *lives);

/* Ends it, and with it its keys; also if it has ended already. */
status etcd_lease_revoke(etcd_gateway *gateway, int64_t lease);

#endif
