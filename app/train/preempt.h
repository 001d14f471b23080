/* Being asked to stop: a signal to any rank ends the run at a step
 * boundary that all ranks agree on, so that a checkpoint of it continues exactly. A loss
 * that is not finite, on any rank, ends it in the same way.
 *
 * The wish travels with the gradients: one float after them, in the first bucket of every step,
 * comes back averaged over the ranks as they are (a pipeline's: summed). So no step costs a message
 * more, and all ranks see the wish of any of them in the same step. NaN stays NaN in any sum: it
 * says that a loss is not finite.
 *
 * In an elastic run a rank may also wish for a pause: the round ends, and the run does not. There
 * the wishes of all ranks are less than half of one to stop. A gradient is divided by the number of
 * ranks before it is sent: with fp16 the wish of one of 2,896 ranks is the least that is not lost.
 */
#ifndef MNIST_DDP_APP_TRAIN_PREEMPT_H
#define MNIST_DDP_APP_TRAIN_PREEMPT_H

#include "kernels/readback.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { PREEMPT_FLOATS = 1 }; /* room after the gradients */

typedef struct preempt {
    device *dev;
    float *flag; /* device memory after the gradients: begin_step writes the rank's wish */
    const float
        *answer;   /* device memory: after a step the flag over all ranks, above 0 if any wishes */
    bool agreed;   /* all ranks stop, at this step */
    bool diverged; /* and that is because of a loss that is not finite */
    int ranks;     /* that may wish for a pause; 0: a pause is a stop */
    bool paused;   /* all ranks end the round, at this step */
    readback copy; /* an accelerator's answer of some step */
    int looks;     /* since that was asked for */
} preempt;

/* Borrows flag and answer, which may be one. preempt_close accepts a zeroed one. */
status preempt_open(device *dev, float *flag, const float *answer, preempt *out);
void preempt_close(preempt *p);

/* A rank's wish, as begin_step writes it. */
static inline float preempt_wish(const preempt *p, bool stop, bool pause)
{
    if (stop || (pause && p->ranks == 0)) /* then the run ends, and is started again */
        return 1.0f;
    return pause ? 0.25f / (float)p->ranks : 0.0f;
}

typedef enum preempt_when {
    PREEMPT_CHEAPLY, /* after any step: on an accelerator the answer may be of an earlier step */
    PREEMPT_NOW,     /* the host waits for the device */
} preempt_when;

/* After a step's gradients have come: sets p->agreed, p->diverged and p->paused, alike on all
 * ranks. On the host's memory that is this step's flag. On an accelerator the host does not wait
 * for the step: it takes a copy every PREEMPT_LAG steps and looks at it as many steps later, so
 * that the stop comes up to 2 * PREEMPT_LAG steps after the signal, and the host is at most that
 * far ahead of the device. */
enum { PREEMPT_LAG = 16 };
status preempt_look(preempt *p, preempt_when when);

/* All ranks stop or pause after this step. */
static inline bool preempt_ends_round(const preempt *p)
{
    return p->agreed || p->paused;
}

/* All ranks have learned in another way that the run has diverged: it ends here. */
void preempt_note_diverged(preempt *p);

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

struct rank_context;

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
    const struct rank_context
        *rank; /* under the lock: whose collectives SIGUSR2 writes; NULL: none is open */
} rank_signals;

/* To be called before any other thread is started: from then on the signals come to the listener
 * alone. `out` must stay where it is until the stop. */
status rank_signals_start(rank_signals *out);

/* Accepts one that was not started. */
void rank_signals_stop(rank_signals *listener);

/* The rank that SIGUSR2 is about from now on; NULL before it is closed. */
void rank_signals_set_rank(rank_signals *listener, const struct rank_context *rank);

/* All ranks are about to make the first step: from now on a signal is a wish. */
void rank_signals_train(rank_signals *listener);

/* The signal that asked for the run's end, 0 if none did. If our launcher passed it on: the one
 * that the launcher got. */
int rank_signals_asked(const rank_signals *listener);

#endif
