/* The signals that tell this process to stop, read from a descriptor. */
#ifndef MNIST_DDP_APP_COMMON_STOP_SIGNALS_H
#define MNIST_DDP_APP_COMMON_STOP_SIGNALS_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct stop_signals {
    int fd;          /* readable once one has come; 0 before stop_signals_take */
    int first;       /* the first that came, kept for good; 0: none came */
    sigset_t before; /* the thread's mask as it was */
} stop_signals;

/* Reads --signals-to-handle: "SIGTERM,SIGINT". STATUS_INVALID for a signal that does not exist or
 * cannot be handled. */
status stop_signals_parse(const char *text, sigset_t *out);

/* Blocks these signals for this thread and all that it starts; they stay blocked. One that was
 * ignored (nohup, a shell's background job) stays ignored. STATUS_IO. */
status stop_signals_take(const sigset_t *which, stop_signals *out);
void stop_signals_close(stop_signals *signals); /* accepts a zeroed one */

/* The next one that came; 0: none. Does not wait. */
int stop_signals_next(stop_signals *signals);

/* Whether two signals at these times are one wish: timeout(1) sends its signal to a process and to
 * its group, and other programs pass on what the terminal has sent already. */
bool stop_signals_are_one(int64_t first_ns, int64_t second_ns);

/* Whether any came so far. Does not wait. */
bool stop_signals_came(stop_signals *signals);

/* A new descriptor that is readable if SIGINT, SIGTERM or SIGHUP came and is blocked here; -1: none
 * can be had. Whoever blocks the signal takes it: read here it is lost to them. */
int stop_signals_watch_blocked(void);

#endif
