#include "tests/support/rendezvous_phase.h"

#include "base/clock.h"

#include <check.h>
#include <poll.h>

rdzv_news rendezvous_phase_await(rdzv_handle *rdzv, rdzv_phase phase, int64_t timeout_ms)
{
    int64_t end_ns = clock_deadline_ns(timeout_ms);
    for (;;) {
        rdzv_news news = rdzv_take_news(rdzv);
        if (news.phase == phase)
            return news;
        ck_assert_msg(!clock_passed(end_ns), "phase %d in place of %d: %s", news.phase, phase,
                      news.reason);
        struct pollfd waits = {.fd = rdzv_fd(rdzv), .events = POLLIN};
        poll(&waits, 1, clock_remaining_ms(end_ns));
    }
}
