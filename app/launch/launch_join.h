/* How the launchers of a job find each other: keys of agent_channel.h. */
#ifndef MNIST_DDP_APP_LAUNCH_JOIN_H
#define MNIST_DDP_APP_LAUNCH_JOIN_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

#include <stdatomic.h>

#define LAUNCH_KEYS "mnist_ddp/launcher/"

enum { LAUNCH_KEY_BYTES = SPEC_RUN_ID_BYTES + 64 };

typedef struct launch_joining {
    const worker_spec *spec;
    bool serves;      /* this node serves the store, */
    int port;         /* here, */
    const char *host; /* and reaches it by this address; NULL: another node serves it */
    const atomic_bool *quit;
} launch_joining;

/* "<run id>/<name>", and a number behind it unless it is negative. */
void launch_join_key(const launch_joining *joining, const char *name, int number,
                     char out[LAUNCH_KEY_BYTES]);

/* One attempt to connect to the store. STATUS_INVALID: no such name; STATUS_PEER: refused, or no
 * way there; STATUS_TIMEOUT: no answer; STATUS_IO: what listens there is no store. */
status launch_join_reach(const launch_joining *joining, store **out);

/* Connects to the store, patiently, and says every few seconds what it waits for. STATUS_TIMEOUT
 * after join_ms; STATUS_INVALID where something else listens there; STATUS_PEER once *quit. */
status launch_join_connect(const launch_joining *joining, store **out);

/* Meets the others: *node is this one's number. STATUS_INVALID where the nodes' settings, numbers
 * or jobs do not fit; STATUS_TIMEOUT, with who is missing. */
status launch_join_meet(const launch_joining *joining, store *client, int *node);

#endif
