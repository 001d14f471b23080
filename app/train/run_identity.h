/* Which run a checkpoint is of: what a run that resumes must share with the one that it continues,
 * and what each checkpoint says of that. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_IDENTITY_H
#define MNIST_DDP_APP_TRAIN_RUN_IDENTITY_H

#include "app/train/position.h"
#include "app/train/rank_context.h"
#include "model/checkpoint.h"

#include <stdbool.h>

/* What a checkpoint of this run at this position says; without tests, the best one and loss
 * scaling. */
checkpoint_state run_identity_at(rank_context *rank, const position *at);

/* Sets rank->sums. `began`: those of the checkpoint or round that the run goes on from; "": it
 * begins. Rank 0 says so if it adds in another order now. */
void run_identity_continue_sums(rank_context *rank, const char *began);

/* Whether this run may continue the one in folder `path` that has written `was`. STATUS_INVALID,
 * with the first setting that differs, or the data; a warning if those are not known. */
status run_identity_check(rank_context *rank, const char *path, const checkpoint_state *was);

/* Whether this launch has written it, before its workers were started again; true if no launcher of
 * ours has started this one. */
bool run_identity_is_launch(const rank_context *rank, const checkpoint_state *was);

#endif
