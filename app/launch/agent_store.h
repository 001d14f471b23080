/* The store of a launch, which the agent of one node serves: torchrun's agent store. What is to be
 * typed on the other nodes, the way from there to the store, and how many of them come. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_STORE_H
#define MNIST_DDP_APP_LAUNCH_AGENT_STORE_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

#include <stdatomic.h>

/* The agents' keys in it lie under this. */
#define AGENT_KEYS "mnist_ddp/launcher/"

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

/* What to type on another node of a job whose nodes are numbered: this command, with its number. A
 * line for a shell: all that was typed here but --node-rank, and what is known here by other
 * ways: node 0's address, variables, a file. `node`: its number; -1: "N". Free with free(). NULL:
 * no memory, or the spec is of no command line. */
char *agent_store_join_command(const worker_spec *spec, int node);

enum { AGENT_STORE_STRANGER_MS = 5000 }; /* what is silent so long is no store of ours */

/* One attempt to connect, by way of `server` if that is this node's own (NULL: it is not).
 * STATUS_UNKNOWN_HOST, STATUS_REFUSED; STATUS_PEER: no way there; STATUS_TIMEOUT: no answer;
 * STATUS_IO: what listens there is no store. */
status agent_store_reach(const worker_spec *spec, const store_server *server, store **out);

/* Tries until it is connected, and says every few seconds what it waits for. STATUS_INVALID if
 * something else listens there; STATUS_TIMEOUT after spec->rdzv.join_ms; STATUS_REFUSED if node 0's
 * agent is gone; STATUS_PEER once *cancelled. */
status agent_store_await(const worker_spec *spec, const store_server *server,
                         const atomic_bool *cancelled, store **out);

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
