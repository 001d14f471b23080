#include "app/train/rank_signals.h"

#include "app/train/failure.h"
#include "base/log.h"
#include "base/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static const int LISTENED[] = {SIGTERM, SIGUSR1, SIGUSR2};

static sigset_t listened(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof LISTENED / sizeof LISTENED[0]; i++)
        sigaddset(&set, LISTENED[i]);
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
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}

static void *listen_to_signals(void *arg)
{
    rank_signals *self = arg;
    sigset_t set = listened();
    siginfo_t info;
    int terms = 0;
    while (!atomic_load(&self->ending)) {
        int number = sigwaitinfo(&set, &info);
        if (number == SIGUSR2 && !atomic_load(&self->ending))
            write_collectives(self);
        if (number != SIGTERM && number != SIGUSR1)
            continue;
        atomic_store(&self->asked_by, number);
        terms += number == SIGTERM;
        bool means_it = self->launcher > 0 && info.si_pid == self->launcher;
        if (number == SIGTERM && (terms > 1 || means_it))
            die_of(number);
    }
    return NULL;
}

status rank_signals_start(rank_signals *out)
{
    sigset_t set = listened();
    const struct sigaction plain = {.sa_handler = SIG_DFL}; /* ignored, they would never come */
    *out = (rank_signals){.launcher = getenv("MNIST_DDP_LAUNCHED") != NULL ? getppid() : 0};
    pthread_mutex_init(&out->lock, NULL);
    for (size_t i = 0; i < sizeof LISTENED / sizeof LISTENED[0]; i++)
        sigaction(LISTENED[i], &plain, NULL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
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

int rank_signals_asked(rank_signals *listener)
{
    return atomic_load_explicit(&listener->asked_by, memory_order_relaxed);
}
