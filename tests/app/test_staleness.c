/* The rule of an asynchronous parameter server, for trainers that come in any order: who waits, how
 * old gradients are at most, and that all meet in the end. */
#include "app/train/staleness.h"

#include "tests/support/suite.h"

#include <stdbool.h>

enum { STEPS = 40, TRAINERS_MOST = 5, STOP_AT = 55 };

static int64_t sum_of_rows(const staleness *s)
{
    int64_t sum = 0;
    for (int i = 0; i < STALENESS_ROWS; i++)
        sum += s->rows[i];
    return sum;
}

static bool all_are_at(const staleness *s, int64_t step)
{
    for (int t = 0; t < s->trainers; t++)
        if (s->each[t].steps != step || s->each[t].call != 0)
            return false;
    return true;
}

/* Trainer 0 comes seldom. Some runs are asked to stop. */
START_TEST(trainers_in_any_order_keep_the_bound)
{
    for (int bound = -1; bound < 4; bound++) {
        staleness s;
        int64_t pushes = 0, furthest = 0;
        uint64_t state = (uint64_t)_i * 7 + (uint64_t)(bound + 1);
        int trainers = 1 + _i % TRAINERS_MOST;
        bool stops = _i % 2 == 0;
        ck_assert(staleness_open(trainers, bound, &s) == STATUS_OK);
        staleness_begin(&s, 0, STEPS);
        while (!all_are_at(&s, s.meet)) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            int t = (int)((state >> 33) % (uint64_t)trainers);
            if (s.each[t].call != 0 || s.each[t].steps == s.meet ||
                (t == 0 && (state >> 50) % 4 != 0))
                continue;
            int64_t missed = staleness_push(&s, t, t + 1);
            ck_assert(missed >= 0 && (bound < 0 || missed <= staleness_most(trainers, bound)));
            if (stops && ++pushes == STOP_AT % (trainers * 8))
                staleness_stop(&s);
            for (int next, call; (next = staleness_next(&s, &call)) >= 0;) {
                ck_assert_int_eq(call, next + 1);
                furthest = s.each[next].steps > furthest ? s.each[next].steps : furthest;
                for (int other = 0; other < trainers && bound >= 0; other++)
                    ck_assert_int_le(s.each[next].steps - s.each[other].steps, bound);
            }
        }
        ck_assert_int_eq(furthest, s.meet);
        ck_assert(stops ? s.meet < STEPS : s.meet == STEPS);
        ck_assert_int_eq(sum_of_rows(&s), s.meet * trainers);
        ck_assert_int_eq(s.made, s.meet * trainers);
        for (int t = 0; t < trainers; t++) /* all have the server's parameters */
            ck_assert_int_eq(s.each[t].has, s.version);
        staleness_close(&s);
    }
}
END_TEST

/* A trainer that has made c steps, at a bound of K, may see 2K + 1 of each other one go by. */
START_TEST(the_most_that_is_allowed_happens)
{
    staleness s;
    int call;
    ck_assert(staleness_open(2, 1, &s) == STATUS_OK);
    staleness_begin(&s, 0, STEPS);
    ck_assert_int_eq(staleness_push(&s, 0, 1), 0);
    ck_assert_int_eq(staleness_next(&s, &call), 0); /* it begins its second step at version 1 */
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(staleness_push(&s, 1, 2), i == 0);
        ck_assert_int_eq(staleness_next(&s, &call), i < 2 ? 1 : -1); /* two ahead: it waits */
    }
    ck_assert_int_eq(staleness_push(&s, 0, 3), staleness_most(2, 1));
    ck_assert_int_eq(s.most, 3);
    staleness_close(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("staleness");
    TCase *rule = suite_case(suite, "rule", 20);
    tcase_add_loop_test(rule, trainers_in_any_order_keep_the_bound, 0, 20);
    tcase_add_test(rule, the_most_that_is_allowed_happens);
    return suite_run(suite);
}
