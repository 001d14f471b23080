/* How the agents of a job's nodes meet: at the store that node 0's agent serves, each under a lease
 * on its node's number. Keys: dist/membership/keys.h, under mnist_ddp/launcher/. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_RENDEZVOUS_H
#define MNIST_DDP_APP_LAUNCH_AGENT_RENDEZVOUS_H

#include "app/launch/worker_spec.h"
#include "dist/membership/membership.h"
#include "dist/store/store.h"

#include <stdatomic.h>

#define AGENT_KEYS "mnist_ddp/launcher/"

/* Where they meet. Borrows all that it points to. */
typedef struct agent_rendezvous {
    worker_spec *spec;                   /* of counts_nodes: completed once all are there */
    store_server *server;                /* node 0's agent; the others': NULL */
    char prefix[SPEC_RUN_ID_BYTES + 24]; /* of the keys: "<run id>/", elastic "<run id>/<round>/" */
    const atomic_bool *quit;             /* set by another thread: give up */
    bool *lost; /* of spec->nnodes, or NULL: node 0's sets those that have not come in time */
} agent_rendezvous;

/* "hostA at eth0 (10.0.0.1), pid 4711": who this agent is, for messages on other nodes. */
void agent_rendezvous_who(const worker_spec *spec, char out[LEASE_WHO_BYTES]);

/* One attempt to connect to the store. STATUS_UNKNOWN_HOST, STATUS_REFUSED; STATUS_PEER: no
 * way there; STATUS_TIMEOUT: no answer; STATUS_IO: what listens there is no store. */
status agent_rendezvous_reach(const agent_rendezvous *rdzv, store **out);

/* Over this connection node `node` is alive: node 0 sees when it closes. */
status agent_rendezvous_show(const agent_rendezvous *rdzv, store *client, int node);

/* Connects to the store and returns once all nodes are there; says every few seconds what it waits
 * for. *client: the caller destroys it, also after a failure. *own: the lease on own->member, this
 * node's number, which the caller renews from now on. STATUS_INVALID if something else listens
 * there, or the nodes' settings, numbers or jobs do not fit; STATUS_TIMEOUT if the store was not
 * reached within spec->join_ms, or the others have not come within so long after that, with who is
 * missing; STATUS_REFUSED if node 0's agent is gone; STATUS_PEER once *quit. */
status agent_rendezvous_join(const agent_rendezvous *rdzv, store **client, lease *own);

#endif
