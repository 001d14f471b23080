/* Time that stands while a thread computes. Once all threads that take part wait, it jumps to the
 * first deadline: seconds pass in no time, and a slow machine is not seen. */
#ifndef MNIST_DDP_TESTS_SUPPORT_VIRTUAL_CLOCK_H
#define MNIST_DDP_TESTS_SUPPORT_VIRTUAL_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

int64_t virtual_clock_ns(void);
int64_t virtual_clock_deadline_ns(int64_t timeout_ms);
bool virtual_clock_passed(int64_t deadline_ns);

/* One thread more takes part, or one less. A thread that waits for another one by other means, as
 * pthread_join(), leaves before. */
void virtual_clock_enter(void);
void virtual_clock_leave(void);

/* What a thread may wait for has changed; how often it has. */
void virtual_clock_change(void);
int64_t virtual_clock_changes(void);

/* Waits until the deadline, or until `fd` is readable (-1: none), or there were more changes than
 * `seen` (INT64_MAX: none wakes it). */
void virtual_clock_wait(int fd, int64_t deadline_ns, int64_t seen);

#endif
