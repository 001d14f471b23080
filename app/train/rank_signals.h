/* The signals that a rank listens to, taken one by one on a thread of their own:
 *
 *   SIGTERM, SIGINT,   the wish to end the run at a step boundary (preempt.h). SIGTERM and SIGINT
 *   SIGHUP, SIGUSR1    end the process as ever if one of the first three came before
 *                      (stop_signals_are_one tells which are one wish). So does SIGTERM from our
 *                      own launcher, which asks with SIGUSR1 and means SIGTERM. A second SIGHUP
 *                      asks for nothing more: a session that ends sends two. SIGINT and SIGHUP
 *                      stay ignored if they were. Before the first step there is nothing to save:
 *                      the first three end the process at once.
 *   SIGUSR2            the rank writes its last collectives and where it is (failure.h), and goes
 *                      on; also one that hangs in a collective.
 *
 * No signal handler runs in a rank: none interrupts a kernel, or a call of a library.
 */
#ifndef MNIST_DDP_APP_TRAIN_RANK_SIGNALS_H
#define MNIST_DDP_APP_TRAIN_RANK_SIGNALS_H

#include "app/train/rank_context.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

typedef struct rank_signals {
    pthread_t thread;
    sigset_t taken;
    pid_t launcher;    /* ours; 0: another, or none */
    int64_t wished_ns; /* the listener's: when SIGTERM, SIGINT or SIGHUP first came; 0: none did */
    atomic_int asked_by;
    atomic_bool trains; /* the first step may be under way */
    atomic_bool ending;
    bool running;
    pthread_mutex_t lock;
    const rank_context
        *rank; /* under the lock: whose collectives SIGUSR2 writes; NULL: none is open */
} rank_signals;

/* To be called before any other thread is started: from then on the signals come to the listener
 * alone. `out` must stay where it is until the stop. */
status rank_signals_start(rank_signals *out);

/* Accepts one that was not started. */
void rank_signals_stop(rank_signals *listener);

/* The rank that SIGUSR2 is about from now on; NULL before it is closed. */
void rank_signals_set_rank(rank_signals *listener, const rank_context *rank);

/* All ranks are about to make the first step: from now on a signal is a wish. */
void rank_signals_train(rank_signals *listener);

/* The signal that asked for the run's end, 0 if none did. If our launcher passed it on: the one
 * that the launcher got. */
int rank_signals_asked(const rank_signals *listener);

#endif
