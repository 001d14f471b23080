/* The service at which the nodes of an elastic job meet, as torchrun's --rdzv-backend: c10d (our
 * store, rdzv_c10d.c) or etcd (its v3 API, etcd.c). Both keep, under the job's run id, one state
 * and a record per node. A record lies under its node's lease: it goes when the node has not
 * renewed the lease for ttl_ms, by the service's own clock and no other.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RDZV_OPS_H
#define MNIST_DDP_DIST_ELASTIC_RDZV_OPS_H

#include "base/status.h"
#include "dist/elastic/round.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rdzv_record {
    char *id;      /* the node's */
    char *value;   /* JSON */
    int64_t order; /* the revision that made it: who came earlier has a smaller one */
} rdzv_record;

/* What is there, at one revision. Owned by the caller: rdzv_view_free. */
typedef struct rdzv_view {
    int64_t revision; /* grows with every change of anything of the job */
    char *state; /* JSON; NULL: nobody has set it. Whoever can write to the service may have put
                         any bytes there; a zero follows them */
    size_t state_bytes;
    int64_t state_revision; /* the revision that set it; 0 */
    rdzv_record *nodes;
    int n;
} rdzv_view;

void rdzv_view_free(rdzv_view *view);

/* Copies a key, without the job's prefix, into the view: it is KEYS_STATE, or begins with `nodes`
 * and goes on with an id; else it is passed over. For services. */
status rdzv_view_add(rdzv_view *view, const char *nodes, const store_watch_key *key);

/* A state and a record as JSON, as they lie at the service (round_text.c). What comes from there is
 * read strictly: it may be anybody's. */

enum {
    ROUND_TEXT_BYTES = 4 << 20, /* a state's or a record's, at most */
    ROUND_MAX_NODES = 10000,
};

/* The caller's to free. STATUS_NO_MEMORY; STATUS_INVALID if a text in it is no UTF-8. */
status round_text_of_state(const round_state *state, char **out);
status round_text_of_node(const round_node *node, char **out);

/* What the service has. *out is the caller's (round_view_free). A record that makes no sense is
 * left out. STATUS_PEER if there are too many nodes, or the state makes no sense;
 * STATUS_NO_MEMORY. */
status round_text_read(const rdzv_view *text, round_view *out);

/* Under which a job's keys are: "mnist_ddp/rdzv/RUN_ID/". A slash of the run id is written %2F: "a"
 * and "a/b" are two jobs. STATUS_INVALID if it is too long. */
status rdzv_prefix(const char *run_id, char *out, size_t size_bytes);

typedef struct rdzv_service_options {
    const char *endpoints;            /* c10d: "h:p"; etcd: "h1:p,h2:p" */
    const struct etcd_access *access; /* etcd.h; NULL */
    const char *run_id;
    const char *node_id;
    int64_t ttl_ms;     /* how long this node's lease lasts */
    int64_t timeout_ms; /* one call's, without the wait that it asks for */
    int wake_fd;        /* once it is readable, a look waits no more; 0: none */
} rdzv_service_options;

/* In a job of many nodes each node that joins would wake all others with a list of all. So only the
 * first few nodes look at all; the others wait for a new state. */
typedef enum rdzv_scope {
    RDZV_ALL,
    RDZV_STATE, /* `n` is 0, and only a change of the state ends the wait */
} rdzv_scope;

/* One thread's. Every call may fail with STATUS_REFUSED: nobody listens at any endpoint;
 * STATUS_UNKNOWN_HOST; STATUS_TIMEOUT or STATUS_PEER: no answer, or the connection broke. All of
 * these may be tried again, and the next call goes to etcd's next endpoint. STATUS_INVALID: what
 * listens there is something else, or refuses us for good; the message says what and what to do.
 *
 * A store of c10d that was started anew has no record of this node until it puts it. So after such
 * a failure a node puts its record, and looks at all anew.
 */
typedef struct rdzv_ops {
    const char *name;
    bool ends_with_its_host; /* c10d: a service that is gone does not come back as it was */
    status (*open)(const rdzv_service_options *options, void **out);
    void (*close)(void *self); /* accepts NULL; removes nothing */

    /* What there is, as soon as something has changed after revision `after`, that of an earlier
     * look of the same scope (-1: at once); after wait_ms at most, or once wake_fd is readable, as
     * it is then. */
    status (*look)(void *self, rdzv_scope scope, int64_t after, int64_t wait_ms, rdzv_view *out);

    /* Sets the state if it is still that of `state_revision` (0: there is none). *set: whether. */
    status (*set_state)(void *self, int64_t state_revision, const char *state, bool *set);

    /* This node's record, under its lease, which begins or is renewed. `runs_nothing`: the record
     * may go as soon as the connection closes, as no rank of this node runs. (etcd: no effect.) */
    status (*put_node)(void *self, const char *value, bool runs_nothing);

    /* Renews the lease. STATUS_INVALID if the record has gone: others may have seen that. */
    status (*keep_alive)(void *self);

    status (*remove_node)(void *self);
} rdzv_ops;

extern const rdzv_ops rdzv_c10d, rdzv_etcd;

#endif
