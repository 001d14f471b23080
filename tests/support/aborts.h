/* process_group_abort, the same for every backend. */
#ifndef MNIST_DDP_TESTS_SUPPORT_ABORTS_H
#define MNIST_DDP_TESTS_SUPPORT_ABORTS_H

#include "dist/process_group/process_group.h"

/* A rank_fn. The last rank stays away from a collective; the groups of the others, which wait for
 * it, are aborted from another thread. They fail at once, with the reason, and so does what they
 * begin afterwards. */
status aborts_end_waits(process_group *group, int rank, int world_size, void *arg);

/* A rank_fn, for up to 3. Rank 0's group is aborted while it does not wait, and closed: the others
 * hear why. */
status aborts_are_told(process_group *group, int rank, int world_size, void *arg);

#endif
