/* What every backend must do when a rank dies, hangs or leaves, as functions for
 * run_rank_processes and run_ranks (tests/support/ranks.h). */
#ifndef MNIST_DDP_TESTS_SUPPORT_DEATHS_H
#define MNIST_DDP_TESTS_SUPPORT_DEATHS_H

#include "tests/support/ranks.h"

typedef struct death {
    int rank;   /* who dies, in its fourth collective */
    int signal; /* SIGKILL, SIGSTOP, or 0: returns, and so closes its group */
} death;

/* arg: death. Returns the failure of the collective in which the rank died, once the group has been
 * found broken; STATUS_OK on the rank that leaves. */
status deaths_in_all_reduce(process_group *group, int rank, int world_size, void *arg);

#endif
