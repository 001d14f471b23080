/* Monotonic time and deadlines. A deadline is a point on this clock in nanoseconds. */
#ifndef MNIST_DDP_BASE_CLOCK_H
#define MNIST_DDP_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC: the same clock for all processes of a host. */
int64_t clock_now_ns(void);

/* The point `timeout_ms` from now. */
int64_t clock_deadline_ns(int64_t timeout_ms);

/* Milliseconds until the deadline, rounded up, never negative, at most INT_MAX: fits poll(). */
int clock_remaining_ms(int64_t deadline_ns);

bool clock_passed(int64_t deadline_ns);

/* Sleeps at least `ms`, through signals. */
void clock_sleep_ms(int64_t ms);

/* Waits for a condition with its lock held, as pthread_cond_wait does. Returns false at the
 * deadline; true may also be a wake-up for nothing. */
bool clock_await(pthread_cond_t *changed, pthread_mutex_t *lock, int64_t deadline_ns);

static inline double clock_seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

/* A pause between two looks at something that is done soon. Most waits are short: it spins a while,
 * and then leaves the processor to others for some 20 microseconds at a time. */

typedef struct poll_pause {
    int64_t start_ns, asked_ns; /* 0: not begun */
} poll_pause;

/* True about every millisecond: time to ask whether to give up. From its first nap on, the calling
 * thread's timers are exact: it no longer has the kernel's default slack of 50 microseconds. */
bool poll_pause_once(poll_pause *p);

#endif
