/* Where the threads of one process meet for their collectives: who has come to which, and with what
 * data. One lock and one condition serve all; data is moved outside the lock. */
#ifndef MNIST_DDP_DIST_BACKENDS_LOCAL_BACKEND_LOCAL_H
#define MNIST_DDP_DIST_BACKENDS_LOCAL_BACKEND_LOCAL_H

#include "dist/collective/process_group_ops.h"

typedef struct local_hub local_hub;

/* For `world_size` threads, each of which creates its process group with this hub. */
status local_hub_create(int world_size, local_hub **out);

/* Accepts NULL. All groups on it must be gone. */
void local_hub_destroy(local_hub *hub);

/* The hub of sub-group `number` of this one's group, for `world_size` of its threads: made by the
 * first that asks, and gone with this one. */
status local_hub_sub(local_hub *hub, int number, int world_size, local_hub **out);

/* A send of so many bytes is copied, so that its sender need not wait. */
enum { LOCAL_KEPT_BYTES = 64 << 10 };

#endif
