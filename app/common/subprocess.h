/* A program that runs to its end while this process waits. */
#ifndef MNIST_DDP_APP_COMMON_SUBPROCESS_H
#define MNIST_DDP_APP_COMMON_SUBPROCESS_H

#include "app/common/stop_signals.h"
#include "base/status.h"

#include <stdint.h>

typedef struct subprocess {
    char *const *argv;  /* NULL-ended; argv[0] is looked for in $PATH */
    char *const *env;   /* NULL-ended; NULL: as here */
    const char *folder; /* where it runs; NULL: here */
    int64_t timeout_ms; /* after it the program is killed */
    int64_t grace_ms;   /* to end when it is stopped; 0: 10 s */
    /* Those that stop it. NULL: SIGINT, SIGTERM and SIGHUP if they are blocked here; they stay
     * pending. */
    stop_signals *signals;
} subprocess;

/* Of what a program writes to stdout and to stderr, the end is kept. */
enum { SUBPROCESS_KEPT_BYTES = 256 << 10 };

/* Runs the program in a process group of its own, with no signal blocked; its stdin is empty.
 * *out: the end of its stdout, the caller's to free. STATUS_PEER if it ended with another exit code
 * than 0 or by a signal, STATUS_TIMEOUT if it was killed, STATUS_IO if it did not start. The
 * message has the last line of its stderr, fit for a terminal (base/text.h).
 * A stop is passed on as SIGTERM. After grace_ms, or a second one, the program is killed:
 * STATUS_TIMEOUT, and signals->first is set; without signals of the caller's only the time kills.
 * Nothing of the process group outlives the call. What left the group gets SIGPIPE, or EPIPE, if it
 * writes to the program's stdout or stderr after that. */
status subprocess_run(const subprocess *program, char **out);

/* How a program ended. */
typedef struct subprocess_end {
    int wait_status; /* waitpid's */
    char *out, *err; /* the ends of its stdout and stderr; to be freed */
} subprocess_end;

/* The same, but any end of its own is STATUS_OK. */
status subprocess_watch(const subprocess *program, subprocess_end *out);

#endif
