/* The launcher: starts this machine's ranks, watches them, and says what failed first. */
#ifndef MNIST_DDP_APP_LAUNCH_H
#define MNIST_DDP_APP_LAUNCH_H

#include "app/options/options.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LAUNCH_GRACE_MS = 300,     /* after a failure: survivors may say themselves what they saw */
    LAUNCH_STOP_MS = 2000,     /* then SIGTERM; this much later SIGKILL */
    LAUNCH_SIGNAL_MS = 5000,   /* the same after a signal to the launcher */
    LAUNCH_GOODBYE_MS = 10000, /* node 0 keeps the store for other nodes' launchers so long */
    LAUNCH_MAX_NPROC = 1024,
};

/* What to start on this node, from options and environment. */
typedef struct launch_plan {
    int nproc, nnodes, node_rank, world_size;
    char master_addr[256];
    int master_port;        /* 0: one node, a free one */
    bool store_on_loopback; /* node 0 serves the store on master_addr only, not on all addresses */
    char run_id[128];
} launch_plan;

/* Flags come first, then PET_NPROC_PER_NODE, PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and
 * PET_MASTER_PORT. world_size == 1 && nnodes == 1: no launcher is needed.
 * STATUS_INVALID where the numbers do not fit each other; the message says what to type. */
status launch_plan_make(const options *opts, int cpu_count, int gpu_count, launch_plan *out);

/* Starts the workers (fork + exec of /proc/self/exe with the same arguments and torchrun's
 * environment), watches them, and returns the exit code: 0 if all return 0, else that of the first
 * cause (128 + n for signal n, to a worker or to the launcher).
 *
 * Node 0 serves the store, and workers join it as clients. Workers' stdout is the launcher's; their
 * stderr is forwarded line by line. No worker outlives the launcher, whatever ends it. Workers also
 * get NODE_RANK, MNIST_DDP_LAUNCHED (`started_ns`: when the launcher started, clock_now_ns()) and,
 * where the launcher's stderr is a terminal, MNIST_DDP_LOG_TTY=1.
 *
 * SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the workers (unless ignored when the launcher began); a
 * second one kills them. To be called on the only thread of a process that exits afterwards: these
 * signals stay blocked. */
int launch_run(const launch_plan *plan, int argc, char **argv, int64_t started_ns);

#endif
