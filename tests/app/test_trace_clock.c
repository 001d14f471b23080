/* Ranks agree on one clock, within bounds that hold. */
#include "app/trace/run_trace.h"
#include "base/clock.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <stdatomic.h>

enum { MEETINGS = 5, MAX_WORLD = 3 };

static const int64_t OFFSETS[] = {0, 1, -1, 123456789, -987654321012345};
enum { N_OFFSETS = sizeof OFFSETS / sizeof OFFSETS[0] };

/* A clock that is off by a known amount: the true offset is within the error, and the error is
 * within half of the quickest meeting. */
START_TEST(the_estimate_holds_its_bounds)
{
    trace_barrier own[MEETINGS], first[MEETINGS];
    unsigned seed = 1;
    for (int trial = 0; trial < 200; trial++) {
        int64_t now = 1000000, shortest = INT64_MAX;
        for (int i = 0; i < MEETINGS; i++) {
            int64_t enter[2], leave[2], both = 0;
            for (int r = 0; r < 2; r++) {
                enter[r] = now + rand_r(&seed) % 1000;
                both = enter[r] > both ? enter[r] : both;
            }
            for (int r = 0; r < 2; r++)
                leave[r] = both + rand_r(&seed) % 100;
            first[i] = (trace_barrier){enter[0], leave[0]};
            own[i] = (trace_barrier){enter[1] - OFFSETS[_i], leave[1] - OFFSETS[_i]};
            int64_t width = leave[0] - enter[1] - (enter[0] - leave[1]);
            shortest = width < shortest ? width : shortest;
            now += 5000;
        }
        trace_clock got = {0};
        ck_assert_msg(trace_clock_estimate(own, first, MEETINGS, &got) == STATUS_OK, "%s",
                      status_text());
        int64_t off = got.offset_ns - OFFSETS[_i];
        ck_assert_int_le(off < 0 ? -off : off, got.error_ns);
        ck_assert_int_le(got.error_ns, shortest / 2 + 1);
    }
}
END_TEST

START_TEST(clocks_that_jump_are_refused)
{
    const trace_barrier own[] = {{0, 10}, {100, 110}};
    const trace_barrier first[] = {{1000, 1010}, {5100, 5110}};
    trace_clock got = {.offset_ns = 5};
    ck_assert_int_eq(trace_clock_estimate(own, first, 2, &got), STATUS_INVALID);
    ck_assert_int_eq(got.offset_ns, 5);
}
END_TEST

static int64_t zeros[MAX_WORLD];

static status agree(process_group *group, int rank, int world_size, void *arg)
{
    trace_clock clock = {0};
    int64_t *began_ns = arg;
    TRY(trace_clock_agree(group, began_ns[rank], &clock));
    if (clock.offset_ns != 0 || clock.error_ns != 0)
        return FAIL(STATUS_INVALID, "rank %d of %d on one host: offset %lld", rank, world_size,
                    (long long)clock.offset_ns);
    zeros[rank] = clock.zero_ns;
    return STATUS_OK;
}

/* Ranks of one host read the same clock; the trace begins with the first of them. */
START_TEST(ranks_of_a_host_share_its_clock)
{
    int64_t now = clock_now_ns(), began_ns[MAX_WORLD] = {now - 10, now - 30, now - 20};
    int world = _i + 1;
    ck_assert_int_eq(run_ranks(world, agree, began_ns), STATUS_OK);
    for (int rank = 0; rank < world; rank++)
        ck_assert_int_eq(zeros[rank], world == 1 ? now - 10 : now - 30);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace_clock");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, the_estimate_holds_its_bounds, 0, N_OFFSETS);
    tcase_add_test(core, clocks_that_jump_are_refused);
    tcase_add_loop_test(core, ranks_of_a_host_share_its_clock, 0, MAX_WORLD);
    return suite_run(suite);
}
