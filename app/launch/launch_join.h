/* How the launchers of a job find each other: by membership and leases on the nodes' numbers. */
#ifndef MNIST_DDP_APP_LAUNCH_JOIN_H
#define MNIST_DDP_APP_LAUNCH_JOIN_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

#include <stdatomic.h>

#define LAUNCH_KEYS "mnist_ddp/launcher/"

typedef struct launch_joining {
    const worker_spec *spec;
    char prefix[RUN_ID_BYTES + 1]; /* of the job's keys: "<run id>/" */
    bool serves;                   /* this node serves the store, */
    int port;                      /* here, */
    const char *host; /* and reaches it by this address; NULL: another node serves it */
    const atomic_bool *quit;
} launch_joining;

/* One attempt to connect to the store. STATUS_UNKNOWN_HOST, STATUS_REFUSED; STATUS_PEER: no
 * way there; STATUS_TIMEOUT: no answer; STATUS_IO: what listens there is no store. */
status launch_join_reach(const launch_joining *joining, store **out);

/* Connects to the store, patiently, and says every few seconds what it waits for. STATUS_TIMEOUT
 * after join_ms; STATUS_INVALID if something else listens there; STATUS_PEER once *quit. */
status launch_join_connect(const launch_joining *joining, store **out);

/* Meets the others: *node is this one's number. STATUS_INVALID if the nodes' settings, numbers
 * or jobs do not fit; STATUS_TIMEOUT, with who is missing. */
status launch_join_meet(const launch_joining *joining, store *client, int *node);

#endif
