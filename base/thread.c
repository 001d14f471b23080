#include "base/thread.h"

#include <string.h>
#include <sys/resource.h>

/* matmul_bf16 (kernels/cpu/linear.inc) takes most: 257 KiB. */
enum { LEAST_STACK_KIB = 512 };

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
        return FAIL(STATUS_NO_MEMORY, "%s thread: %s (raise ulimit -u or ulimit -v)", name,
                    strerror(error));
    *out = thread;
    return STATUS_OK;
}

status thread_check_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK_KIB * 1024)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "the stack may be %llu KiB, and %d are needed: raise ulimit -s",
                (unsigned long long)limit.rlim_cur / 1024, LEAST_STACK_KIB);
}
