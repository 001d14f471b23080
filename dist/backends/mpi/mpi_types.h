/* Our types and reductions as MPI knows them. */
#ifndef MNIST_DDP_DIST_BACKENDS_MPI_MPI_TYPES_H
#define MNIST_DDP_DIST_BACKENDS_MPI_MPI_TYPES_H

#include "base/status.h"
#include "dist/collective/collective.h"

#include <mpi.h>

/* Once in a process, after MPI has begun and before the functions below. */
status mpi_types_make(void);

MPI_Datatype mpi_types_data(dtype type);

/* REDUCE_AVG is a sum here: reduce_divide ends it. 16-bit floats are rounded after every step. */
MPI_Op mpi_types_op(dtype type, reduce_op op);

#endif
