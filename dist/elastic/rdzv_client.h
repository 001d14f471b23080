/* A node's dealings with the service at which an elastic job meets: its record, its lease, what it
 * sees there, and since when there is no answer. Of one thread.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RDZV_CLIENT_H
#define MNIST_DDP_DIST_ELASTIC_RDZV_CLIENT_H

#include "dist/elastic/rdzv_ops.h"
#include "dist/elastic/round_state.h"

typedef struct rdzv_client {
    const rdzv_ops *ops;
    rdzv_service_options options; /* borrowed texts */
    int64_t keep_alive_ms;        /* between two renewals */
    void *backend;                /* NULL: to be opened */

    char *record;       /* this node's, as it was put; NULL: none is there. Owned */
    bool may_be_gone;   /* it: a call has failed since */
    int64_t renewed_ns; /* when the last renewal that was confirmed was sent */
    rdzv_scope scope;   /* of the last look, */
    int64_t revision;   /* and what it saw; -1: to be looked at anew */
    int64_t all_ms;     /* when it is to look at all nodes again */
    bool first;         /* this node is among the first ones: it looks at all */
    bool first_member;  /* of the round, likewise */

    bool ever;          /* the service has answered */
    int64_t silent_ns;  /* since when it does not; 0: it does */
    int64_t refused_ns; /* since when nobody listens there; 0: somebody does */
    int64_t retry_ms;   /* how long to wait before the next try */
    int64_t call_ms;    /* what a call takes, without the wait that it asks for; smoothed */
    char why[1024];     /* it does not answer */
} rdzv_client;

void rdzv_client_init(rdzv_client *contact, const rdzv_ops *ops,
                      const rdzv_service_options *options, int64_t keep_alive_ms);

/* Gives the record back, if the service answers. */
void rdzv_client_close(rdzv_client *contact);

/* When the lease ends, by this node's clock: before the service may end it. */
int64_t rdzv_client_lease_end_ns(const rdzv_client *contact);

/* The calls of a backend, opened if need be; they fail as those do. */

/* Renews the lease if it is time. *gone: the lease has ended before. */
status rdzv_client_renew(rdzv_client *contact, bool *gone);

/* Looks, until until_ms (base/clock.h, in ms) or 1 s at most. `self` is the record that this node
 * would like to have there. *view is replaced, and stays the caller's. */
status rdzv_client_look(rdzv_client *contact, const round_node *self, int64_t until_ms,
                        round_view *view);

status rdzv_client_put(rdzv_client *contact, const round_node *self, bool runs_nothing);

/* If the state is still that of the view. */
status rdzv_client_write(rdzv_client *contact, const round_view *view, const round_state *state);

/* "; the rendezvous is slow: ...", and what to do; "" if it is fast enough for the lease. */
typedef struct rdzv_slowness {
    char text[200];
} rdzv_slowness;
rdzv_slowness rdzv_client_slowness(const rdzv_client *contact);

/* How the calls went: notes since when there is no answer, and why. */
void rdzv_client_note(rdzv_client *contact, status result);

#endif
