/* The agent: starts this node's workers, watches them, says what failed first, and starts them
 * again if restarts are left. One runs on each node.
 *
 * Its states:
 *
 *              +---------------- restarts are left ------------------+
 *              v                                                     |
 *   JOINING -> RUNNING --> FAILING --> STOPPING --> KILLING --> (how it ended) --> the exit code
 *                 |          ^            ^
 *                 +-> SAVING-+------------+
 *
 * docs/internals/launch.md has a table: what is done in each state, and when it goes on to which.
 * RUNNING and FAILING go on to LEAVING in an elastic job whose round is over, or that ends for this
 * node by a signal. As soon as no worker is left, in whatever state that is, the attempt has ended:
 * SUCCEEDED, PREEMPTED, DIVERGED, SIGNALED, STOPPED, LEFT, FAILED or BROKEN. Node 0 hears that of
 * all nodes (roster.h) and decides what all do next (outcome.h). spec->now.round counts attempts: a
 * static job's from 0 (--max-restarts), an elastic one's from 1; there 0 is before the first.
 * The times are those of shutdown_policy (worker_spec.h).
 */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_H
#define MNIST_DDP_APP_LAUNCH_AGENT_H

#include "app/launch/worker_spec.h"

/* Starts the workers (fork + exec with torchrun's environment), watches them, and returns the exit
 * code: 0 if all return 0, else that of the first cause (128 + n for signal n, to a worker or to
 * the agent; EXIT_CODE_PREEMPTED after a last checkpoint; EXIT_CODE_DIVERGED). After a failure on
 * any node all nodes start their workers again, spec->max_restarts times at most, as the next
 * attempt.
 *
 * Node 0 serves the store, and workers join it as clients. Workers' stdout is the agent's; their
 * stderr is forwarded line by line; spec->logs may say otherwise. No worker outlives the agent,
 * whatever ends it. `started_ns`: when the agent started, clock_now_ns().
 *
 * To be called on the only thread of a process that exits afterwards: the signals that it waits for
 * stay blocked. */
int agent_run(worker_spec *spec, int64_t started_ns);

#endif
