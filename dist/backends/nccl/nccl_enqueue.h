/* Puts works on the group's own stream. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_ENQUEUE_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_ENQUEUE_H

#include "dist/backends/nccl/nccl_group.h"

/* Enqueues all works from `first` on as one: a single one, or a batch of sends and receives, none
 * of which waits for another. Records the events of each. The group's lock is held. */
status nccl_enqueue(nccl_group *g, nccl_work *first);

#endif
