/* The nodes of a job, or of an elastic job's round: how their agents meet at the store that node
 * 0's serves, and who of them lives. Each agent holds a watched key on its node's number, which
 * goes with its connection; that it is put again is its heartbeat. Keys: dist/membership/keys.h,
 * under mnist_ddp/launcher/. */
#ifndef MNIST_DDP_APP_LAUNCH_ROSTER_H
#define MNIST_DDP_APP_LAUNCH_ROSTER_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

#include <stdatomic.h>

#define AGENT_KEYS "mnist_ddp/launcher/"

/* The store of a launch, which the agent of one node serves: torchrun's agent store. */

/* Whether the store of this node listens at one address: the one that was given, if it stands for
 * one address of this machine. Then sets `host` (SOCKET_ADDRESS_BYTES) to it. false: it listens on
 * all addresses, and `why` (SOCKET_ADDRESS_BYTES + 80) says why. */
bool agent_store_home(const worker_spec *spec, char *host, char *why);

/* Serves the store if that is this node's part; else *server is NULL. Sets the spec's master_port
 * to where it listens, if that was 0. If another agent of this machine was first, sets the spec's
 * master_addr to where that listens, after 2 s at most. STATUS_IO if the port is taken: by whom,
 * and a free one. */
status agent_store_open(worker_spec *spec, store_server **server);

/* Elastic: every agent serves a store: the first of a c10d endpoint's host at the endpoint, the
 * others at a free port of their own. Sets the spec's master_addr and master_port to where it
 * listens, as others know it. STATUS_IO, STATUS_UNKNOWN_HOST. */
status agent_store_open_own(worker_spec *spec, store_server **server);

/* Who is there. */

enum {
    ROSTER_WHO_BYTES = 320,
    ROSTER_TOKEN_BYTES = ROSTER_WHO_BYTES + 60,
    ROSTER_SILENT_MS = 3000, /* while the nodes come: who is silent for so long loses its number */
};

typedef struct roster_node {
    char token[ROSTER_TOKEN_BYTES]; /* "<who>#<token>": the latest agent that held the number; "" */
    bool there;                     /* the key is: its connection is open */
    bool lost;                      /* it has not come in time, or is gone */
    int64_t set;                    /* the revision of its latest heartbeat */
    int64_t heard_ns, gone_ns;      /* when that was seen; since when the key is gone; 0 */
} roster_node;

/* One agent's view. Of one thread, but for what roster_join has set. */
typedef struct roster {
    worker_spec *spec;       /* borrowed; of counts_nodes: completed once all are there */
    store_server *server;    /* node 0's agent, borrowed; the others': NULL */
    const atomic_bool *quit; /* set by another thread: give up */
    char prefix[SPEC_RUN_ID_BYTES + 24]; /* all keys': "<run id>/", elastic "<run id>/<round>/" */
    store *client;                       /* NULL: there is no connection */
    int member;                          /* this node's number; -1: none yet */
    char token[ROSTER_TOKEN_BYTES];
    int64_t own_set;    /* the revision of its latest heartbeat; 0: none */
    roster_node *nodes; /* spec->nnodes as it was */
    int64_t revision;   /* as of which they are */
} roster;

/* Borrows all that it is given. STATUS_NO_MEMORY. */
status roster_init(roster *r, worker_spec *spec, store_server *server, const atomic_bool *quit);
void roster_close(roster *r); /* the number is free again */

/* "hostA at eth0 (10.0.0.1), pid 4711": who this agent is, for messages on other nodes. */
void roster_who(const worker_spec *spec, char out[ROSTER_WHO_BYTES]);

/* One attempt to connect to the store. STATUS_UNKNOWN_HOST, STATUS_REFUSED; STATUS_PEER: no
 * way there; STATUS_TIMEOUT: no answer; STATUS_IO: what listens there is no store. */
status roster_reach(const roster *r, store **out);

/* Connects to the store and returns once all nodes are there; says every few seconds what it waits
 * for. STATUS_INVALID if something else listens there, or the nodes' settings, numbers or jobs do
 * not fit; STATUS_TIMEOUT if the store was not reached within spec->join_ms, or the others have not
 * come within so long after that, with who is missing; STATUS_REFUSED if node 0's agent is gone;
 * STATUS_PEER once *quit. */
status roster_join(roster *r);

/* Who holds a node's number, or held it last, in its own words; "?". */
void roster_holder(const roster_node *node, char who[ROSTER_WHO_BYTES]);

/* This node's sign of life. STATUS_INVALID, with who it is, if another process holds its number. */
status roster_beat(roster *r);

/* Looks who lives. */
status roster_look(roster *r);

/* How many nodes a job has whose --world-size alone is given: those that have come, once no other
 * has for a while. Node 0 decides. */

enum { NODE_COUNT_QUIET_MS = 5000 };

/* All zero before the first look. */
typedef struct node_count {
    int nodes;        /* how many are there */
    int expected;     /* up to the highest number of them, and two at least */
    int64_t since_ns; /* since when that is so */
    bool is_news;     /* that has changed with this look */
} node_count;

/* Looks at there[]. Whether nodes 0 to k are there, k >= 1, and none has come or gone for
 * NODE_COUNT_QUIET_MS, or it is late. */
bool node_count_look(node_count *count, const worker_spec *spec, const bool *there, bool is_late);

/* Node 0 decides. STATUS_INVALID, with what to type, if the ranks do not divide by the nodes. */
status node_count_publish(const node_count *count, const worker_spec *spec, store *client,
                          const char *prefix);

/* The spec of a job that has so many nodes. */
void node_count_apply(worker_spec *spec, int nodes);

#endif
