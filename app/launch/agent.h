/* The agent: starts this machine's workers, watches them, says what failed first, and starts them
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
 *   state      what is done              goes on to
 *   JOINING    the agents of all nodes   RUNNING    all are there
 *              meet
 *   RUNNING    all workers are started   FAILING    a worker failed, here or on another node
 *                                        SAVING     SIGTERM or SIGUSR1, and they are `train`
 *                                        STOPPING   another signal; not all could be started
 *   FAILING    nothing: survivors say    STOPPING   after SHUTDOWN_GRACE_MS, or a signal
 *              what they saw
 *   SAVING     SIGUSR1 to all: write a   FAILING    a worker failed
 *              checkpoint and end        STOPPING   after save_ms, a second signal, or a worker
 *                                                   that a signal ended instead
 *   STOPPING   SIGTERM to all            KILLING    after stop_ms (signal_ms after a signal), or
 *                                                   one more signal (two, if none came before)
 *   KILLING    SIGKILL to all            BROKEN     after 5 s: some did not end
 *
 * As soon as no worker is left, in whatever state that is, the attempt has ended: SUCCEEDED,
 * PREEMPTED, SIGNALED, STOPPED, FAILED or BROKEN. Node 0 hears that of all nodes (coordinator.h)
 * and decides what all do next (group_outcome.h). The times are those of shutdown_policy
 * (worker_spec.h).
 */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_H
#define MNIST_DDP_APP_LAUNCH_AGENT_H

#include "app/launch/worker_spec.h"

typedef enum agent_state {
    AGENT_JOINING, /* no worker was started yet */

    /* Workers run. */
    AGENT_RUNNING,
    AGENT_FAILING,  /* a worker failed; the others may notice by themselves */
    AGENT_SAVING,   /* all were asked for a last checkpoint */
    AGENT_STOPPING, /* all were told to end */
    AGENT_KILLING,  /* all have got SIGKILL */

    /* How an attempt ended. */
    AGENT_SUCCEEDED, /* all workers here ended well */
    AGENT_PREEMPTED, /* all wrote a checkpoint and ended, as they were asked to */
    AGENT_SIGNALED,  /* the agent got a signal, and stopped them */
    AGENT_STOPPED,   /* they were stopped because of what happened on another node */
    AGENT_FAILED,    /* a worker here failed */
    AGENT_BROKEN,    /* they could not be started or ended */
} agent_state;

/* Starts the workers (fork + exec with torchrun's environment), watches them, and returns the exit
 * code: 0 if all return 0, else that of the first cause (128 + n for signal n, to a worker or to
 * the agent; EXIT_CODE_PREEMPTED after a last checkpoint). After a failure on any node all nodes
 * start their workers again, spec->max_restarts times at most, as the next attempt.
 *
 * Node 0 serves the store, and workers join it as clients. Workers' stdout is the agent's; their
 * stderr is forwarded line by line; spec->logs may say otherwise. No worker outlives the agent,
 * whatever ends it. Workers also get NODE_RANK, MNIST_DDP_GENERATION, MNIST_DDP_DUMP_DIR,
 * MNIST_DDP_LAUNCHED (`started_ns`: when the agent started, clock_now_ns()) and, if the agent's
 * stderr is a terminal, MNIST_DDP_LOG_TTY=1.
 *
 * To be called on the only thread of a process that exits afterwards: the signals that it waits for
 * stay blocked. */
int agent_run(worker_spec *spec, int64_t started_ns);

#endif
