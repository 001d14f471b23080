/* All workers of this node, of one generation: started together, watched, stopped together. */
#ifndef MNIST_DDP_APP_LAUNCH_GANG_H
#define MNIST_DDP_APP_LAUNCH_GANG_H

#include "app/launch/launch_worker.h"
#include "dist/rank_page.h"

#include <poll.h>

/* A gang goes through these phases in order, and need not enter all. */
typedef enum launch_phase {
    PHASE_RUNNING,
    PHASE_GRACE,    /* a worker failed; the others may notice by themselves */
    PHASE_SAVING,   /* all were asked for a last checkpoint */
    PHASE_STOPPING, /* all were told to end */
    PHASE_KILLED,   /* all have got SIGKILL */
    PHASE_GIVEN_UP, /* and some did not end */
} launch_phase;

/* How a gang ended. */
typedef enum launch_result {
    LAUNCH_DONE,      /* all ranks here ended well */
    LAUNCH_PREEMPTED, /* all wrote a checkpoint and ended, as they were asked to */
    LAUNCH_SIGNALED,  /* the launcher got a signal, and stopped them */
    LAUNCH_STOPPED,   /* they were stopped because of what happened on another node */
    LAUNCH_FAILED,    /* a rank here failed: `cause` */
    LAUNCH_BROKEN,    /* they could not be started or ended */
} launch_result;

typedef struct launch_gang {
    launch_start start;
    int error_fd; /* the reading end of start.error_fd */
    launch_console *console;
    launch_worker *workers; /* n of them */
    int n, running;
    launch_phase phase;
    int64_t deadline_ns; /* of the phase; not of PHASE_RUNNING */
    int cause;           /* index of the worker that failed first; -1 */
    int signal;          /* that stopped the launcher; 0 */
    bool hurried;        /* it got one while a failure was being dealt with */
    bool broken;         /* not all could be started */
    int n_failed;
    rank_sight *sights; /* where all were when trouble began, n of them; NULL: not known */
} launch_gang;

/* For settings->plan.nproc workers. `start` is copied, but for its error_fd and guardian; console
 * must outlive the gang. */
status launch_gang_create(const launch_start *start, launch_console *console, launch_gang *out);
void launch_gang_destroy(launch_gang *gang);

/* Starts all of a generation; none where the launcher was told to stop, by this signal. On failure
 * those that were started are being stopped. */
status launch_gang_start(launch_gang *gang, int generation, int stopped_by);

/* None is left, or those that are left cannot be ended. */
bool launch_gang_is_over(const launch_gang *gang);

/* Somewhere else a rank has failed: the workers may say what they saw, and are then stopped. */
void launch_gang_stop(launch_gang *gang);

/* The launcher got this signal: stops the workers, or asks ours for a checkpoint. Another one makes
 * it harder. */
void launch_gang_take_signal(launch_gang *gang, int signal);

/* For poll(): fills and returns up to 2 * n entries; only open ones, which their number may not
 * exceed. */
int launch_gang_poll(launch_gang *gang, struct pollfd *out);
/* How long poll() may sleep; -1: for ever. */
int launch_gang_wait_ms(const launch_gang *gang);

/* Behind poll(): shows what the workers wrote, notes who ended, and goes on to the next phase when
 * it is time. */
void launch_gang_read(launch_gang *gang, const struct pollfd *polled);
void launch_gang_reap(launch_gang *gang);
void launch_gang_pass_deadline(launch_gang *gang);

/* Once it is over: the last lines; then no process of it, nor any that a worker left, is there. */
void launch_gang_finish(launch_gang *gang);
launch_result launch_gang_result(const launch_gang *gang);

#endif
