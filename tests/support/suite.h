/* The main() of a Check test program: one suite, one case per call of suite_case. */
#ifndef MNIST_DDP_TESTS_SUPPORT_SUITE_H
#define MNIST_DDP_TESTS_SUPPORT_SUITE_H

#include <check.h>
#include <stdlib.h>

#include <stdio.h>

enum { TEST_SKIPPED = 77 };

static int suite_skipped; /* cases that suite_add has left out */

/* Runs the suite, forking per test unless CK_FORK=no; returns main's exit code: TEST_SKIPPED if
 * every case was skipped. Says how many were. */
static inline int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    int ran = srunner_ntests_run(runner);
    srunner_free(runner);
    if (suite_skipped > 0)
        printf("SKIP of %d of %d cases\n", suite_skipped, suite_skipped + ran);
    if (suite_skipped > 0 && ran == 0)
        return TEST_SKIPPED;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A new case of `suite` whose tests end after `timeout_s`: a hang is a failure, not a stuck run. */
static inline TCase *suite_case(Suite *suite, const char *name, double timeout_s)
{
    TCase *test_case = tcase_create(name);
    tcase_set_timeout(test_case, timeout_s);
    suite_add_tcase(suite, test_case);
    return test_case;
}

/* Adds case `i` of a test; if something is missing here that it needs, says SKIP instead, so that
 * it does not count as passed. `missing` is NULL if nothing is. */
static inline void suite_add(TCase *test_case, const TTest *test, int i, const char *missing)
{
    if (missing == NULL) {
        tcase_add_loop_test(test_case, test, i, i + 1);
        return;
    }
    suite_skipped++;
    printf("SKIP of %s, case %d: %s\n", test->name, i, missing);
}

/* The same for cases 0 to n - 1. */
static inline void suite_add_all(TCase *test_case, const TTest *test, int n, const char *missing)
{
    for (int i = 0; i < n; i++)
        suite_add(test_case, test, i, missing);
}

#endif
