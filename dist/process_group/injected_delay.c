#include "dist/process_group/injected_delay.h"

#include "base/clock.h"

#include <errno.h>
#include <time.h>

int64_t injected_delay_send(injected_delay *delay)
{
    int64_t now_ns = clock_now_ns();
    delay->free_ns = (delay->free_ns > now_ns ? delay->free_ns : now_ns) + delay->delay_ns;
    return delay->free_ns;
}

static void sleep_until(int64_t point_ns)
{
    struct timespec point = {.tv_sec = (time_t)(point_ns / 1000000000),
                             .tv_nsec = (long)(point_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &point, NULL) == EINTR) {
    }
}

status injected_delay_wait(int64_t leaves_ns, int64_t deadline_ns, int64_t *done_ns)
{
    while (*done_ns < leaves_ns) {
        int64_t now_ns = clock_now_ns();
        if (now_ns >= leaves_ns)
            *done_ns = leaves_ns;
        else if (now_ns >= deadline_ns)
            return FAIL(STATUS_TIMEOUT, "the injected delay is longer than the timeout");
        else
            sleep_until(leaves_ns < deadline_ns ? leaves_ns : deadline_ns);
    }
    return STATUS_OK;
}
