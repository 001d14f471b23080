/* A collective as requests of MPI: nonblocking calls, several if its data goes in pieces. The
 * functions call MPI: who calls them holds its lock (mpi_process.h). */
#ifndef MNIST_DDP_DIST_BACKENDS_MPI_MPI_REQUESTS_H
#define MNIST_DDP_DIST_BACKENDS_MPI_MPI_REQUESTS_H

#include "dist/collective/collective.h"

#include <mpi.h>
#include <stdbool.h>

enum { MPI_REQUESTS_MOST = 64 };

/* Where a rank stands in its group. */
typedef struct mpi_place {
    MPI_Comm comm;
    int rank, world_size;
} mpi_place;

/* All zero: none. */
typedef struct mpi_requests {
    MPI_Request list[MPI_REQUESTS_MOST];
    int n, done;       /* the first `done` of them are */
    MPI_Status latest; /* of the latest that is done */
    void *scratch;     /* a copy of what is sent, to be freed when all are done; or NULL */
} mpi_requests;

/* Starts it; the arrays are MPI's until it is done. STATUS_INVALID if it has more elements than one
 * call can move (INT_MAX) and does not go in pieces. */
status mpi_requests_start(const mpi_place *place, const collective *c, mpi_requests *out);

/* Moves on what this process has under way, and sets *done if all of these requests are done. */
status mpi_requests_test(mpi_requests *r, bool *done);

/* After all are done: what is left to be done to the result. STATUS_INVALID if a recv got another
 * number of elements. */
status mpi_requests_finish(const mpi_place *place, const collective *c, mpi_requests *r);

#endif
