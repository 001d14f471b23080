/* The best of a run's checkpoints, by the tests that they were saved after. It is one as the others
 * are: <run_dir>/checkpoints/best is a symbolic link to its folder. The link may be missing or old
 * if a run was killed; the checkpoints themselves say which is the best. */
#ifndef MNIST_DDP_MODEL_BEST_CHECKPOINT_H
#define MNIST_DDP_MODEL_BEST_CHECKPOINT_H

#include "model/checkpoint.h"

/* Whether `a` is better: more of the images right; of equals the smaller loss. False if `a` was not
 * taken or has a loss that is not finite; any is better than one that was not taken. */
bool best_checkpoint_is_better(const checkpoint_test *a, const checkpoint_test *b);

/* The best of the whole checkpoints up to `step`, of equals the earliest. *found is false, and *out
 * left alone, if none was saved after a test. STATUS_IO if the folder cannot be read. */
status best_checkpoint_find(const char *run_dir, int64_t step, bool *found, checkpoint_state *out);

/* Makes checkpoints/best the checkpoint of this step, in one rename. STATUS_IO: a file system
 * without links, or somebody's folder has that name. */
status best_checkpoint_link(const char *run_dir, int64_t step);

#endif
