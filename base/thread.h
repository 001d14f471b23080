/* Threads that block all signals: those are for the threads that expect them. */
#ifndef MNIST_DDP_BASE_THREAD_H
#define MNIST_DDP_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts run(arg) on a thread of its own, all signals blocked; the caller joins it.
 * STATUS_NO_MEMORY if the system has no thread left; then *out is not set. `name` ("the store's")
 * is for the text. */
status thread_start(void *(*run)(void *), void *arg, const char *name, pthread_t *out);

/* The same for threads that a library starts: they inherit what is blocked in between. */
void thread_block_signals(sigset_t *before);
void thread_restore_signals(const sigset_t *before);

/* STATUS_INVALID, with what to do, if the system gives threads too little stack for the arithmetic:
 * a thread that needs more ends the process without a word. */
status thread_check_stack(void);

#ifdef __cplusplus
}
#endif
#endif
