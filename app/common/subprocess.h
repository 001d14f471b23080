/* A program that runs to its end while this process waits. */
#ifndef MNIST_DDP_APP_COMMON_SUBPROCESS_H
#define MNIST_DDP_APP_COMMON_SUBPROCESS_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* The signals that end this process: SIGINT, SIGTERM and SIGHUP, read from a descriptor. */
typedef struct stop_signals {
    int fd;          /* 0 before stop_signals_take */
    int first;       /* the first that came; 0: none came */
    sigset_t before; /* the mask as it was: programs run with it */
} stop_signals;

/* Blocks the three for this thread and all that it starts; they stay blocked. One that was ignored
 * (nohup) stays ignored. STATUS_IO. */
status stop_signals_take(stop_signals *out);
void stop_signals_close(stop_signals *signals); /* accepts a zeroed one */

/* Did one of them come? Does not wait. */
bool stop_signals_came(stop_signals *signals);

typedef struct subprocess {
    char *const *argv;     /* NULL-ended; argv[0] is looked for in $PATH */
    char *const *env;      /* NULL-ended; NULL: as here */
    const char *folder;    /* where it runs; NULL: here */
    int64_t timeout_ms;    /* after it the program is killed */
    stop_signals *signals; /* NULL: no signal is looked at */
} subprocess;

/* Runs the program in a process group of its own; its stdin is empty. *out: what it wrote to stdout
 * (at most the last 16 MiB of it), the caller's to free. STATUS_PEER if it ended with another exit
 * code than 0 or by a signal, STATUS_TIMEOUT if it was killed, STATUS_IO if it did not start. The
 * message has the last line of its stderr.
 * A stop is passed on as SIGTERM. 10 s later, or after a second one, the program is killed:
 * STATUS_TIMEOUT, and signals->first is set. Nothing of the process group outlives the call. */
status subprocess_run(const subprocess *program, char **out);

#endif
