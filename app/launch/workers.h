/* The workers of a node: the processes of its ranks. They are started, signalled and read from
 * together; the agent says when (agent.h). */
#ifndef MNIST_DDP_APP_LAUNCH_WORKERS_H
#define MNIST_DDP_APP_LAUNCH_WORKERS_H

#include "app/common/elastic_link.h"
#include "app/launch/output.h"
#include "app/launch/worker_spec.h"
#include "dist/health/first_cause.h"
#include "dist/health/hang_report.h"
#include "dist/health/rank_status.h"

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

/* What the name of a rank of ours begins with. The word before ':' is what pidof and pkill know. */
#define WORKER_TITLE "mnist_ddp: rank"

typedef struct worker {
    int rank, local_rank;
    int attempt;  /* in which it was started */
    pid_t pid;    /* 0: not started */
    bool running; /* in this attempt */
    bool waits;   /* elastic: it has left its round, and waits for its place in the next one */
    bool unmet;   /* likewise: the ranks of that round had not all met */
    int link_fd;  /* elastic: to it (app/common/elastic_link.h); 0: it has none */
    int rank_fd;  /* its own end, until it is started */
    bool reaped;
    bool was_stopped; /* the agent had sent it a signal when it ended */
    int wait_status;  /* as of waitpid, once ended */
    int start_errno;  /* why it could not be executed; 0 */
    int64_t ended_ns;
    int failure_order; /* n: it was the nth to fail by itself; 0: it did not */
    output_stream out, err;
} worker;

/* What all workers of an attempt share. */
typedef struct worker_start {
    const worker_spec *spec;
    int attempt;
    int64_t started_ns;   /* when the agent started */
    int error_fd;         /* a worker that cannot be executed writes worker_start_error to it */
    sigset_t signal_mask; /* the agent's, before it blocked any */
    uint64_t file_limit;  /* the agent's, before it raised it */
    int terminal_fd;      /* for rank 0's status line; rank 0 inherits it; 0: none */
    int fence_fd;         /* elastic: round_fence's, which all inherit; 0: none */
    bool has_told;        /* what holds for all nodes of a dry run */
} worker_start;

/* The variables that the agent sets for a worker, as one text of "NAME=value" parted by blanks;
 * free with free(). */
status worker_describe_environment(const worker *w, const worker_start *start, char **out);

typedef struct worker_group {
    worker_start start;
    int child_fd;  /* readable once a worker has ended: SIGCHLD */
    int error_fd;  /* the reading end of start.error_fd */
    int reaper_fd; /* to a process that ends what workers have left running; -1: none */
    pid_t *groups; /* which, in memory that it shares: by worker, 0: none; NULL: it is not there */
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

/* Its place in the order of root causes. A rank of ours that has waited in vain ends with a code of
 * its own, one that has lost another rank with one of its own: the first says more, whichever ends
 * first. The last lines of another program say it. */
cause_priority worker_failure_priority(const worker *w);

/* This worker failed by itself. The cause is then the one that failed first, of those whose
 * failure says most. */
void worker_group_note_failure(worker_group *group, worker *w);

/* Whether some have failed, and each of them only because another worker went away. */
bool worker_group_only_lost(const worker_group *group);

/* If this signal ended the cause, no worker has failed. A signal to the whole process group may end
 * a worker before the agent reads it. */
void worker_group_drop_cause_by(worker_group *group, int signal);

/* Reads where the ranks are from their status pages (dist/health/rank_status.h), before the agent
 * stops any. Ranks that are stopped or dead have a page too. Once an attempt. */
void worker_group_snapshot_ranks(worker_group *group);

/* For poll(): fills up to WORKER_GROUP_FDS * n entries, open descriptors only; returns how many. */
enum { WORKER_GROUP_FDS = 3 };
int worker_group_poll(worker_group *group, struct pollfd *out);

/* After poll(): shows what the workers wrote, and learns who has left its round. */
void worker_group_read(worker_group *group, const struct pollfd *polled);

/* Once none runs: reads the last lines. KILL_LEFTOVERS: kills what the workers of another program
 * have left running. */
typedef enum worker_leftovers { KEEP_LEFTOVERS, KILL_LEFTOVERS } worker_leftovers;
void worker_group_finish(worker_group *group, worker_leftovers leftovers);

/* How many workers ended with this exit code. */
int worker_group_exited_with(const worker_group *group, int code);

/* At the agent's end, if none runs: if what the workers have left running holds their pipes, starts
 * a process that shows what it writes until all of it has ended. */
void worker_group_drain_leftovers(const worker_group *group);

#endif
