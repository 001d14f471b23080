/* The store of a launch, which the agent of one node serves: torchrun's agent store. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_STORE_H
#define MNIST_DDP_APP_LAUNCH_AGENT_STORE_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

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
char *join_command(const worker_spec *spec, int node);

/* Says in the log which ranks this node has, and where the store is. */
void agent_store_describe(const worker_spec *spec);

#endif
