/* mnist_ddp run on one machine: failures, restarts and signals, and that nobody is left over. */
#include "base/clock.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/process.h"

#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *flags, *script;
    int code;
    const char *facts[5]; /* none, or a list that ends with NULL */
} ENDS[] = {
    {"--nproc-per-node=2", "exit 0", 0, {NULL}},
    {"--nproc-per-node=3",
     "test $RANK != 1 || exit 7; sleep 30",
     7,
     {"error", "rank 1", "exit code 7"}},
    {"--nproc-per-node=3",
     "test $RANK != 2 || kill -9 $$; sleep 30",
     137,
     {"error", "rank 2", "SIGKILL"}},
    {"--nproc-per-node=2 --exit-code=torchrun", "exit 7", 1, {"error", "rank", "exit code 7"}},
    {"--nproc-per-node=2", "echo why >&2; exit 3", 3, {"it says: why"}},
    {"",
     "exit 75",
     75,
     {"error", "rank 0", "exit code 75"}}, /* of a foreign program it means nothing */
    {"", "exit 64", 64, {"hint", "stderr", "--tee=3"}},
    /* a rank that only lost its peer is not to blame, though it ends first: its pipe with it */
    {"--nproc-per-node=2",
     "mkfifo pipe 2>/dev/null; test $RANK = 1 && { read end <pipe; exit 5; }; "
     "exec 3>pipe; echo 'gloo: Connection closed by peer' >&2; exit 1",
     5,
     {"error", "rank 1", "exit code 5"}},
    {"--nproc-per-node=2", /* also if the cause takes its time to end */
     "mkfifo pipe 2>/dev/null; test $RANK = 1 && { read end <pipe; sleep 1; exit 5; }; "
     "exec 3>pipe; echo 'gloo: Connection closed by peer' >&2; exit 1",
     5,
     {"error", "rank 1", "exit code 5"}},
    {"--nproc-per-node=3", /* and if others that lost it end meanwhile */
     "mkfifo pipe 2>/dev/null; test $RANK = 1 && { read end <pipe; sleep 1; exit 5; }; "
     "exec 3>pipe; sleep 0.$((RANK * 2)); echo 'gloo: Connection closed by peer' >&2; exit 1",
     5,
     {"error", "rank 1", "exit code 5"}},
};

START_TEST(exit_codes_are_the_first_failing_ranks)
{
    int64_t start_ns = clock_now_ns();
    program p = run_command(ENDS[_i].flags, ENDS[_i].script);
    ASSERT_EXIT(p, ENDS[_i].code);
    if (ENDS[_i].facts[0] != NULL)
        ASSERT_FACTS_LISTED(p.err, ENDS[_i].facts);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
}
END_TEST

START_TEST(restarts_go_on_until_the_budget_is_used_up)
{
    program p = run_command("--nproc-per-node=2 --max-restarts=2 --log-dir=logs -r 1",
                            "echo $RANK.$TORCHELASTIC_RESTART_COUNT; "
                            "test $RANK = 0 || exit 9; sleep 20");
    ASSERT_EXIT(p, 9);
    ASSERT_FACTS(p.err, "warning", "rank 1", "exit code 9", "restart 1", "2");
    ASSERT_FACTS(p.err, "warning", "rank 1", "exit code 9", "restart 2");
    ASSERT_FACTS(p.err, "error", "rank 1", "exit code 9");
    ASSERT_NO_FACTS(p.err, "restart 3");
    char path[FILE_PATH_BYTES + 64];
    for (int attempt = 0; attempt < 3; attempt++) {
        char words[32];
        snprintf(path, sizeof path, "%s/attempt_%d/1/stdout.log", run_command_job_folder("logs"),
                 attempt);
        snprintf(words, sizeof words, "1.%d\n", attempt);
        char *text = test_folder_read(path);
        ck_assert_str_eq(text, words);
        free(text);
    }
    snprintf(path, sizeof path, "%s/attempt_0/1/error.json", run_command_job_folder("logs"));
    char *text = test_folder_read(path);
    ASSERT_SAYS(text, "\"errorCode\":9");
    ASSERT_SAYS(text, "\"extraInfo\":{");
    ASSERT_SAYS(text, "\"timestamp\":\"");
    free(text);
    program_close(&p);
}
END_TEST

START_TEST(a_restart_that_helps_ends_well)
{
    program p =
        run_command("--nproc-per-node=3 --max-restarts=5",
                    "test $TORCHELASTIC_RESTART_COUNT = 2 || test $RANK != 2 || kill -9 $$; "
                    "test $TORCHELASTIC_RESTART_COUNT = 2 || sleep 20");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "rank 2", "SIGKILL", "restart 2", "5");
    ASSERT_NO_FACTS(p.err, "error");
    ASSERT_FACTS(p.err, "failed", test_folder); /* their logs are in there */
    program_close(&p);
}
END_TEST

/* What a worker says in error.json, by itself or through @record, is in the box. */
START_TEST(the_error_file_is_read)
{
    program p = run_command(
        "", "echo '{\"message\":{\"message\":\"ValueError: 42\",\"extraInfo\":"
            "{\"py_callstack\":\"T\",\"timestamp\":\"1\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 1");
    ASSERT_EXIT(p, 1);
    ASSERT_FACTS(p.err, "ValueError: 42");
    program_close(&p);
}
END_TEST

/* What has been on the terminal is not quoted again, and a hint says more than the lines. */
START_TEST(a_traceback_is_shown_once)
{
    program p = run_command("", "printf 'Traceback:\\n  File x\\nValueError: 7\\n' >&2; exit 1");
    ASSERT_EXIT(p, 1);
    ck_assert_int_eq(facts_count(p.err, "Traceback:"), 1);
    ASSERT_FACTS(p.err, "it says: ValueError: 7");
    ASSERT_NO_FACTS(p.err, "hint");
    program_close(&p);
    p = run_command("", "echo 'connectFullMesh failed, remote=[127.0.1.1]:7' >&2; exit 1");
    ASSERT_FACTS(p.err, "hint", "GLOO_SOCKET_IFNAME");
    program_close(&p);
}
END_TEST

/* What a scheduler reads of a launcher: the first failing worker's file, or why it failed. */
START_TEST(the_launcher_leaves_an_error_file_too)
{
    static const struct {
        const char *flags, *script;
        const char *facts[3];
    } cases[] = {
        {"--nproc-per-node=2 --max-restarts=1",
         "test $RANK = 0 && exec sleep 20; test $TORCHELASTIC_RESTART_COUNT = 0 && exit 3; "
         "echo '{\"message\":{\"message\":\"ValueError: 42\",\"extraInfo\":{}}}' "
         "> $TORCHELASTIC_ERROR_FILE; exit 9",
         {"\"message\":\"ValueError: 42\"", "\"errorCode\":9"}},
        {"--log-dir=/dev/null",
         "echo why >&2; kill -9 $$",
         {"SIGKILL", "\"errorCode\":137", "\"py_callstack\":\"why"}},
        {"--nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=1 --join-timeout=1",
         "true",
         {"127.0.0.1:1", "\"errorCode\":69"}},
        {"--nproc-per-node=none", "true", {"none", "\"errorCode\":64"}},
    };
    char *text = NULL;
    size_t bytes = 0;
    setenv("TORCHELASTIC_ERROR_FILE", test_folder_path("launcher.json"), 1);
    program p = run_command(cases[_i].flags, cases[_i].script);
    ck_assert_int_ne(p.exit_code, 0);
    ck_assert_msg(file_read("launcher.json", 4096, &text, &bytes) == STATUS_OK, "%s", p.err);
    for (int i = 0; i < 3 && cases[_i].facts[i] != NULL; i++)
        ASSERT_SAYS(text, cases[_i].facts[i]);
    free(text);
    program_close(&p);
}
END_TEST

/* A program gets the very signal, and has time to end. */
START_TEST(signals_are_passed_on)
{
    program p = run_command_start("--nproc-per-node=2 --signals-to-handle=SIGTERM,SIGUSR2",
                                  "trap 'touch got.$RANK; exit 0' USR2; touch up.$RANK; "
                                  "while :; do sleep .01; done");
    test_folder_await("up.0");
    test_folder_await("up.1");
    kill(p.pid, SIGUSR2);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 128 + SIGUSR2);
    ck_assert(file_exists("got.0") && file_exists("got.1"));
    program_close(&p);
}
END_TEST

START_TEST(who_does_not_end_is_killed_after_the_shutdown_timeout)
{
    program p = run_command_start("--nproc-per-node=2 --shutdown-timeout=1",
                                  "trap '' TERM; touch up.$RANK; while :; do sleep .05; done");
    test_folder_await("up.0");
    test_folder_await("up.1");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, 143);
    ck_assert_msg(took_s > 0.9 && took_s < 4, "%g s", took_s);
    program_close(&p);
}
END_TEST

/* Our own train, as any program's workers: a launch in a launch. */
START_TEST(a_preempted_program_gives_75)
{
    program p = run_command_start("--nproc-per-node=2", "trap 'exit 75' TERM; touch up.$RANK; "
                                                        "while :; do sleep .01; done");
    test_folder_await("up.0");
    test_folder_await("up.1");
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    program_close(&p);
}
END_TEST

/* What a failed rank leaves running (a loader's process, say) goes with it. */
START_TEST(children_of_ranks_do_not_stay)
{
    program p =
        run_command_start("--nproc-per-node=2",
                          "sleep 60 & echo $! > child.$RANK; "
                          "test $RANK = 1 || wait; while ! test -e go; do sleep .01; done; exit 4");
    pid_t children[] = {test_folder_await_pid("child.0"), test_folder_await_pid("child.1")};
    test_folder_write("go", "");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 4);
    process_assert_gone(children, 2, 1000);
    program_close(&p);
}
END_TEST

START_TEST(no_orphans_when_the_launcher_is_killed)
{
    program p = run_command_start("--nproc-per-node=3", "trap '' TERM HUP; echo $$ > pid.$RANK; "
                                                        "while :; do sleep .05; done");
    pid_t pids[] = {test_folder_await_pid("pid.0"), test_folder_await_pid("pid.1"),
                    test_folder_await_pid("pid.2")};
    kill(p.pid, SIGKILL);
    process_assert_gone(pids, 3, 1000);
    program_wait(&p, RUN_S);
    program_close(&p);
}
END_TEST

/* How many processes there are whose command line is this one word. */
static int count_processes(const char *title)
{
    glob_t found = {0};
    int n = 0;
    ck_assert_int_eq(glob("/proc/[0-9]*", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char line[256];
        process_read((pid_t)atoi(found.gl_pathv[i] + strlen("/proc/")), "cmdline", line,
                     sizeof line);
        size_t length = strlen(title);
        n += strncmp(line, title, length) == 0 && line[length] == '\n'; /* the word's end */
    }
    globfree(&found);
    return n;
}

/* ps tells it from the launcher, which a signal is for. */
START_TEST(the_process_beside_the_launcher_has_its_own_name)
{
    char title[64];
    program p = run_command_start("--nproc-per-node=1", "echo $$ > pid.0; exec sleep 30");
    test_folder_await_pid("pid.0");
    snprintf(title, sizeof title, "mnist_ddp: orphan_reaper of %d", (int)p.pid);
    int64_t end_ns = clock_deadline_ns(RUN_S * 1000); /* it names itself, beside the ranks */
    while (count_processes(title) == 0 && !clock_passed(end_ns))
        clock_sleep_ms(POLL_MS);
    ck_assert_int_eq(count_processes(title), 1);
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    program_close(&p);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_ends");
    TCase *ends = suite_case(suite, "ends", 2.0 * RUN_S);
    tcase_add_checked_fixture(ends, test_folder_clean, NULL);
    tcase_add_loop_test(ends, exit_codes_are_the_first_failing_ranks, 0, COUNT(ENDS));
    tcase_add_test(ends, restarts_go_on_until_the_budget_is_used_up);
    tcase_add_test(ends, a_restart_that_helps_ends_well);
    tcase_add_test(ends, the_error_file_is_read);
    tcase_add_test(ends, a_traceback_is_shown_once);
    tcase_add_loop_test(ends, the_launcher_leaves_an_error_file_too, 0, 4);
    tcase_add_test(ends, signals_are_passed_on);
    tcase_add_test(ends, who_does_not_end_is_killed_after_the_shutdown_timeout);
    tcase_add_test(ends, a_preempted_program_gives_75);
    tcase_add_test(ends, children_of_ranks_do_not_stay);
    tcase_add_test(ends, no_orphans_when_the_launcher_is_killed);
    tcase_add_test(ends, the_process_beside_the_launcher_has_its_own_name);
    return test_folder_close(suite_run(suite));
}
