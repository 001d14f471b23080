/* One worker process of the launcher: its start, its stderr, its end. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_H
#define MNIST_DDP_APP_LAUNCH_WORKER_H

#include "app/launch/launch.h"

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

enum { WORKER_LINES = 20, WORKER_LINE_BYTES = 4096, WORKER_KEPT_BYTES = 1000 };

typedef struct launch_worker {
    int rank, local_rank;
    pid_t pid; /* 0: not started */
    bool running;
    bool was_stopped; /* the launcher had sent it a signal when it ended */
    int wait_status;  /* of waitpid, once ended */
    int start_errno;  /* why it could not be executed; 0 */
    int64_t ended_ns;
    int stderr_fd;                /* the pipe's reading end, not blocking; -1: at its end */
    char line[WORKER_LINE_BYTES]; /* begun, not yet forwarded */
    size_t line_bytes;
    char *lines[WORKER_LINES]; /* the last ones, a ring: line k is at k % WORKER_LINES */
    int64_t lines_seen;
} launch_worker;

/* What every worker of this launch shares. */
typedef struct launch_start {
    const launch_plan *plan;
    char **argv;
    int master_port;
    int64_t started_ns;
    int error_fd;         /* a worker that cannot be executed writes launch_start_error to it */
    sigset_t signal_mask; /* to be restored in the worker */
    bool log_tty;
} launch_start;

typedef struct launch_start_error {
    int local_rank, error;
} launch_start_error;

/* Takes whole lines to be shown. */
typedef void (*launch_forward_fn)(void *ctx, const char *text, size_t size_bytes);

/* Forks and executes this program again as worker->rank. STATUS_IO with the reason. */
status launch_worker_start(launch_worker *worker, const launch_start *start);

/* Reads what its stderr holds now, forwards whole lines and keeps the last ones. Never blocks; at
 * the pipe's end stderr_fd is closed and a begun line forwarded. */
void launch_worker_read(launch_worker *worker, launch_forward_fn forward, void *ctx);

/* Forwards a begun line, frees everything. The process must have ended. */
void launch_worker_close(launch_worker *worker, launch_forward_fn forward, void *ctx);

#endif
