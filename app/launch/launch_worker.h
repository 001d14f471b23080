/* One worker process of the launcher: its start, its output, its end. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_H
#define MNIST_DDP_APP_LAUNCH_WORKER_H

#include "app/launch/launch_guardian.h"
#include "app/launch/launch_settings.h"
#include "app/launch/launch_stream.h"

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct launch_worker {
    int rank, local_rank;
    pid_t pid; /* 0: not started */
    bool running;
    bool reaped;
    bool was_stopped; /* the launcher had sent it a signal when it ended */
    int wait_status;  /* as of waitpid, once ended */
    int start_errno;  /* why it could not be executed; 0 */
    int64_t ended_ns;
    int failed_as; /* it was the nth to fail by itself; 0: it did not */
    launch_stream out, err;
} launch_worker;

/* What every worker of this launch shares. */
typedef struct launch_start {
    const launch_settings *settings;
    int generation;
    int master_port;
    int64_t started_ns;
    int error_fd;             /* a worker that cannot be executed writes launch_start_error to it */
    launch_guardian guardian; /* of the groups, where each has one of its own */
    sigset_t signal_mask;     /* to be restored in the worker, */
    uint64_t file_limit;      /* likewise */
    bool log_tty;
} launch_start;

typedef struct launch_start_error {
    int local_rank, error;
} launch_start_error;

/* Forks and executes the program as worker->rank. STATUS_IO with the reason. */
status launch_worker_start(launch_worker *worker, const launch_start *start);

/* Sends it a signal, and to its process group where it has one of its own. Also after it has ended
 * but before it is reaped. */
void launch_worker_signal(const launch_worker *worker, const launch_start *start, int signal);

/* Whether it has ended: then sets wait_status and ended_ns. It stays a zombie, so that nobody else
 * gets its number, until launch_worker_close. */
bool launch_worker_has_ended(launch_worker *worker);

/* Reaps it, shows begun lines, frees everything. The process must have ended. */
void launch_worker_close(launch_worker *worker, launch_console *console);

#endif
