/* What a command leaves on stdout, and a run in its folder: results, and nothing beside them. */
#include "tests/app/support/training.h"

#include <signal.h>

#define TRAIN "train", "--model", "mlp", "--limit", "96", "--threads", "1"

static int lines_of(const char *text)
{
    return facts_count(text, "\n");
}

/* The indices of DistributedSampler, one a line. What they are is said beside them. */
START_TEST(a_sampler_prints_indices_alone)
{
    program p =
        program_mnist("sampler", "--samples=5", "--world-size=2", "--rank=1", "--no-shuffle", NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.out, "1\n3\n0\n");
    ASSERT_FACTS(p.err, "rank 1", "2", "5 samples", "3 indices", "1 padded");
    program_close(&p);
    p = program_mnist("sampler", "--samples=5", "--world-size=2", "--rank=1", "--no-shuffle",
                      "--quiet", NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.out, "1\n3\n0\n");
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

START_TEST(a_quiet_run_prints_its_result)
{
    static const char *const ranks[] = {"--nproc-per-node=1", "--nproc-per-node=2"};
    program p = program_mnist(TRAIN, "--epochs=2", "--quiet", "--run-dir", "run", ranks[_i], NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(lines_of(p.out), 1);
    ASSERT_FACTS(p.out, "run", "mlp", "accuracy", "loss");
    ck_assert_str_eq(p.err, "");
    program_close(&p);
    p = program_mnist("eval", "--checkpoint", "run", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "run", "mlp", "accuracy", "loss");
    program_close(&p);
}
END_TEST

START_TEST(a_quiet_run_without_a_test_prints_its_loss)
{
    program p =
        program_mnist(TRAIN, "--epochs=1", "--quiet", "--eval-every=0", "--run-dir", "run", NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(lines_of(p.out), 1);
    ASSERT_FACTS(p.out, "run", "train loss");
    ASSERT_SILENT(p.out, "accuracy");
    program_close(&p);
}
END_TEST

/* It says what it is, in each style of the log, and makes no folder. */
START_TEST(a_dry_run_leaves_nothing)
{
    static const char *const how[][2] = {
        {"--nproc-per-node=1", "--log-format=plain"},
        {"--nproc-per-node=1", "--log-format=pytorch"},
        {"--nproc-per-node=2", "--quiet"},
    };
    program p = program_mnist(TRAIN, "--dry-run", how[_i][0], how[_i][1], NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "dry run");
    ASSERT_SILENT(p.out, "saved:");
    ck_assert(!file_exists("runs"));
    program_close(&p);
    p = program_mnist(TRAIN, "--dry-run", how[_i][0], how[_i][1], "--json", "--run-dir", "run",
                      NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_double_eq(training_number(p.out, "steps"), 1);
    ck_assert_int_eq(lines_of(p.out), 1);
    ck_assert(!file_exists("run"));
    program_close(&p);
}
END_TEST

/* Of a run that could be continued: it stays as it is. */
START_TEST(a_dry_resume_changes_nothing)
{
    program p = program_mnist(TRAIN, "--epochs=1", "--run-dir", "run", "--json", NULL);
    ASSERT_EXIT(p, 0);
    char *before = test_folder_read("run/result.json");
    ck_assert_str_eq(p.out, before);
    program_close(&p);
    p = program_mnist(TRAIN, "--epochs=2", "--run-dir", "run", "--resume", "--dry-run", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "epoch 2/2", "step 1/1");
    char *after = test_folder_read("run/result.json");
    ck_assert_str_eq(before, after);
    ck_assert(file_exists("run/checkpoints/00000002"));
    ck_assert(!file_exists("run/checkpoints/00000003"));
    free(before);
    free(after);
    program_close(&p);
}
END_TEST

/* At the end of an epoch, and inside one. */
START_TEST(a_run_says_that_its_target_is_reached)
{
    program p = program_mnist(TRAIN, "--epochs=9", "--target-acc=0.01", "--run-dir", "run",
                              _i == 0 ? "--eval-every=1" : "--eval-every=1steps", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "stopped", "accuracy", "--target-acc", "0.01");
    program_close(&p);
    test_folder_clean();
    p = program_mnist(TRAIN, "--epochs=1", "--target-acc=100", "--run-dir", "run", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_NO_FACTS(p.out, "--target-acc");
    program_close(&p);
}
END_TEST

/* mnist_ddp ... | head -3: the run goes on, and at most one line says what became of its log. */
START_TEST(a_reader_that_leaves_is_no_failure)
{
    static const char *const ranks[] = {"--nproc-per-node=1", "--nproc-per-node=2"};
    program p = program_run_with(
        WORDS("bash", "-c", "\"$0\" \"$@\" | head -3 >/dev/null; exit ${PIPESTATUS[0]}"),
        WORDS(TRAIN, "--epochs=3", "--log-interval=1", "--run-dir", "run", ranks[_i]));
    ASSERT_EXIT(p, 0);
    ck_assert_int_le(lines_of(p.err), 1);
    ASSERT_NO_FACTS(p.err, "error");
    program_close(&p);
}
END_TEST

/* Closed by who starts it, as services and cron do. A log that nobody wants is no failure; a result
 * is. */
START_TEST(a_closed_stdout_costs_the_log_alone)
{
    static const char *const ranks[] = {"--nproc-per-node=1", "--nproc-per-node=2"};
    const char *const *shell = WORDS("sh", "-c", "exec \"$0\" \"$@\" >&-");
    program p = program_run_with(shell, WORDS(TRAIN, "--epochs=1", "--run-dir", "run", ranks[_i]));
    ASSERT_EXIT(p, 0);
    ck_assert_int_le(lines_of(p.err), 1);
    ASSERT_NO_FACTS(p.err, "bug");
    program_close(&p);
    test_folder_clean();
    p = program_run_with(
        shell, WORDS(TRAIN, "--epochs=1", "--run-dir", "run", ranks[_i], "--json", "--quiet"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "stdout");
    ck_assert(file_exists("run/model.safetensors"));
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("results");
    TCase *runs = suite_case(suite, "runs", RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, a_sampler_prints_indices_alone);
    tcase_add_loop_test(runs, a_quiet_run_prints_its_result, 0, 2);
    tcase_add_test(runs, a_quiet_run_without_a_test_prints_its_loss);
    tcase_add_loop_test(runs, a_dry_run_leaves_nothing, 0, 3);
    tcase_add_test(runs, a_dry_resume_changes_nothing);
    tcase_add_loop_test(runs, a_run_says_that_its_target_is_reached, 0, 2);
    tcase_add_loop_test(runs, a_reader_that_leaves_is_no_failure, 0, 2);
    tcase_add_loop_test(runs, a_closed_stdout_costs_the_log_alone, 0, 2);
    return test_folder_close(suite_run(suite));
}
