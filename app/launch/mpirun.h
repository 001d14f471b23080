/* Ranks of backend mpi, which MPI's own launcher starts. */
#ifndef MNIST_DDP_APP_LAUNCH_MPIRUN_H
#define MNIST_DDP_APP_LAUNCH_MPIRUN_H

#include "app/launch/worker_spec.h"

/* Becomes mpirun, which starts this program with the same arguments as each rank of this host; so
 * its exit code is this process's. Returns only on failure: STATUS_INVALID, with what to type, if
 * there are several nodes, mpirun has started this process itself, or there is no mpirun or no
 * module mpi. */
status mpirun_become(const worker_spec *spec, int argc, char **argv);

/* Whether this process is one of the ranks that mpirun_become has started. The flags of a launcher
 * have been followed by then. */
bool mpirun_started_this(void);

#endif
