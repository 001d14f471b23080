/* Runs a function as the ranks of a job that Open MPI's mpirun has started: the test program starts
 * mpirun, which starts the test program as each rank. */
#ifndef MNIST_DDP_TESTS_SUPPORT_MPI_RANKS_H
#define MNIST_DDP_TESTS_SUPPORT_MPI_RANKS_H

#include "tests/support/ranks.h"

typedef struct mpi_function {
    const char *name;
    rank_fn fn;
    void *arg;
} mpi_function;

/* For main(): if this process is such a rank, runs the function that it was started for, on backend
 * mpi, and ends the process. The list ends with a name that is NULL. */
void mpi_ranks_serve(const mpi_function *list);

/* Why no rank can be started here; NULL: they can. */
const char *mpi_ranks_missing(void);

typedef struct mpi_run {
    int world_size;
    const char *name;   /* of the function */
    int64_t timeout_ms; /* 0: 20 s */
    int limit_s;        /* for all that the ranks do; 0: 60 s */
} mpi_run;

/* How mpirun ended; results[0..world_size-1] are set. */
typedef struct mpi_end {
    int exit_code; /* -1: it had to be killed at the limit */
    double seconds;
} mpi_end;
status mpi_ranks_run(const mpi_run *run, rank_result *results, mpi_end *end);

#endif
