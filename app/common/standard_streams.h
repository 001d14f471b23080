/* Descriptors 0 to 2: who starts the program may have closed them, and who reads may go away. */
#ifndef MNIST_DDP_APP_COMMON_STANDARD_STREAMS_H
#define MNIST_DDP_APP_COMMON_STANDARD_STREAMS_H

#include "app/options/options.h"

#include <stdbool.h>

/* Opens /dev/null in place of each of the three that is closed, here and for the processes that
 * are started: no pipe, socket or file gets its number, and with it what others write there.
 * Reading ends at once; writing fails with EBADF, as it would have. First of all in main.
 * STATUS_IO if /dev/null cannot be opened. */
status standard_streams_open(void);

/* A command that works (train, bench, run, serve, demo, store serve, data fetch) finishes its work
 * also if nobody reads what it says. The others, which only print, end by SIGPIPE as a shell
 * expects it. */
void standard_streams_set_signal(const options *opts);

/* Whether stdout holds a result. That of train and demo holds their progress, unless --json asks
 * for the results, or --quiet for no more than them. */
bool standard_streams_carry_result(const options *opts);

/* Says that stdout could not be written, for the reason `error` (errno; 0: not known any more).
 * Returns `code`; EXIT_CODE_OUTPUT instead of 0 if that was a result. */
int standard_streams_lost(int error, bool is_result, int code);

/* Writes out and closes stdout, the last thing in main. Returns `code`, or as
 * standard_streams_lost if anything that was printed has not arrived. */
int standard_streams_close(const options *opts, int code);

#endif
