#include "base/thread.h"

#include <string.h>

void thread_block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void thread_restore_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

status thread_start(void *(*run)(void *), void *arg, const char *name, pthread_t *out)
{
    sigset_t before;
    pthread_t thread;
    thread_block_signals(&before);
    int error = pthread_create(&thread, NULL, run, arg);
    thread_restore_signals(&before);
    if (error != 0)
        return FAIL(STATUS_NO_MEMORY, "%s thread: %s", name, strerror(error));
    *out = thread;
    return STATUS_OK;
}
