/* How mnist_ddp run stops: told to at a bad moment, with ranks, readers and children that make it
 * hard. One machine. */
#include "base/clock.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/full_pipe.h"
#include "tests/support/port.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>

/* Rank 1 fails and rank 0 does not end yet: a signal then ends the job, and all that it would have
 * done. */
START_TEST(a_signal_behind_a_failure_ends_the_job)
{
    program p =
        run_command_start("--nproc-per-node=2 --max-restarts=5 --shutdown-timeout=1",
                          "echo attempt $TORCHELASTIC_RESTART_COUNT; test $RANK = 0 || exit 3; "
                          "trap 'touch told.0' TERM; while :; do sleep .02; done");
    test_folder_await("told.0");
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ASSERT_FACTS(p.err, "rank 1", "exit code 3");
    ASSERT_FACTS(p.err, "error", "restart", "node 0", "SIGINT");
    ASSERT_SILENT(p.err, "1 of 5");
    ASSERT_SILENT(p.out, "attempt 1");
    program_close(&p);
}
END_TEST

/* As anywhere else, the second one is not patient. */
START_TEST(two_signals_behind_a_failure_kill)
{
    program p = run_command_start("--nproc-per-node=2 --shutdown-timeout=30",
                                  "test $RANK = 0 || exit 3; "
                                  "trap 'touch told.0' TERM; while :; do sleep .02; done");
    test_folder_await("told.0");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGINT);
    process_await_taken(p.pid, SIGINT);
    clock_sleep_ms(200); /* else they are one */
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
    program p = program_start_with(
        NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "2", "--max-restarts", "3", "--epochs",
                    "1000", "--run-dir", "run", "--inject", "delay:rank=1,step=9,ms=5000"));
    program_await(&p, "injected", "5000 ms");
    pid_t rank_1 = process_of_rank(p.pid, 1);
    kill(p.pid, SIGTERM);
    program_await(&p, "SIGTERM", "checkpoint");
    kill(rank_1, SIGKILL);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    ASSERT_SILENT(p.err, "1 of 3");
    ASSERT_FACTS(p.err, "error", "rank 1", "SIGKILL");
    program_close(&p);
}
END_TEST

/* Told to stop before its ranks listen, it still ends with a checkpoint, and no rank waits for
 * another that is gone. */
START_TEST(a_signal_at_the_start_preempts)
{
    pid_t pids[MAX_RANKS];
    program p = program_start_with(NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "3", "--epochs",
                                               "1000", "--run-dir", "run", "--resume=auto"));
    while (process_children(p.pid, pids) < 3)
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
    program p = program_start_with(NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "2", "--epochs",
                                               "1000", "--run-dir", "run", "--inject",
                                               "delay:rank=1,step=9,ms=20000"));
    program_await(&p, "injected", "20000 ms");
    pid_t rank_1 = process_of_rank(p.pid, 1);
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_await(&p, "SIGTERM", "checkpoint");
    kill(rank_1, SIGTERM);
    process_await_taken(rank_1, SIGTERM);
    clock_sleep_ms(300); /* else they are one */
    kill(rank_1, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    ASSERT_SILENT(p.err, "failed first");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 10.0);
    program_close(&p);
}
END_TEST

/* A pager that is not read from must not hide a rank's death. */
START_TEST(a_full_stderr_hides_no_death)
{
    static const char *const line =
        "cd '%s' && mkfifo pager && { exec 3<>pager; '%s' run --nproc-per-node=2 --max-restarts=%d "
        "sh -c 'test $RANK = 1 && { sleep .3; exit 3; }; while :; do echo more; done >&2' "
        "2>pager; }";
    char command[1024];
    snprintf(command, sizeof command, line, test_folder, program_mnist_ddp(), _i);
    int64_t start_ns = clock_now_ns();
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    program p = program_start(argv);
    program_wait(&p, 20);
    ASSERT_EXIT(p, 3);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 8.0);
    program_close(&p);
}
END_TEST

/* Nor does it keep the agent, which has lines of its own for it, from what it is there for. */
START_TEST(a_full_stderr_stops_no_agent)
{
    static const char *const scripts[] = {"touch told.$RANK; sleep 30", "exit 3"};
    static const int codes[] = {143, 3};
    full_pipe pager;
    full_pipe_open(&pager);
    program p = full_pipe_start(
        &pager, STDERR_FILENO,
        WORDS(program_mnist_ddp(), "run", "--nproc-per-node=2", "sh", "-c", scripts[_i]));
    if (_i == 0) {
        test_folder_await("told.0");
        test_folder_await("told.1");
        kill(p.pid, SIGTERM);
    }
    int64_t start_ns = clock_now_ns();
    program_wait(&p, 20);
    ASSERT_EXIT(p, codes[_i]);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
    full_pipe_close(&pager);
}
END_TEST

/* The same of a terminal that is stopped: it takes a part of a line. */
START_TEST(a_stopped_terminal_stops_no_agent)
{
    full_pipe terminal;
    terminal.from = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert(grantpt(terminal.from) == 0 && unlockpt(terminal.from) == 0);
    terminal.into = open(ptsname(terminal.from), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal.into, 0);
    program p = full_pipe_start(&terminal, STDERR_FILENO,
                                WORDS(program_mnist_ddp(), "run", "--shutdown-timeout=1", "sh",
                                      "-c", "while :; do echo more; done >&2"));
    clock_sleep_ms(1000);
    kill(p.pid, SIGTERM);
    int64_t start_ns = clock_now_ns();
    program_wait(&p, 20);
    ASSERT_EXIT(p, 143);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
    full_pipe_close(&terminal);
}
END_TEST

/* A line that another thread of the agent has for it comes once there is room. */
START_TEST(a_line_waits_for_a_full_stderr)
{
    full_pipe pager;
    full_pipe_open(&pager);
    program p = full_pipe_start(&pager, STDERR_FILENO,
                                WORDS(program_mnist_ddp(), "run", "--nnodes=2", "--node-rank=1",
                                      "--master-addr=127.0.0.1",
                                      program_flag("--master-port=", port_find_free()), "true"));
    clock_sleep_ms(1500); /* the first line comes after 1 s, the next one after 6 s */
    if (_i == 0)
        full_pipe_await(&pager, "waits for node 0", 3);
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, 20);
    ASSERT_EXIT(p, 143);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    program_close(&p);
    full_pipe_close(&pager);
}
END_TEST

/* All that was written comes to a reader who is only slow, also behind the end of its rank. */
START_TEST(a_slow_reader_gets_all)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd '%s' && '%s' run --nproc-per-node=2 sh -c 'test $RANK = 0 && exit 0; seq 1 60000 "
             ">&2' 2>&1 | { sleep 1; grep -c '^[0-9]*$'; }",
             test_folder, program_mnist_ddp());
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    program p = program_start(argv);
    program_wait(&p, 20);
    ck_assert_str_eq(p.out, "60000\n");
    program_close(&p);
}
END_TEST

/* poll() refuses more descriptors than may be open, even those that are not. */
START_TEST(few_descriptors_stop_in_order)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd '%s' && ulimit -n 30 && exec '%s' run --nproc-per-node 20 --tee 3 --log-dir=logs "
             "sleep 20",
             test_folder, program_mnist_ddp());
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    int64_t start_ns = clock_now_ns();
    program p = program_start(argv);
    program_wait(&p, 20);
    ck_assert_int_ne(p.exit_code, 0);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    ASSERT_FACTS(p.err, "of 20 ranks", "ulimit -n");
    ASSERT_SILENT(p.err, "poll");
    program_close(&p);
}
END_TEST

/* So few that the launcher itself has too few: it still says what to do. */
START_TEST(too_few_descriptors_are_explained)
{
    char line[256];
    snprintf(line, sizeof line, "ulimit -n %d && exec \"$0\" \"$@\"", _i);
    program p = program_run_with(WORDS("sh", "-c", line), WORDS("run", "true"));
    if (p.exit_code != 0 && p.exit_code != 127)
        ASSERT_FACTS(p.err, "error", "ulimit -n");
    program_close(&p);
}
END_TEST

/* Of an elastic job: it does not try until --join-timeout. */
START_TEST(too_few_descriptors_end_a_node)
{
    char line[256], endpoint[64];
    snprintf(line, sizeof line, "ulimit -n %d && exec \"$0\" \"$@\"", 16 + _i);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=localhost:%d", port_find_free());
    program p = program_run_with(
        WORDS("sh", "-c", line),
        WORDS("run", "--nnodes=1:2", "--rdzv-backend=c10d", endpoint, "--no-python", "true"));
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.err, "error", "descriptors", "ulimit -n");
    program_close(&p);
}
END_TEST

/* Nor does what the ranks have started outlive a launcher that is killed. */
START_TEST(no_grandchild_outlives_a_killed_launcher)
{
    program p = run_command_start("--nproc-per-node=2",
                                  "sh -c 'echo $$ > pid.$RANK; exec sleep 30'; echo after");
    pid_t pids[] = {test_folder_await_pid("pid.0"), test_folder_await_pid("pid.1")};
    kill(p.pid, SIGKILL);
    process_assert_gone(pids, 2, 1000);
    program_wait(&p, RUN_S);
    program_close(&p);
}
END_TEST

/* What a rank that ended well leaves running goes on, and is heard. */
START_TEST(a_ranks_leftover_process_keeps_its_stderr)
{
    program p =
        run_command_start("--nproc-per-node=2 --tee=0:2 --log-dir=logs",
                          "( sleep .7; echo still here >&2; echo ok > late.$RANK ) & exit 0");
    int64_t start_ns = clock_now_ns();
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    test_folder_await("late.0");
    test_folder_await("late.1");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_stops");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, a_signal_behind_a_failure_ends_the_job);
    tcase_add_test(core, two_signals_behind_a_failure_kill);
    tcase_add_test(core, a_death_while_saving_is_no_restart);
    tcase_add_loop_test(core, a_signal_at_the_start_preempts, 0, 2);
    tcase_add_test(core, a_rank_that_does_not_save_ends_all);
    tcase_add_loop_test(core, a_full_stderr_hides_no_death, 0, 2);
    tcase_add_loop_test(core, a_full_stderr_stops_no_agent, 0, 2);
    tcase_add_test(core, a_stopped_terminal_stops_no_agent);
    tcase_add_loop_test(core, a_line_waits_for_a_full_stderr, 0, 2);
    tcase_add_test(core, a_slow_reader_gets_all);
    tcase_add_test(core, few_descriptors_stop_in_order);
    tcase_add_loop_test(core, too_few_descriptors_are_explained, 4, 17);
    tcase_add_loop_test(core, too_few_descriptors_end_a_node, 0, 8);
    tcase_add_test(core, no_grandchild_outlives_a_killed_launcher);
    tcase_add_test(core, a_ranks_leftover_process_keeps_its_stderr);
    return test_folder_close(suite_run(suite));
}
