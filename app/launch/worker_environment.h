/* The environment of a worker: the launcher's own, with torchrun's variables. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_ENVIRONMENT_H
#define MNIST_DDP_APP_LAUNCH_WORKER_ENVIRONMENT_H

#include "app/launch/worker_spec.h"

/* Threads that a worker may use where nobody has said: the cores shared out; 0: nobody needs to be
 * told (a single worker, or OMP_NUM_THREADS is set). */
int worker_environment_threads(const worker_spec *spec);

/* What differs from worker to worker, and from start to start. */
typedef struct worker_place {
    int rank, local_rank;
    int attempt;
    int master_port;
    int64_t started_ns; /* of the launcher */
    bool log_tty;
} worker_place;

/* Sets *out to a NULL-ended array of "NAME=value", one block of memory: free with free(). The
 * launcher's environ must not change before. */
status worker_environment_create(const worker_spec *spec, const worker_place *place, char ***out);

/* Only what the launcher itself sets, as one text of "NAME=value" parted by blanks; free with
 * free(). */
status worker_environment_describe(const worker_spec *spec, const worker_place *place, char **out);

#endif
