/* The launcher: starts this machine's ranks, watches them, says what failed first, and starts them
 * again where that is wanted. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_H
#define MNIST_DDP_APP_LAUNCH_AGENT_H

#include "app/launch/worker_spec.h"

/* Starts the workers (fork + exec with torchrun's environment), watches them, and returns the exit
 * code: 0 if all return 0, else that of the first cause (128 + n for signal n, to a worker or to
 * the launcher; EXIT_CODE_PREEMPTED after a last checkpoint). After a failure on any node all nodes
 * start their workers again, plan.max_restarts times at most, as the next attempt.
 *
 * Node 0 serves the store, and workers join it as clients. Workers' stdout is the launcher's; their
 * stderr is forwarded line by line; settings.logs may say otherwise. No worker outlives the
 * launcher, whatever ends it. Workers also get NODE_RANK, MNIST_DDP_GENERATION, MNIST_DDP_DUMP_DIR,
 * MNIST_DDP_LAUNCHED (`started_ns`: when the launcher started, clock_now_ns()) and, where the
 * launcher's stderr is a terminal, MNIST_DDP_LOG_TTY=1.
 *
 * To be called on the only thread of a process that exits afterwards: the signals that it waits for
 * stay blocked. */
int agent_run(worker_spec *spec, int64_t started_ns);

#endif
