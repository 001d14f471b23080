/* Polling spins first, then naps for about as long as it means to, and asks every millisecond. */
#include "base/clock.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* How often this thread has given the processor away by itself: what a nap costs differs between
 * machines, but every one of them counts here. */
static long naps(void)
{
    struct rusage used;
    ck_assert_int_eq(getrusage(RUSAGE_THREAD, &used), 0);
    return used.ru_nvcsw;
}

START_TEST(short_waits_spin_and_long_ones_nap)
{
    enum { WAIT_MS = 100 };
    poll_pause p = {0};
    int asked = 0, looks = 0;
    ck_assert_int_eq(prctl(PR_SET_TIMERSLACK, 50000UL, 0UL, 0UL, 0UL), 0); /* the kernel's own */
    ck_assert(!poll_pause_once(&p));
    ck_assert_int_eq(prctl(PR_GET_TIMERSLACK), 50000); /* it has only spun */
    long napped = naps();
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    for (; !clock_passed(deadline_ns); looks++)
        asked += poll_pause_once(&p);
    napped = naps() - napped;
    printf("%d looks, %ld naps, %d asked in %d ms\n", looks, napped, asked, WAIT_MS);
    ck_assert_int_eq(prctl(PR_GET_TIMERSLACK), 1);
    ck_assert_int_ge(asked, 1);
    ck_assert_int_le(asked, WAIT_MS);
    ck_assert_int_ge(napped, asked);
    ck_assert_int_le(napped, looks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("poll_pause");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, short_waits_spin_and_long_ones_nap);
    return suite_run(suite);
}
