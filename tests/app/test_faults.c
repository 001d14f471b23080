/* What a user sees when a run goes wrong midway: ranks and launchers that die, stop or are told to
 * end, and a disk that is full. */
#include "base/clock.h"
#include "base/file.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"

#include <signal.h>

enum { N_RANKS = 3 };

/* Long enough that only the test ends it. */
#define LONG_RUN TRAINING_SMALL, "--epochs", "100000", "--nproc-per-node", "3"

static double seconds_since(int64_t start_ns)
{
    return clock_seconds(clock_now_ns() - start_ns);
}

static void assert_checkpoint_is_valid(const char *run_dir)
{
    program p = program_mnist("eval", "--checkpoint", run_dir, "--threads", "1", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "/250"); /* of the test folder's test images */
    program_close(&p);
}

START_TEST(killed_rank_is_blamed)
{
    pid_t pids[MAX_RANKS];
    program p = program_start_with(
        NULL, WORDS(LONG_RUN, "--backend", training_backend, "--run-dir", "run"));
    training_await(&p);
    int n = process_children(p.pid, pids);
    ck_assert_int_eq(n, N_RANKS);
    pid_t victim = process_of_rank(p.pid, 1);
    int64_t killed_ns = clock_now_ns();
    kill(victim, SIGKILL);
    program_wait(&p, RUN_S);
    double took_s = seconds_since(killed_ns);
    ASSERT_EXIT(p, 128 + SIGKILL);
    ck_assert_msg(took_s < 5, "the launcher took %g s", took_s);
    ASSERT_FACTS(p.err, "error", "rank 1", "SIGKILL");
    ASSERT_FACTS(p.err, "rank 1", "node 0", "host", program_flag("pid ", (int)victim));
    process_assert_gone(pids, n, 1000);
    assert_checkpoint_is_valid("run");
    program_close(&p);
}
END_TEST

/* Rank 0 could not make its folder: no rank is started. */
START_TEST(a_run_folder_that_is_a_file_is_refused)
{
    const file_part nothing = {"", 0};
    ck_assert_int_eq(file_write("run", &nothing, 1), STATUS_OK);
    program p =
        program_run_with(NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "3", "--run-dir", "run"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "run", "Not a directory", "--run-dir");
    ASSERT_SILENT(p.err, "rank 0");
    program_close(&p);
}
END_TEST

typedef struct stop {
    int signal;
    bool to_group; /* as a terminal does on Ctrl-C */
    int exit_code;
} stop;

static const stop stops[] = {{SIGINT, false, 75},
                             {SIGTERM, false, 75},
                             {SIGINT, true, 75},
                             {SIGTERM, true, 75},
                             {SIGUSR1, false, 75}};
enum { N_STOPS = sizeof stops / sizeof stops[0] };

START_TEST(signals_stop_all_ranks)
{
    const stop *s = &stops[_i];
    pid_t pids[MAX_RANKS];
    program p = program_start_with(NULL, WORDS(LONG_RUN, "--run-dir", "run"));
    training_await(&p);
    int n = process_children(p.pid, pids);
    ck_assert_int_eq(n, N_RANKS);
    kill(s->to_group ? -p.pid : p.pid, s->signal);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, s->exit_code);
    ASSERT_NO_FACTS(p.err, "error", "rank"); /* nobody failed */
    process_assert_gone(pids, n, 1000);
    assert_checkpoint_is_valid("run");
    program_close(&p);
}
END_TEST

/* Quiet ranks: none of them ends just because it writes to a launcher that is gone. */
START_TEST(killed_launcher_takes_its_ranks_along)
{
    pid_t pids[MAX_RANKS];
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    program p = program_start_with(
        NULL, WORDS(LONG_RUN, "--quiet", "--backend", training_backend, "--run-dir", "run"));
    while (!file_exists("run/model.safetensors") && !clock_passed(deadline_ns))
        clock_sleep_ms(POLL_MS);
    int n = process_children(p.pid, pids);
    ck_assert_int_eq(n, N_RANKS);
    kill(p.pid, SIGKILL);
    process_assert_gone(pids, n, 1000);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 128 + SIGKILL);
    assert_checkpoint_is_valid("run");
    program_close(&p);
}
END_TEST

/* The wait for the collective takes 2 s, the wait behind SIGTERM, which the process cannot see, 2 s
 * more. */
START_TEST(stopped_rank_is_a_timeout)
{
    pid_t pids[MAX_RANKS];
    char stopped[64];
    program p = program_start_with(NULL, WORDS(LONG_RUN, "--no-save-model", "--timeout", "2",
                                               "--backend", training_backend, "--run-dir", "run"));
    training_await(&p);
    int n = process_children(p.pid, pids);
    ck_assert_int_eq(n, N_RANKS);
    pid_t victim = process_of_rank(p.pid, 1);
    int64_t stopped_ns = clock_now_ns();
    kill(victim, SIGSTOP);
    program_wait(&p, RUN_S);
    double took_s = seconds_since(stopped_ns);
    ASSERT_EXIT(p, 110);
    ck_assert_msg(took_s < 10, "the launcher took %g s", took_s);
    snprintf(stopped, sizeof stopped, "rank 1 (pid %d)", (int)victim);
    if (!training_is_on_gloo()) {
        const char *waited = strstr(p.err, "waited ");
        ASSERT_FACTS(p.err, "waited", stopped);
        /* 2 s, less what went by before it slept; more if it woke up late */
        double waited_s = waited != NULL ? atof(waited + strlen("waited ")) : 0;
        ck_assert_msg(waited_s > 1.5 && waited_s < 3, "%s", p.err);
    }
    ASSERT_FACTS(p.err, "error", "rank", "exit code 110");
    ASSERT_FACTS(p.err, stopped, "SIGTERM");
    process_assert_gone(pids, n, 1000);
    program_close(&p);
}
END_TEST

/* Files that may not grow stand for a disk that is full. */
START_TEST(full_disk_ends_no_training)
{
    const char *const limited[] = {"sh", "-c", "ulimit -f 100; exec \"$@\"", "sh", NULL};
    program first = program_run_with(NULL, WORDS(TRAINING_SMALL, "--run-dir", "run"));
    ASSERT_EXIT(first, 0);
    program p = program_run_with(
        limited, WORDS(TRAINING_SMALL, "--run-dir", "run", "--resume", "--epochs", "3"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "checkpoint", "File too large");
    ASSERT_FACTS(p.err, "epoch 3/3:"); /* the training went on */
    ASSERT_FACTS(p.out, "\"test_acc\"");
    assert_checkpoint_is_valid("run");
    program again = program_run_with(
        NULL, WORDS(TRAINING_SMALL, "--run-dir", "run", "--resume", "--epochs", "2"));
    ASSERT_EXIT(again, 0); /* from the checkpoint that stayed, with room again */
    ASSERT_FACTS(again.err, "resuming", "epoch 1");
    program_close(&first);
    program_close(&p);
    program_close(&again);
}
END_TEST

static void add_other_tests(TCase *runs)
{
    tcase_add_test(runs, a_run_folder_that_is_a_file_is_refused);
    tcase_add_loop_test(runs, signals_stop_all_ranks, 0, N_STOPS);
    tcase_add_test(runs, full_disk_ends_no_training);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("faults");
    TCase *runs = suite_case(suite, "runs", 2.5 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, killed_rank_is_blamed);
    tcase_add_test(runs, killed_launcher_takes_its_ranks_along);
    tcase_add_test(runs, stopped_rank_is_a_timeout);
    if (!training_is_on_gloo())
        add_other_tests(runs);
    return test_folder_close(suite_run(suite));
}
