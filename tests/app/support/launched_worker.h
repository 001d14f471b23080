/* The workers of test_launch.c: what the test program does when the launcher executes it. Each mode
 * is one behaviour; a worker that finds something wrong says so and exits with
 * LAUNCHED_WORKER_BAD. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHED_WORKER_H
#define MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHED_WORKER_H

enum { LAUNCHED_WORKER_BAD = 99 };

/* Does what $TEST_WORKER says; the exit code. */
int launched_worker_main(void);

#endif
