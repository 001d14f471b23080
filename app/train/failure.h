/* What a rank that fails leaves behind: who it waited for, its last collectives, and why. */
#ifndef MNIST_DDP_APP_TRAIN_FAILURE_H
#define MNIST_DDP_APP_TRAIN_FAILURE_H

#include "app/train/rank_context.h"

/* After a failure with the group still open: writes the last collectives and, if a collective
 * failed, adds to this thread's message which rank it was that the others waited for. Returns `st`.
 * Takes some seconds at most. */
status failure_explain(const rank_context *rank, status st);

/* process_group_options.stuck, of the rank_context `ctx`: says what failed and whom it waited for,
 * and ends the process with the exit code of `st`. The last entries of the rank's status page and
 * of the flight recorder stay as they are: the thread that hangs may hold the group's lock. */
void failure_end_stuck(void *ctx, status st);

/* Writes the last collectives. To be called from any thread. */
status failure_dump(const rank_context *rank);

/* $TORCHELASTIC_ERROR_FILE, as torchrun's workers write it, from this thread's message; nothing
 * if the variable is not set. A failure to write it is logged. */
void failure_write_error_file(status st, int rank, int exit_code);

/* exit_code_failed, and that file, for a process that ends before any rank has a number. */
int failure_before_start(status st, int otherwise);

#endif
