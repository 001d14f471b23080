/* What strategies share that run a process, a rank, per device. The functions are entries of their
 * tables (strategy_ops.h), or most of one. */
#ifndef MNIST_DDP_APP_TRAIN_STRATEGY_RANKS_H
#define MNIST_DDP_APP_TRAIN_STRATEGY_RANKS_H

#include "app/train/rank_context.h"
#include "app/train/strategy_ops.h"

/* They take no --replicas, and no --backend that is for threads. */
status strategy_ranks_check(const options *opts);

/* Of the rank's whole batch. `ready` as network_backward calls it; NULL: it is not called. */
status strategy_ranks_forward_backward(rank_context *rank, const step_batch *b, grad_ready_fn ready,
                                       void *ctx);

/* On every rank: clips the gradients if --clip-grad-norm says so, then steps. */
status strategy_ranks_optimizer_step(rank_context *rank, void *self);

/* Through the ranks' process group. */
const char *strategy_ranks_backend(const rank_context *rank, void *self);
device_use strategy_ranks_use(const rank_context *rank, void *self, int index);

#endif
