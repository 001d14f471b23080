/* The signals that the launcher waits for, as descriptors. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_SIGNALS_H
#define MNIST_DDP_APP_LAUNCH_AGENT_SIGNALS_H

#include "base/status.h"

#include <signal.h>

typedef struct agent_signals {
    int stop_fd;    /* one of those that stop the workers */
    int child_fd;   /* SIGCHLD */
    int stopped_by; /* the first that came, kept for good; 0: none yet */
    sigset_t mask;  /* for the workers: as it was, but for those signals that are for them */
} agent_signals;

/* Blocks `stop` and SIGCHLD for this thread and all that it starts from now on; they stay blocked.
 * A signal that was ignored (nohup, a shell's background job) stays so. */
status agent_signals_take(const sigset_t *stop, agent_signals *out);
void agent_signals_close(agent_signals *signals);

/* The workers begin with SIGTERM and SIGUSR1 blocked: they come to listen to them, and none dies of
 * one before. */
void agent_signals_hold(agent_signals *signals);

/* The next one that came; 0: none. */
int agent_signals_next(agent_signals *signals);

/* Empties child_fd. */
void agent_signals_drain_children(const agent_signals *signals);

#endif
