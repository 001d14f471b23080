/* clock_skew.so: a machine whose clock of the day is $TEST_CLOCK_SKEW_S seconds wrong. Its
 * monotonic clock is right. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t skew_s(void)
{
    const char *text = getenv("TEST_CLOCK_SKEW_S");
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    long code = syscall(SYS_clock_gettime, clock, out);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += skew_s();
    return (int)code;
}

int timespec_get(struct timespec *out, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, out) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
