/* One worker: the process of a rank. Its environment, its start, its output, its end. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_H
#define MNIST_DDP_APP_LAUNCH_WORKER_H

#include "app/common/elastic_link.h"
#include "app/launch/output.h"
#include "app/launch/worker_spec.h"

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
    int terminal_fd;      /* of rank 0's status line, which it inherits; 0: none */
    int fence_fd;         /* elastic: of round_fence, which all inherit; 0: none */
} worker_start;

typedef struct worker_start_error {
    int local_rank, error;
} worker_start_error;

/* Threads that a worker may use if nobody has said how many: its share of the cores. 0: it need not
 * be told, as it is the only worker or OMP_NUM_THREADS is set. */
int worker_threads(const worker_spec *spec);

/* The variables that the agent sets for a worker, as one text of "NAME=value" parted by blanks;
 * free with free(). */
status worker_describe_environment(const worker *w, const worker_start *start, char **out);

/* Forks and executes the program as worker->rank, with the agent's environment and torchrun's
 * variables. STATUS_IO with the reason. */
status worker_launch(worker *w, const worker_start *start);

/* Sends a signal to it, and to its process group if it has one of its own. Also after its end,
 * until it is reaped. */
void worker_signal(const worker *w, const worker_start *start, int signal);

/* Asks it for a last checkpoint: SIGUSR1, which carries the signal that the agent got. */
void worker_ask(const worker *w, int signal);

/* Elastic: says `word` of its round; ELASTIC_JOIN gives it its place in the one that begins. What
 * it does not hear it need not: it has ended then, or does not read, and is told to end. */
void worker_tell(const worker *w, const worker_start *start, elastic_word word);

/* Elastic: whether it has left its round since the last call. */
bool worker_has_left(worker *w);

/* Whether it has ended: then sets wait_status and ended_ns. It stays a zombie, so that nobody else
 * gets its number, until worker_close. */
bool worker_has_ended(worker *w);

/* Reaps it, shows begun lines, frees everything. The process must have ended. */
void worker_close(worker *w, output_console *console);

#endif
