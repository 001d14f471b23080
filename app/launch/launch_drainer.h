/* What ranks that ended well have left running keeps its stderr, behind the launcher's end too. */
#ifndef MNIST_DDP_APP_LAUNCH_DRAINER_H
#define MNIST_DDP_APP_LAUNCH_DRAINER_H

#include "app/launch/worker_group.h"

/* Where pipes of a worker group that is over are still held by somebody: starts a process that shows what
 * comes out of them until all have ended. The launcher's threads have ended. */
void launch_drainer_start(const worker_group *group);

#endif
