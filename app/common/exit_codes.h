/* What the program exits with when it fails by itself. A launcher hands a worker's code through;
 * a signal n is 128 + n. */
#ifndef MNIST_DDP_APP_COMMON_EXIT_CODES_H
#define MNIST_DDP_APP_COMMON_EXIT_CODES_H

#include "base/status.h"

#include <stdbool.h>

struct options;

enum {
    EXIT_CODE_NO = 1,          /* `store` says no: the key is not there, or holds another value */
    EXIT_CODE_USAGE = 64,      /* flags, environment or configuration make no sense */
    EXIT_CODE_DATA = 65,       /* the data set cannot be read */
    EXIT_CODE_RENDEZVOUS = 69, /* the ranks did not find each other */
    EXIT_CODE_INTERNAL = 70,   /* memory, a device or a library failed */
    EXIT_CODE_PEER = 72,       /* another rank went away: look for the first cause there */
    EXIT_CODE_CHECKPOINT = 74, /* a checkpoint cannot be written or read */
    EXIT_CODE_OUTPUT = 74,     /* stdout, or a file, did not take all results */
    EXIT_CODE_PREEMPTED = 75,  /* asked to stop; a checkpoint continues exactly */
    EXIT_CODE_DIVERGED = 76,   /* a loss is not finite: the training ended there */
    EXIT_CODE_TIMEOUT = 110,   /* a collective's deadline passed */
};

/* Logs this thread's message as an error and returns what to exit with: EXIT_CODE_PEER for a lost
 * peer, EXIT_CODE_TIMEOUT for a passed deadline outside the rendezvous, EXIT_CODE_INTERNAL for
 * memory and devices, EXIT_CODE_USAGE for a module that is not there, else `otherwise`. */
int exit_code_failed(status st, int otherwise);

/* Descriptors 0 to 2: who starts the program may have closed them, and who reads may go away. */

/* Opens /dev/null in place of each of the three that is closed, here and for the processes that
 * are started: no pipe, socket or file gets its number, and with it what others write there.
 * Reading ends at once; writing fails with EBADF, as it would have. First of all in main.
 * STATUS_IO if /dev/null cannot be opened. */
status standard_streams_open(void);

/* A command that works (train, bench, run, serve, demo, store serve, data fetch) finishes its work
 * also if nobody reads what it says. The others, which only print, end by SIGPIPE as a shell
 * expects it. */
void standard_streams_set_signal(const struct options *opts);

/* Whether stdout holds a result. That of train and demo holds their progress, unless --json asks
 * for the results, or --quiet for no more than them. */
bool standard_streams_carry_result(const struct options *opts);

/* Says that stdout could not be written, for the reason `error` (errno; 0: not known any more).
 * Returns `code`; EXIT_CODE_OUTPUT instead of 0 if that was a result. */
int standard_streams_lost(int error, bool is_result, int code);

/* Writes out and closes stdout, the last thing in main. Returns `code`, or as
 * standard_streams_lost if anything that was printed has not arrived. */
int standard_streams_close(const struct options *opts, int code);

#endif
