/* All workers of this node, of one attempt: started together, watched, stopped together. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H
#define MNIST_DDP_APP_LAUNCH_WORKER_GROUP_H

#include "app/launch/worker.h"
#include "dist/health/rank_status.h"

#include <poll.h>

/* A worker group goes through these phases in order, and need not enter all. */
typedef enum group_phase {
    PHASE_RUNNING,
    PHASE_GRACE,    /* a worker failed; the others may notice by themselves */
    PHASE_SAVING,   /* all were asked for a last checkpoint */
    PHASE_STOPPING, /* all were told to end */
    PHASE_KILLED,   /* all have got SIGKILL */
    PHASE_GIVEN_UP, /* and some did not end */
} group_phase;

/* How a worker group ended. */
typedef enum group_result {
    GROUP_SUCCEEDED, /* all ranks here ended well */
    GROUP_PREEMPTED, /* all wrote a checkpoint and ended, as they were asked to */
    GROUP_SIGNALED,  /* the launcher got a signal, and stopped them */
    GROUP_STOPPED,   /* they were stopped because of what happened on another node */
    GROUP_FAILED,    /* a rank here failed: `cause` */
    GROUP_BROKEN,    /* they could not be started or ended */
} group_result;

typedef struct worker_group {
    worker_start start;
    int error_fd; /* the reading end of start.error_fd */
    agent_console *console;
    worker *workers; /* n of them */
    int n, running;
    group_phase phase;
    int64_t deadline_ns; /* of the phase; not of PHASE_RUNNING */
    int cause;           /* index of the worker that failed first; -1 */
    int signal;          /* that stopped the launcher; 0 */
    bool hurried;        /* it got one while a failure was being dealt with */
    bool broken;         /* not all could be started */
    int n_failed;
    rank_snapshot *sights; /* where all were when trouble began, n of them; NULL: not known */
} worker_group;

/* For settings->plan.nproc workers. `start` is copied, but for its error_fd and orphan reaper; console
 * must outlive the worker group. */
status worker_group_create(const worker_start *start, agent_console *console, worker_group *out);
void worker_group_destroy(worker_group *group);

/* Starts all of a attempt; none where the launcher was told to stop, by this signal. On failure
 * those that were started are being stopped. */
status worker_group_start(worker_group *group, int attempt, int stopped_by);

/* None is left, or those that are left cannot be ended. */
bool worker_group_is_over(const worker_group *group);

/* Somewhere else a rank has failed: the workers may say what they saw, and are then stopped. */
void worker_group_stop(worker_group *group);

/* The launcher got this signal: stops the workers, or asks ours for a checkpoint. Another one makes
 * it harder. */
void worker_group_take_signal(worker_group *group, int signal);

/* For poll(): fills and returns up to 2 * n entries; only open ones, which their number may not
 * exceed. */
int worker_group_poll(worker_group *group, struct pollfd *out);
/* How long poll() may sleep; -1: for ever. */
int worker_group_wait_ms(const worker_group *group);

/* Behind poll(): shows what the workers wrote, notes who ended, and goes on to the next phase when
 * it is time. */
void worker_group_read(worker_group *group, const struct pollfd *polled);
void worker_group_reap(worker_group *group);
void worker_group_pass_deadline(worker_group *group);

/* Once it is over: the last lines; then no process of it, nor any that a worker left, is there. */
void worker_group_finish(worker_group *group);
group_result worker_group_result(const worker_group *group);

#endif
