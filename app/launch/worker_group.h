/* All workers of this node. They are started, signalled and read from together; the agent says when
 * (agent.h). */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H
#define MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H

#include "app/launch/orphan_reaper.h"
#include "app/launch/worker.h"
#include "dist/health/hang_report.h"
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
    int cause; /* the worker that failed first, by what is known so far: its index; -1: none */
    int n_failed;
    rank_snapshot *snapshots; /* where the ranks were at the first failure: n; NULL: not known */
} worker_group;

/* For spec->nproc workers. `start` is copied, but for its error_fd and terminal_fd. The console
 * must outlive the group. Blocks SIGCHLD for good. STATUS_IO. */
status worker_group_create(const worker_start *start, output_console *console, worker_group *out);
void worker_group_destroy(worker_group *group);

/* Forgets the workers of the attempt before that have ended. */
void worker_group_clear(worker_group *group, int attempt);

/* Starts all workers; those that wait for their next place get it. After a failure some may be
 * running. */
status worker_group_start(worker_group *group);

/* To all that run. */
void worker_group_signal(const worker_group *group, int signal);

/* Elastic: to all that run (ELASTIC_PAUSE, ELASTIC_LEAVE). */
void worker_group_tell(const worker_group *group, elastic_word word);

bool worker_group_some_wait(const worker_group *group);

/* Those that wait for their next place count as running again: to be ended. */
void worker_group_resume(worker_group *group);

/* Asks all that run for a last checkpoint, because of this signal. */
void worker_group_ask(const worker_group *group, int signal);

/* A worker that has ended since the last call, in this attempt; NULL: none. */
worker *worker_group_next_ended(worker_group *group);

/* This worker failed by itself. The cause is then the one that failed first, of those that tell
 * most. */
void worker_group_note_failure(worker_group *group, worker *w);

/* Whether some have failed, and each of them only because another worker went away. */
bool worker_group_only_lost(const worker_group *group);

/* If this signal ended the cause, no worker has failed. A signal to the whole process group may end
 * a worker before the agent reads it. */
void worker_group_drop_cause_by(worker_group *group, int signal);

/* Reads where the ranks are from their status pages (dist/health/rank_status.h), before the agent
 * stops any. Ranks that are stopped or dead have a page too. Once an attempt. */
void worker_group_snapshot_ranks(worker_group *group);

/* hang_report_lines of what was read. Free with free(); NULL: nothing is known. */
char *worker_group_describe_ranks(const worker_group *group);

/* hang_report_name of the same. */
void worker_group_name_hung(const worker_group *group, char out[HANG_REPORT_WHO_BYTES]);

/* Where one worker was last: "in the forward pass of step 12, epoch 1"; "" if that is not known. */
const char *worker_group_last_place(const worker_group *group, int index);

/* For poll(): fills up to WORKER_GROUP_FDS * n entries, open descriptors only; returns how many. */
enum { WORKER_GROUP_FDS = 3 };
int worker_group_poll(worker_group *group, struct pollfd *out);

/* After poll(): shows what the workers wrote, and hears who has left its round. */
void worker_group_read(worker_group *group, const struct pollfd *polled);

/* Once none runs: reads the last lines. KILL_LEFTOVERS: kills what the workers of a foreign program
 * have left running. */
typedef enum worker_leftovers { KEEP_LEFTOVERS, KILL_LEFTOVERS } worker_leftovers;
void worker_group_finish(worker_group *group, worker_leftovers leftovers);

/* At least one worker ended with this exit code, and all others with it or, if allowed, 0. */
bool worker_group_all_exited_with(const worker_group *group, int code, bool or_zero);
bool worker_group_some_exited_with(const worker_group *group, int code);

/* At the agent's end, if none runs: if what the workers have left running holds their pipes, starts
 * a process that shows what it writes until all of it has ended. */
void worker_group_drain_leftovers(const worker_group *group);

#endif
