#include "base/poll_pause.h"

#include "base/clock.h"

#include <sys/prctl.h>
#include <time.h>

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
