/* The launcher under signals, and with nobody who reads what it says. */
#include "base/clock.h"
#include "tests/app/support/launched_worker.h"
#include "tests/app/support/launcher.h"

#include "tests/support/facts.h"
#include "tests/support/process.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

START_TEST(signals_stop_all)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    char signal[16];
    worker_spec plan = launcher_plan(3);
    pid_t pid = launcher_start("sleep", &plan, "log", 0);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_int_gt(launcher_rank(rank), 0);
    int64_t start_ns = clock_now_ns();
    kill(pid, signals[_i]);
    ck_assert_int_eq(launcher_finish(pid, "log"), 128 + signals[_i]);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    snprintf(signal, sizeof signal, "SIG%s", sigabbrev_np(signals[_i]));
    ASSERT_FACTS(launcher_output, "warning", signal, "3 ranks");
    if (signals[_i] != SIGQUIT) /* the others ask for a checkpoint first, and no rank listens */
        ASSERT_FACTS(launcher_output, "warning", "rank", "nothing to save");
    ASSERT_NO_FACTS(launcher_output, "error");
    ASSERT_NO_FACTS(launcher_output, "exit code");
    launcher_check_gone(3, 0);
}
END_TEST

/* As Ctrl-C does: the whole process group gets it, and the launcher still decides. */
START_TEST(a_signal_to_the_group_is_no_failure)
{
    worker_spec plan = launcher_plan(3);
    pid_t pid = launcher_start("sleep", &plan, "log", 0);
    for (int rank = 0; rank < 3; rank++)
        kill(launcher_rank(rank), SIGINT);
    clock_sleep_ms(100);
    ck_assert(!process_is_gone(launcher_rank(0)));
    kill(launcher_rank(0), SIGTERM);
    kill(pid, SIGTERM);
    ck_assert_int_eq(launcher_finish(pid, "log"), 143);
    ASSERT_NO_FACTS(launcher_output, "error");
    ASSERT_NO_FACTS(launcher_output, "exit code");
    launcher_check_gone(3, 0);
}
END_TEST

/* SIGTERM asks for a checkpoint, once more for the end, and then there is no asking. */
START_TEST(further_signals_kill)
{
    worker_spec plan = launcher_plan(2);
    pid_t pid = launcher_start("stay", &plan, "log", 0);
    ck_assert(launcher_rank(0) > 0 && launcher_rank(1) > 0);
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < 3; i++) {
        clock_sleep_ms(200);
        ck_assert(!process_is_gone(pid));
        kill(pid, i < 2 ? SIGTERM : SIGINT);
    }
    ck_assert_int_eq(launcher_finish(pid, "log"), 143);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    launcher_check_gone(2, 0);
}
END_TEST

START_TEST(a_second_interrupt_kills)
{
    worker_spec plan = launcher_plan(2);
    pid_t pid = launcher_start("stay", &plan, "log", 0);
    ck_assert(launcher_rank(0) > 0 && launcher_rank(1) > 0);
    kill(pid, SIGINT);
    clock_sleep_ms(200);
    ck_assert(!process_is_gone(pid));
    kill(pid, SIGINT);
    ck_assert_int_eq(launcher_finish(pid, "log"), 130);
    launcher_check_gone(2, 0);
}
END_TEST

/* A pager that is not read from must not make the launcher deaf. */
START_TEST(a_full_stderr_does_not_keep_it_from_stopping)
{
    char path[FILE_PATH_BYTES];
    worker_spec plan = launcher_plan(3);
    launcher_path("log", path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(reader, 0);
    pid_t pid = launcher_start("flood", &plan, "log", 0);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_int_gt(launcher_rank(rank), 0);
    clock_sleep_ms(300);
    int64_t start_ns = clock_now_ns();
    kill(pid, SIGTERM);
    int how = 0;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    ck_assert(WIFEXITED(how) && WEXITSTATUS(how) == 143);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    close(reader);
    launcher_check_gone(3, 0);
}
END_TEST

/* As in "mnist_ddp 2>&1 | head": the run goes on without a reader. */
START_TEST(a_closed_stderr_does_not_end_the_run)
{
    char path[FILE_PATH_BYTES];
    worker_spec plan = launcher_plan(2);
    launcher_path("log", path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(reader, 0);
    pid_t pid = launcher_start("long_lines", &plan, "log", 0);
    ck_assert_int_gt(launcher_rank(0), 0);
    close(reader);
    int how = 0;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    ck_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}
END_TEST

START_TEST(no_orphans_when_the_launcher_is_killed)
{
    worker_spec plan = launcher_plan(4);
    pid_t pid = launcher_start("stay", &plan, "log", 0);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_gt(launcher_rank(rank), 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(launcher_finish(pid, "log"), -1 - SIGKILL);
    launcher_check_gone(4, 1000);
}
END_TEST

int main(void)
{
    if (getenv("TEST_WORKER") != NULL)
        return launched_worker_main();
    Suite *suite = suite_create("launch_signals");
    TCase *signals = suite_case(suite, "signals", 30);
    tcase_add_checked_fixture(signals, launcher_setup, launcher_teardown);
    tcase_add_loop_test(signals, signals_stop_all, 0, 4);
    tcase_add_test(signals, a_signal_to_the_group_is_no_failure);
    tcase_add_test(signals, further_signals_kill);
    tcase_add_test(signals, a_second_interrupt_kills);
    tcase_add_test(signals, a_full_stderr_does_not_keep_it_from_stopping);
    tcase_add_test(signals, a_closed_stderr_does_not_end_the_run);
    tcase_add_test(signals, no_orphans_when_the_launcher_is_killed);
    return suite_run(suite);
}
