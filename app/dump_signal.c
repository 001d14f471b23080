#include "app/dump_signal.h"

#include "app/failure.h"
#include "base/log.h"

#include <signal.h>
#include <string.h>

static sigset_t the_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return set;
}

void dump_signal_block(void)
{
    sigset_t set = the_signal();
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void *wait_for_it(void *arg)
{
    dump_signal *d = arg;
    sigset_t set = the_signal();
    int number = 0;
    while (sigwait(&set, &number) == 0 && !d->ending)
        if (failure_dump(d->j) == STATUS_OK)
            LOG_I("SIGUSR2: the last collectives are in %s/rank%d.jsonl", failure_folder(),
                  d->j->place.rank);
        else
            LOG_W("SIGUSR2: %s", status_message());
    return NULL;
}

/* The thread takes no other signal: those are for the threads that expect them. */
void dump_signal_start(dump_signal *d, const job *j)
{
    sigset_t all, before;
    if (failure_folder() == NULL)
        return;
    d->j = j;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&d->thread, NULL, wait_for_it, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->running = error == 0;
    if (error != 0)
        LOG_W("SIGUSR2 is not listened to: %s", strerror(error));
}

void dump_signal_stop(dump_signal *d)
{
    if (!d->running)
        return;
    d->ending = true;
    pthread_kill(d->thread, SIGUSR2);
    pthread_join(d->thread, NULL);
    d->running = false;
}
