/* Whose a run's folder is. A lock says so, for as long as the process lives that holds it. In an
 * elastic job that may be too long: a node is stopped, and the others go on without it. So there is
 * also a file, round.json, with the round whose rank 0 has the folder:
 *
 *   {"run_id":"123","round":4}
 *
 * Rank 0 of a later round of the same job takes the folder also from one that holds the lock. That
 * one looks at the file, and at its node's lease, before it commits anything there. */
#ifndef MNIST_DDP_APP_TRAIN_FOLDER_OWNER_H
#define MNIST_DDP_APP_TRAIN_FOLDER_OWNER_H

#include "app/train/rank_context.h"

/* Whether the folder can be this rank's. *lock_fd: to be closed by the caller; -1: the lock is
 * still another process's. STATUS_INVALID: another run has it; STATUS_PEER: a later round. */
status folder_owner_take(const rank_context *rank, const char *path, int *lock_fd);

/* It is, and goes on there. If the file cannot be written there is a warning. */
void folder_owner_note(const rank_context *rank, const char *path);

/* Before something is committed there. STATUS_PEER: the round is over, the node's lease has ended,
 * or a later round has the folder. Takes the lock if it was another's, and is free now. */
status folder_owner_check(const rank_context *rank, const char *path, int *lock_fd);

#endif
