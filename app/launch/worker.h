/* One worker process of the launcher: its start, its output, its end. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_H
#define MNIST_DDP_APP_LAUNCH_WORKER_H

#include "app/launch/orphan_reaper.h"
#include "app/launch/worker_output.h"
#include "app/launch/worker_spec.h"

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct worker {
    int rank, local_rank;
    pid_t pid; /* 0: not started */
    bool running;
    bool reaped;
    bool was_stopped; /* the launcher had sent it a signal when it ended */
    int wait_status;  /* as of waitpid, once ended */
    int start_errno;  /* why it could not be executed; 0 */
    int64_t ended_ns;
    int failed_as; /* it was the nth to fail by itself; 0: it did not */
    worker_output out, err;
} worker;

/* What every worker of this launch shares. */
typedef struct worker_start {
    const worker_spec *spec;
    int attempt;
    int master_port;
    int64_t started_ns;
    int error_fd;         /* a worker that cannot be executed writes worker_start_error to it */
    orphan_reaper reaper; /* of the groups, where each has one of its own */
    sigset_t signal_mask; /* to be restored in the worker, */
    uint64_t file_limit;  /* likewise */
    bool log_tty;
} worker_start;

typedef struct worker_start_error {
    int local_rank, error;
} worker_start_error;

/* Forks and executes the program as worker->rank. STATUS_IO with the reason. */
status worker_launch(worker *w, const worker_start *start);

/* Sends it a signal, and to its process group where it has one of its own. Also after it has ended
 * but before it is reaped. */
void worker_signal(const worker *w, const worker_start *start, int signal);

/* Whether it has ended: then sets wait_status and ended_ns. It stays a zombie, so that nobody else
 * gets its number, until worker_close. */
bool worker_has_ended(worker *w);

/* Reaps it, shows begun lines, frees everything. The process must have ended. */
void worker_close(worker *w, agent_console *console);

#endif
