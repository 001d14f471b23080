#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <sys/prctl.h>
#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_deadline_ns(int64_t timeout_ms)
{
    return clock_now_ns() + timeout_ms * 1000000;
}

int clock_remaining_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - clock_now_ns();
    if (left <= 0)
        return 0;
    int64_t ms = (left + 999999) / 1000000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

bool clock_passed(int64_t deadline_ns)
{
    return clock_now_ns() >= deadline_ns;
}

void clock_sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

bool clock_await(pthread_cond_t *changed, pthread_mutex_t *lock, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_clockwait(changed, lock, CLOCK_MONOTONIC, &until) == 0;
}

enum { SPIN_NS = 50 * 1000, NAP_NS = 20 * 1000, ASK_NS = 1000 * 1000 };

bool poll_pause_once(poll_pause *p)
{
    static const struct timespec nap = {.tv_nsec = NAP_NS};
    int64_t now_ns = clock_now_ns();
    if (p->start_ns == 0)
        p->start_ns = p->asked_ns = now_ns;
    if (now_ns - p->start_ns >= SPIN_NS) {
        (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        nanosleep(&nap, NULL);
    }
    if (now_ns - p->asked_ns < ASK_NS)
        return false;
    p->asked_ns = now_ns;
    return true;
}
