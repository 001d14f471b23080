/* MPI in this process: it begins once, at the first group, and ends with the process.
 *
 * Calls of MPI may come from any thread, one at a time (MPI_THREAD_SERIALIZED). A call that waits
 * for other ranks, as MPI_Init does, runs on a thread of its own: MPI has no deadlines, and cannot
 * be left.
 */
#ifndef MNIST_DDP_DIST_BACKENDS_MPI_MPI_PROCESS_H
#define MNIST_DDP_DIST_BACKENDS_MPI_MPI_PROCESS_H

#include "base/status.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

/* STATUS_OK, or STATUS_PEER with the call and MPI's words. The communicators that this process
 * makes, and what belongs to them, return errors (MPI_ERRORS_RETURN). */
#define MPI_CALL(call) mpi_process_status((call), #call, __FILE__, __LINE__)
status mpi_process_status(int code, const char *call, const char *file, int line);

/* Between the two this thread may call MPI. STATUS_INVALID, without the lock, if an earlier failure
 * has left calls under way: MPI could write to memory that is no longer theirs. */
status mpi_process_enter(void);
void mpi_process_leave(void);

/* STATUS_INVALID, with what to type, if no launcher of MPI has started this process. */
status mpi_process_check(void);

/* The job of MPI that this process is part of; no other has that name. */
const char *mpi_process_job(void);

/* Begins MPI, unless it has begun. All processes of MPI's job must do so, if one does.
 * STATUS_TIMEOUT at the deadline. A group that is open keeps MPI until mpi_process_close. */
status mpi_process_open(int64_t deadline_ns);

/* Makes a communicator of n ranks, which all do the same: rank i is world[i] of MPI_COMM_WORLD.
 * `tag` tells communicators apart that are made at the same time. STATUS_TIMEOUT at the deadline.
 */
status mpi_process_make_comm(const int *world, int n, int tag, int64_t deadline_ns, MPI_Comm *out);

/* A group has ended; `well`: no call of MPI's is left under way. If all have ended well when the
 * process exits, it ends MPI with the others. Else MPI's launcher finds a process that has ended
 * without a word, and ends the others: MPI_Finalize would wait for them for ever. */
void mpi_process_close(bool well);

#endif
