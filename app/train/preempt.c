#include "app/train/preempt.h"

#include "app/common/stop_signals.h"
#include "app/common/terminal.h"
#include "app/train/failure.h"
#include "app/train/rank_context.h"
#include "app/train/run_folder.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "kernels/ops.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_accelerator(const preempt *p)
{
    return p->dev->ops->accelerator != NULL;
}

void preempt_note_diverged(preempt *p)
{
    p->agreed = p->diverged = true;
}

static void take_answer(preempt *p, float sum)
{
    if (isnan(sum))
        preempt_note_diverged(p);
    bool may_pause = p->ranks > 0 && sum < 0.5f / (float)p->ranks;
    p->agreed = p->agreed || (sum > 0.0f && !may_pause);
    p->paused = p->paused || (sum > 0.0f && may_pause);
}

status preempt_open(device *dev, float *flag, const float *answer, preempt *out)
{
    preempt p = {.dev = dev, .flag = flag, .answer = answer};
    if (is_accelerator(&p))
        TRY(readback_open(dev, sizeof *answer, &p.copy));
    *out = p;
    return STATUS_OK;
}

void preempt_close(preempt *p)
{
    readback_close(&p->copy);
    *p = (preempt){0};
}

static status start_copy(preempt *p)
{
    p->looks = 0;
    return readback_start(&p->copy, p->answer);
}

static status finish_copy(preempt *p)
{
    TRY(readback_wait(&p->copy));
    take_answer(p, *(const float *)p->copy.seen);
    return STATUS_OK;
}

status preempt_look(preempt *p, preempt_when when)
{
    if (!is_accelerator(p)) {
        take_answer(p, *p->answer);
        return STATUS_OK;
    }
    p->looks++;
    if (p->copy.under_way && (p->looks >= PREEMPT_LAG || when == PREEMPT_NOW))
        TRY(finish_copy(p));
    if (p->copy.under_way || p->agreed)
        return STATUS_OK;
    TRY(start_copy(p));
    return when == PREEMPT_NOW ? finish_copy(p) : STATUS_OK;
}

/* The signals. */

static const int ALWAYS[] = {SIGTERM, SIGUSR1, SIGUSR2};
static const int OF_TERMINAL[] = {SIGINT, SIGHUP};

/* Those of the terminal stay ignored if they are: by nohup, by a shell for its background jobs, and
 * by our launcher, which gets them too and asks for all ranks. */
static sigset_t take_signals(void)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL}; /* ignored, they would never come */
    struct sigaction now;
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof ALWAYS / sizeof ALWAYS[0]; i++) {
        sigaction(ALWAYS[i], &plain, NULL);
        sigaddset(&set, ALWAYS[i]);
    }
    for (size_t i = 0; i < sizeof OF_TERMINAL / sizeof OF_TERMINAL[0]; i++)
        if (sigaction(OF_TERMINAL[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&set, OF_TERMINAL[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return set;
}

static void write_collectives(rank_signals *listener)
{
    pthread_mutex_lock(&listener->lock);
    if (listener->rank == NULL || rank_context_dump_folder() == NULL)
        LOG_W("SIGUSR2: %s",
              listener->rank == NULL ? "no rank is at work" : "MNIST_DDP_DUMP_DIR is not set");
    else if (failure_dump(listener->rank) == STATUS_OK)
        LOG_I("SIGUSR2: the last collectives are in %s/rank%d.jsonl", rank_context_dump_folder(),
              listener->rank->place.rank);
    else
        LOG_W("SIGUSR2: %s", status_text());
    pthread_mutex_unlock(&listener->lock);
}

/* Ends the process as the signal does if nobody listens. */
static void die_of(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    terminal_leave();
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}

/* The answer to the first signal of somebody who waits for it. Our launcher answers by itself. */
static void say_it_stops(rank_signals *listener, int number)
{
    if (listener->launcher > 0 || number == SIGUSR1)
        return;
    pthread_mutex_lock(&listener->lock);
    const rank_context *rank = listener->rank;
    if (atomic_load(&listener->trains))
        LOG_W("SIG%s: stopping %s%s%s", sigabbrev_np(number),
              rank != NULL && rank->opts->sync_every > 1 ? "when ranks meet (--sync-every)"
                                                         : "at the next step",
              rank != NULL && run_folder_takes_checkpoints(rank->opts) ? ", with a checkpoint" : "",
              number != SIGHUP ? "; once more to stop at once" : "");
    else
        LOG_W("SIG%s: stopped before the first step", sigabbrev_np(number));
    pthread_mutex_unlock(&listener->lock);
}

/* The signal that the launcher got, if it says so (worker_ask). */
static int original(const rank_signals *listener, const siginfo_t *info)
{
    int number = info->si_value.sival_int;
    bool says = info->si_code == SI_QUEUE && info->si_pid == listener->launcher;
    return says && sigabbrev_np(number) != NULL ? number : info->si_signo;
}

static void take_wish(rank_signals *listener, const siginfo_t *info)
{
    int number = info->si_signo;
    int64_t now_ns = clock_now_ns();
    bool ends = number == SIGTERM || number == SIGINT;
    bool again = listener->wished_ns != 0 && !stop_signals_are_one(listener->wished_ns, now_ns);
    bool means_it =
        number == SIGTERM && listener->launcher > 0 && info->si_pid == listener->launcher;
    if (ends && (again || means_it))
        die_of(number);
    if (atomic_load(&listener->asked_by) == 0)
        say_it_stops(listener, number);
    /* Nothing can be lost yet, and the first step may be far: other ranks may have to come. Those
     * of our launcher are here soon, and leave a checkpoint together. */
    if (!atomic_load(&listener->trains) && listener->launcher == 0 && number != SIGUSR1)
        die_of(number);
    if (number != SIGUSR1 && listener->wished_ns == 0)
        listener->wished_ns = now_ns;
    atomic_store(&listener->asked_by, original(listener, info));
}

/* What our launcher wished before the first step; 0: nothing. */
static int early_wish(const rank_signals *self)
{
    int asked_by = atomic_load(&self->asked_by);
    bool early = self->launcher > 0 && asked_by != SIGUSR1 && !atomic_load(&self->trains);
    return early ? asked_by : 0;
}

static void *listen_to_signals(void *arg)
{
    static const struct timespec patience = {.tv_sec = 3}; /* until ranks that live have met */
    rank_signals *self = arg;
    siginfo_t info;
    terminal_hurry_log(); /* the next signal may be one to end at once */
    while (!atomic_load(&self->ending)) {
        int wish = early_wish(self);
        int number = wish != 0 ? sigtimedwait(&self->taken, &info, &patience)
                               : sigwaitinfo(&self->taken, &info);
        if (number < 0 && errno == EAGAIN && early_wish(self) != 0) {
            signal(wish, SIG_DFL); /* our launcher's ranks ignore a terminal's */
            die_of(wish);
        }
        if (number == SIGUSR2 && !atomic_load(&self->ending))
            write_collectives(self);
        else if (number > 0 && number != SIGUSR2)
            take_wish(self, &info);
    }
    return NULL;
}

status rank_signals_start(rank_signals *out)
{
    *out = (rank_signals){.launcher = getenv("MNIST_DDP_LAUNCHED") != NULL ? getppid() : 0};
    pthread_mutex_init(&out->lock, NULL);
    out->taken = take_signals();
    status st = thread_start(listen_to_signals, out, "the signals'", &out->thread);
    out->running = st == STATUS_OK;
    return st;
}

void rank_signals_stop(rank_signals *listener)
{
    if (!listener->running)
        return;
    atomic_store(&listener->ending, true);
    pthread_kill(listener->thread, SIGUSR2);
    pthread_join(listener->thread, NULL);
    pthread_mutex_destroy(&listener->lock);
    listener->running = false;
}

void rank_signals_set_rank(rank_signals *listener, const rank_context *rank)
{
    if (!listener->running)
        return;
    pthread_mutex_lock(&listener->lock);
    listener->rank = rank;
    pthread_mutex_unlock(&listener->lock);
}

void rank_signals_train(rank_signals *listener)
{
    atomic_store(&listener->trains, true);
}

int rank_signals_asked(const rank_signals *listener)
{
    return atomic_load_explicit(&listener->asked_by, memory_order_relaxed);
}
