/* The environment of a worker: the launcher's own, with torchrun's variables. */
#ifndef MNIST_DDP_APP_LAUNCH_ENVIRONMENT_H
#define MNIST_DDP_APP_LAUNCH_ENVIRONMENT_H

#include "app/launch/launch_settings.h"

/* Threads that a worker may use where nobody has said: the cores shared out; 0: nobody needs to be
 * told (a single worker, or OMP_NUM_THREADS is set). */
int launch_environment_threads(const launch_settings *settings);

/* What differs from worker to worker, and from start to start. */
typedef struct launch_place {
    int rank, local_rank;
    int generation;
    int master_port;
    int64_t started_ns; /* of the launcher */
    bool log_tty;
} launch_place;

/* Sets *out to a NULL-ended array of "NAME=value", one block of memory: free with free(). The
 * launcher's environ must not change before. */
status launch_environment_create(const launch_settings *settings, const launch_place *place,
                                 char ***out);

/* Only what the launcher itself sets, as one text of "NAME=value" parted by blanks; free with
 * free(). */
status launch_environment_describe(const launch_settings *settings, const launch_place *place,
                                   char **out);

#endif
