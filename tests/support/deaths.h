/* What every backend must do when a rank dies, hangs or leaves, as functions for
 * run_rank_processes and run_ranks (tests/support/ranks.h). */
#ifndef MNIST_DDP_TESTS_SUPPORT_DEATHS_H
#define MNIST_DDP_TESTS_SUPPORT_DEATHS_H

#include "tests/support/ranks.h"

typedef struct death {
    int rank;      /* who dies, in its fourth collective */
    int signal;    /* SIGKILL, SIGSTOP, or 0: returns, and so closes its group */
    int sleep_ms;  /* sleeps before that */
    bool before;   /* dies before it has launched its own: a device, or gloo's thread, could
                     complete that */
    int late_rank; /* comes to that all_reduce 150 ms after the others; 0: none does */
} death;

/* arg: death. Returns the failure of the collective in which the rank died, once the group has been
 * found broken; STATUS_OK on the rank that leaves. */
status deaths_in_all_reduce(process_group *group, int rank, int world_size, void *arg);

/* The same on the memory of the rank's device, of whose backend the host learns it while it waits
 * for the device. */
status deaths_on_device(process_group *group, int rank, int world_size, void *arg);

/* The same with collectives that are replayed from a graph. */
status deaths_in_graph(process_group *group, int rank, int world_size, void *arg);

#endif
