/* All workers of this node: started together, signalled together, read from together. When to do
 * what is the agent's (agent.h). */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H
#define MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H

#include "app/launch/orphan_reaper.h"
#include "app/launch/worker.h"
#include "dist/health/rank_status.h"

#include <poll.h>

typedef struct worker_group {
    worker_start start;
    int child_fd;         /* readable once a worker has ended: SIGCHLD */
    int error_fd;         /* the reading end of start.error_fd */
    orphan_reaper reaper; /* of workers that have a process group of their own */
    output_console *console;
    worker *workers; /* n of them */
    int n, running;
    int cause; /* index of the worker that failed first, by what is known so far; -1 */
    int n_failed;
    rank_snapshot *seen; /* where all were when trouble began, n of them; NULL: not known */
} worker_group;

/* For spec->nproc workers. `start` is copied, but for its error_fd. The console must outlive the
 * group. Blocks SIGCHLD for good. STATUS_IO. */
status worker_group_create(const worker_start *start, output_console *console, worker_group *out);
void worker_group_destroy(worker_group *group);

/* Forgets the workers of the attempt before, which have ended. */
void worker_group_clear(worker_group *group, int attempt);

/* Starts all workers. After a failure some may be running. */
status worker_group_start(worker_group *group);

/* To all that run. */
void worker_group_signal(const worker_group *group, int signal);

/* A worker that has ended since the last call; NULL: none. */
worker *worker_group_next_ended(worker_group *group);

/* This worker failed by itself. The cause is then the one that failed first, of those that tell
 * most. */
void worker_group_note_failure(worker_group *group, worker *w);

/* Nobody has failed, if this signal ended the cause: sent to the whole process group, it may have
 * ended a worker before it came to the agent. */
void worker_group_forgive(worker_group *group, int signal);

/* Looks where the ranks are, before the first of them is stopped: at what ranks of ours note of
 * themselves (dist/health/rank_status.h), also those that are stopped or dead. Once an attempt. */
void worker_group_look(worker_group *group);

/* hang_report_lines of what was seen. Free with free(); NULL: nothing. */
char *worker_group_describe_seen(const worker_group *group);

/* Where one worker was last: "in the forward pass of step 12, epoch 1"; "" if that is not known. */
const char *worker_group_last_place(const worker_group *group, int index);

/* For poll(): fills and returns up to 2 * n entries; only open ones, which their number may not
 * exceed. */
int worker_group_poll(worker_group *group, struct pollfd *out);

/* After poll(): shows what the workers wrote. */
void worker_group_read(worker_group *group, const struct pollfd *polled);

/* Once none runs: reads the last lines. KILL_LEFTOVERS: of foreign programs, what a worker has
 * started and left is killed. */
typedef enum worker_leftovers { KEEP_LEFTOVERS, KILL_LEFTOVERS } worker_leftovers;
void worker_group_finish(worker_group *group, worker_leftovers leftovers);

/* At least one worker ended with this exit code, and all others with it or, if allowed, 0. */
bool worker_group_all_exited_with(const worker_group *group, int code, bool or_zero);

/* At the agent's end, when none runs: if what the workers have left running still holds their
 * pipes, starts a process that shows what comes out of them until all have ended. */
void worker_group_drain_leftovers(const worker_group *group);

#endif
