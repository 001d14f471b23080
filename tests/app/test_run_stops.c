/* How mnist_ddp run stops: told to at a bad moment, with ranks, readers and children that make it
 * hard. One machine. */
#include "tests/app/run_lines.h"

static void await_file(const char *path)
{
    for (int64_t end_ns = clock_deadline_ns(RUN_S * 1000); !file_exists(path);) {
        ck_assert_msg(!clock_passed(end_ns), "%s did not come", path);
        clock_sleep_ms(POLL_MS);
    }
}

/* Rank 1 fails and rank 0 does not end yet: a signal then ends the job, and all that it would have
 * done. */
START_TEST(a_signal_behind_a_failure_ends_the_job)
{
    program p = run_start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=1",
                          "echo generation $TORCHELASTIC_RESTART_COUNT; test $RANK = 0 || exit 3; "
                          "trap 'touch told.0' TERM; while :; do sleep .02; done");
    await_file("told.0");
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ASSERT_SAYS(p.err, "rank 1 failed first: exit code 3");
    ASSERT_SAYS(p.err, "no restart: node 0 was stopped by SIGINT");
    ASSERT_SILENT(p.err, "restart 1 of 5");
    ASSERT_SILENT(p.out, "generation 1");
    program_close(&p);
}
END_TEST

/* As anywhere else, the second one is not patient. */
START_TEST(two_signals_behind_a_failure_kill)
{
    program p = run_start("--nproc-per-node=2 --shutdown-timeout=30",
                          "test $RANK = 0 || exit 3; "
                          "trap 'touch told.0' TERM; while :; do sleep .02; done");
    await_file("told.0");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGINT);
    clock_sleep_ms(200);
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 3); /* that was the end anyway */
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
}
END_TEST

/* A rank dies while all write their last checkpoint. */
START_TEST(a_death_while_saving_is_no_restart)
{
    program p = underway_start(NULL, WORDS(SMALL_RUN, "--nproc-per-node", "2", "--max-restarts",
                                           "3", "--epochs", "1000", "--run-dir", "run", "--inject",
                                           "delay:rank=1,step=9,ms=5000"));
    underway_await(&p, "injected: 5000 ms");
    pid_t rank_1 = underway_rank(p.pid, 1);
    kill(p.pid, SIGTERM);
    underway_await(&p, "at the next step, with a checkpoint");
    kill(rank_1, SIGKILL);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    ASSERT_SILENT(p.err, "restart 1 of 3");
    ASSERT_SAYS(p.err, "rank 1 failed first: SIGKILL");
    program_close(&p);
}
END_TEST

/* Told to stop before its ranks listen, it still ends with a checkpoint, and no rank waits for
 * another that is gone. */
START_TEST(a_signal_at_the_start_preempts)
{
    pid_t pids[MAX_RANKS];
    program p = underway_start(NULL, WORDS(SMALL_RUN, "--nproc-per-node", "3", "--epochs", "1000",
                                           "--run-dir", "run", "--resume=auto"));
    while (underway_children(p.pid, pids) < 3)
        continue;
    if (_i == 1) /* as a scheduler does that signals the whole group */
        kill(pids[1], SIGTERM);
    kill(p.pid, SIGTERM);
    int64_t start_ns = clock_now_ns();
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 15.0);
    program_close(&p);
}
END_TEST

/* A rank that a signal has ended does not let the others wait for it. */
START_TEST(a_rank_that_does_not_save_ends_all)
{
    program p =
        underway_start(NULL, WORDS(SMALL_RUN, "--nproc-per-node", "2", "--epochs", "1000",
                                   "--run-dir", "run", "--inject", "delay:rank=1,step=9,ms=20000"));
    underway_await(&p, "injected: 20000 ms");
    pid_t rank_1 = underway_rank(p.pid, 1);
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    underway_await(&p, "at the next step, with a checkpoint");
    kill(rank_1, SIGTERM);
    kill(rank_1, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    ASSERT_SILENT(p.err, "failed first");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 10.0);
    program_close(&p);
}
END_TEST

static void start_clean(void)
{
    char command[128];
    snprintf(command, sizeof command, "cd '%s' && rm -rf run told.*", workbench);
    ck_assert_int_eq(system(command), 0);
}

int main(void)
{
    underway_clean_environment();
    workbench_open();
    Suite *suite = suite_create("run_stops");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, start_clean, NULL);
    tcase_add_test(core, a_signal_behind_a_failure_ends_the_job);
    tcase_add_test(core, two_signals_behind_a_failure_kill);
    tcase_add_test(core, a_death_while_saving_is_no_restart);
    tcase_add_loop_test(core, a_signal_at_the_start_preempts, 0, 2);
    tcase_add_test(core, a_rank_that_does_not_save_ends_all);
    return workbench_close(suite_run(suite));
}
