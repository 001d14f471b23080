/* One failure for all ranks of a hierarchical group. Each level names the peer that this rank has
 * lost there, and that may be one that gave up because of another. So the first failure that a rank
 * sees is kept in the store, and all ranks report it. */
#ifndef MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_FAILURE_H
#define MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_FAILURE_H

#include "dist/backends/hierarchical/hierarchical.h"

/* `st` is this thread's latest failure. Returns the first one of all ranks: this one, or another,
 * whose message is then this thread's. Asks the store; a rank that has lost one of another host
 * gives that host's ranks a moment to say more. */
status failure_share(const hierarchical *h, status st);

#endif
