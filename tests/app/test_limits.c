/* A shell's limits that are too small: one error that says which, at once. */
#include "base/clock.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"

#include <stdio.h>

static program run_limited(const char *limit, const char *const *flags)
{
    char line[64];
    snprintf(line, sizeof line, "ulimit %s; exec \"$0\" \"$@\"", limit);
    return program_run_with(WORDS("sh", "-c", line), flags);
}

static const char *const FEW_FILES[] = {"-n 4",  "-n 6",  "-n 10", "-n 14",
                                        "-n 15", "-n 16", "-n 17", "-n 20"};
enum { N_FEW_FILES = sizeof FEW_FILES / sizeof FEW_FILES[0] };

/* Three ranks: their connections are counted before any of them is started. */
START_TEST(too_few_files)
{
    int64_t start_ns = clock_now_ns();
    program p = run_limited(FEW_FILES[_i],
                            WORDS(TRAINING_SMALL, "--nproc-per-node", "3", "--no-save-model"));
    if (p.exit_code != 0 && p.exit_code != 127) /* 127: the shell's, or the loader's */
        ASSERT_FACTS(p.err, "error", "descriptors", "ulimit -n");
    if (_i <= 3)
        ck_assert_int_ne(p.exit_code, 0);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 10);
    program_close(&p);
}
END_TEST

START_TEST(too_little_stack)
{
    program p = run_limited("-s 128", WORDS(TRAINING_SMALL, "--no-save-model"));
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.err, "error", "stack", "128", "512", "ulimit -s");
    program_close(&p);
}
END_TEST

/* What is asked for is enough for what takes most. */
START_TEST(enough_stack)
{
    test_folder_remove("run");
    program p = run_limited("-s 512", WORDS(TRAINING_SMALL, "--amp", _i == 0 ? "bf16" : "off",
                                            "--threads", "2", "--run-dir", "run"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
}
END_TEST

START_TEST(too_little_memory)
{
    program p = run_limited("-v 16000", WORDS(TRAINING_SMALL, "--no-save-model"));
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.err, "error", "memory");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("limits");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_loop_test(core, too_few_files, 0, N_FEW_FILES);
    tcase_add_test(core, too_little_stack);
    tcase_add_loop_test(core, enough_stack, 0, 2);
#ifndef SANITIZED /* its shadow alone is larger */
    tcase_add_test(core, too_little_memory);
#else
    (void)too_little_memory;
#endif
    return test_folder_close(suite_run(suite));
}
