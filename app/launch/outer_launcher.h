/* Launchers that are not ours, and name ranks in the environment in words of their own: mpirun,
 * srun. Each process that they start is a whole mnist_ddp, and would train alone. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H
#define MNIST_DDP_APP_LAUNCH_OUTER_LAUNCHER_H

#include "app/options/options.h"

#include <stdbool.h>

typedef struct outer_launcher {
    const char *name;     /* "mpirun (Open MPI)" */
    const char *variable; /* that gave it away: "OMPI_COMM_WORLD_RANK" */
    int rank;
    int size;       /* -1: it does not say */
    int local_size; /* processes on this machine; -1: it does not say */
} outer_launcher;

/* Is this one of several processes that such a launcher has started? */
bool outer_launcher_find(outer_launcher *out);

/* STATUS_INVALID, with what to type instead, if each of those processes would train alone: there is
 * no --launcher=none, and they are not the launchers of `nnodes` > 1 nodes. */
status outer_launcher_check(const options *opts, int nnodes);

#endif
