/* What to start on this node, and where it stands among the others: from flags and environment. */
#ifndef MNIST_DDP_APP_LAUNCH_PLAN_H
#define MNIST_DDP_APP_LAUNCH_PLAN_H

#include "app/options/options.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SPEC_MAX_NPROC = 1024,
    SPEC_ADDRESS_BYTES = 256,
    SPEC_RUN_ID_BYTES = 128,
    SPEC_ROLE_BYTES = 64,
    SPEC_C10D_PORT = 29400, /* torchrun's, for --rdzv-backend=c10d */
};

/* Who serves the store. */
typedef enum store_host {
    STORE_HOST_HERE,
    STORE_HOST_ELSEWHERE,
    STORE_HOST_MAYBE_HERE, /* by the first launcher on the host of the endpoint */
} store_host;

typedef struct launch_plan {
    int nproc, nnodes, world_size;
    int node_rank;   /* -1 until the nodes have met: `by_arrival` */
    bool by_arrival; /* c10d: nodes are numbered as they come, the one that serves the store is 0 */
    store_host server;
    char master_addr[SPEC_ADDRESS_BYTES];
    int master_port;        /* 0: one node, a free one */
    bool store_on_loopback; /* it is served on master_addr only, not on all addresses */
    char local_addr[SPEC_ADDRESS_BYTES]; /* this machine, as others know it; "": by the route */
    char run_id[SPEC_RUN_ID_BYTES];
    char role[SPEC_ROLE_BYTES];
    int max_restarts;
    int64_t join_ms, monitor_ms;
    int64_t keep_alive_ms; /* a launcher shows so often that it lives; */
    int keep_alive_misses; /* silent so many times, it is taken for dead */
} launch_plan;

/* GPUs of this machine where the number of ranks depends on them; elsewhere 0, and no driver is
 * asked. */
status launch_plan_count_gpus(const options *opts, int *out);

/* Flags come first, then PET_NPROC_PER_NODE and so on. world_size == 1 && nnodes == 1: `train`
 * needs no launcher. STATUS_INVALID where the settings do not fit each other; the message says what
 * to type. */
status launch_plan_make(const options *opts, int cpu_count, int gpu_count, launch_plan *out);

#endif
