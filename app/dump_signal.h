/* SIGUSR2: a rank writes its last collectives and where it is, and goes on. Also one that hangs in
 * a collective: a thread of its own waits for the signal. */
#ifndef MNIST_DDP_APP_DUMP_SIGNAL_H
#define MNIST_DDP_APP_DUMP_SIGNAL_H

#include "app/job.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct dump_signal {
    const job *j;
    pthread_t thread;
    bool running;
    _Atomic bool ending;
} dump_signal;

/* Before any other thread starts: SIGUSR2 is nobody's but the thread's. */
void dump_signal_block(void);

/* Once the job is open; does nothing where there is no folder to write to (app/failure.h). A thread
 * that cannot be started is only logged. */
void dump_signal_start(dump_signal *d, const job *j);

/* Before the job is closed. Accepts one that was not started. */
void dump_signal_stop(dump_signal *d);

#endif
