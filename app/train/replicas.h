/* DataParallel's replicas: threads of this process, each with a device and a network of its own.
 * The caller's thread is the master and replica 0: its network, with the rank's device, has the
 * parameters that count.
 *
 * A batch is cut as torch.chunk cuts it, so the last chunk may be smaller, and there may be fewer
 * chunks than replicas: the replicas that are left over then do nothing at all. Every transfer is a
 * copy from one replica's memory to another's, through a process group among the threads.
 */
#ifndef MNIST_DDP_APP_TRAIN_REPLICAS_H
#define MNIST_DDP_APP_TRAIN_REPLICAS_H

#include "app/train/rank_context.h"
#include "app/train/strategy.h"

typedef struct replicas replicas;

/* Starts the threads of a rank whose network, gradients and loader are open, and returns when all
 * have theirs. STATUS_INVALID if a device or backend is not to be had. */
status replicas_create(rank_context *rank, replicas **out);

/* Accepts NULL. Also after a failure: replicas that wait for one another are called off. */
void replicas_destroy(replicas *all);

/* The next batch begins the step with this plan: every replica's device is told. */
void replicas_begin_step(replicas *all, const step_plan *plan);

/* The batch's gradients, added up over the replicas, into the master's: added to them unless
 * b->first. */
status replicas_forward_backward(replicas *all, const step_batch *b);

/* After a failure, also of later work on the device: what the master sees of a replica's failure is
 * that it is gone, and the replica itself knows more. Returns `st`, or the replica's with its
 * message. */
status replicas_explain(replicas *all, status st);

const char *replicas_backend(const replicas *all); /* "local", "nccl"; "none" for one replica */

/* What replica `index` has moved, and the most that its device's memory has held. */
device_use replicas_use(const replicas *all, int index);

#endif
