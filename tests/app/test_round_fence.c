/* The word that an agent shares with its ranks: until when they may make a step. */
#include "app/common/elastic_link.h"
#include "base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* As a rank finds it: a descriptor of its own, named by the environment. */
static round_fence *open_as_rank(const round_fence *agents)
{
    char text[16];
    round_fence *fence = NULL;
    snprintf(text, sizeof text, "%d", dup(round_fence_fd(agents)));
    setenv(ROUND_FENCE_VARIABLE, text, 1);
    ck_assert_int_eq(round_fence_open(&fence), STATUS_OK);
    ck_assert_ptr_nonnull(fence);
    return fence;
}

START_TEST(ranks_see_what_the_agent_allows)
{
    round_fence *agents = NULL;
    ck_assert_int_eq(round_fence_create(&agents), STATUS_OK);
    ck_assert_int_ne(fcntl(round_fence_fd(agents), F_GETFD) & FD_CLOEXEC, 0);
    round_fence *ranks = open_as_rank(agents);
    ck_assert(!round_fence_allows(ranks));
    round_fence_set(agents, clock_deadline_ns(60000));
    ck_assert(round_fence_allows(ranks));
    round_fence_set(agents, clock_now_ns());
    ck_assert(!round_fence_allows(ranks));
    round_fence_close(agents);
    ck_assert(!round_fence_allows(ranks)); /* the agent has gone */
    round_fence_close(ranks);
}
END_TEST

START_TEST(without_an_elastic_agent_every_step_is_allowed)
{
    round_fence *fence = (round_fence *)&fence;
    unsetenv(ROUND_FENCE_VARIABLE);
    ck_assert_int_eq(round_fence_open(&fence), STATUS_OK);
    ck_assert_ptr_null(fence);
    ck_assert(round_fence_allows(fence));
    round_fence_close(fence);
}
END_TEST

static const char *const WRONG[] = {"x", "-1", "99999", "0x1"};

START_TEST(what_is_no_fence_is_refused)
{
    round_fence *fence = NULL;
    setenv(ROUND_FENCE_VARIABLE, WRONG[_i], 1);
    ck_assert_int_eq(round_fence_open(&fence), STATUS_IO);
    ASSERT_FACTS(status_text(), ROUND_FENCE_VARIABLE, WRONG[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("round_fence");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, ranks_see_what_the_agent_allows);
    tcase_add_test(core, without_an_elastic_agent_every_step_is_allowed);
    tcase_add_loop_test(core, what_is_no_fence_is_refused, 0, 4);
    return suite_run(suite);
}
