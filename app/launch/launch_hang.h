/* Where the ranks of this node were when trouble began: from the pages that ranks of ours keep
 * (dist/health/rank_status.h), also of those that are stopped or dead. */
#ifndef MNIST_DDP_APP_LAUNCH_HANG_H
#define MNIST_DDP_APP_LAUNCH_HANG_H

#include "app/launch/worker_group.h"
#include "dist/health/rank_status.h"

/* Looks at all of a worker group's ranks now. An array of worker group->n, free with free(); a rank without a page
 * has pid 0. NULL where there are none. */
rank_snapshot *launch_hang_look(const worker_group *group);

/* hang_report_lines of them. Free with free(); NULL: nothing. */
char *launch_hang_describe(const worker_group *group);

/* Where one rank was last: "in the forward pass of step 12, epoch 1"; "" where nothing is known. */
const char *launch_hang_place(const worker_group *group, int index);

#endif
