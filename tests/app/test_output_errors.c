/* Results that nobody takes: a full disk and a reader that has gone, behind stdout and stderr. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"

#include <signal.h>

enum { NOT_WRITTEN = 74, GONE_READER_FD = 9, PIPE_DEATH = 128 + SIGPIPE };

#define TRAIN "train", "--model", "mlp", "--limit", "192", "--epochs", "1", "--threads", "1"

/* Runs the program with these redirections of a shell; of 9, the reader has gone. */
static program run_into(const char *redirections, const char *const *flags)
{
    static char line[128];
    snprintf(line, sizeof line, "exec \"$0\" \"$@\" %s 9>&-", redirections);
    program p = program_run_with(WORDS("sh", "-c", line), flags);
    ASSERT_NO_FACTS(p.err, "bug");
    return p;
}

static void open_gone_reader(void)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], GONE_READER_FD), GONE_READER_FD);
    close(ends[0]);
    close(ends[1]);
    test_folder_remove("run logs");
}

static const char *const *const PRINTING[] = {
    WORDS("sampler", "--samples=9", "--quiet"),
    WORDS("sampler", "--samples=90000", "--quiet"), /* more than stdio keeps */
    WORDS("sampler", "--samples=90000", "--json"),
    WORDS("env"),
    WORDS("env", "--json"),
    WORDS("doctor"),
    WORDS("doctor", "--json"),
    WORDS("version"),
    WORDS("--version"),
    WORDS("help"),
    WORDS("help", "sampler"),
    WORDS("train", "--help"),
    WORDS("run", "--dry-run", "--nproc-per-node=64", "true"), /* more than stdio keeps */
};
enum { N_PRINTING = sizeof PRINTING / sizeof PRINTING[0] };

static const char *const *const WORKING[] = {
    WORDS("bench", "all-reduce", "-b4", "-e4K", "-n2", "-w1"),
    WORDS("bench", "all-reduce", "-b4", "-e4K", "-n2", "-w1", "--json", "--nproc-per-node=2"),
    WORDS("bench", "dp-vs-ddp", "--modes=single", "--models=mlp", "--world-sizes=1", "--repeats=1",
          "--steps=2", "--warmup=1", "--json", "--quiet", "--out=run"),
    WORDS("demo", "ring", "--fast", "--json"),
    WORDS("run", "--nproc-per-node=2", "--tee=1", "--", "sh", "-c", "echo out; exit 0"),
    WORDS(TRAIN, "--json", "--run-dir", "run"),
    WORDS(TRAIN, "--json", "--run-dir", "run", "--nproc-per-node=2"),
    WORDS(TRAIN, "--json", "--run-dir", "run", "--nproc-per-node=2", "--tee=3"),
    WORDS(TRAIN, "--quiet", "--run-dir", "run"),
    WORDS(TRAIN, "--quiet", "--run-dir", "run", "--nproc-per-node=2"),
};
enum { N_WORKING = sizeof WORKING / sizeof WORKING[0], FIRST_TRAINING = 5 };

START_TEST(a_full_disk_is_an_error)
{
    const char *const *flags = _i < N_PRINTING ? PRINTING[_i] : WORKING[_i - N_PRINTING];
    program p = run_into(">/dev/full", flags);
    ASSERT_EXIT(p, NOT_WRITTEN);
    ASSERT_FACTS(p.err, "error", "stdout");
    program_close(&p);
    if (_i >= N_PRINTING + FIRST_TRAINING)
        ck_assert(file_exists("run/model.safetensors"));
}
END_TEST

/* As any program that only prints: silently, by SIGPIPE. */
START_TEST(printing_ends_with_its_reader)
{
    program p = run_into(">&9", PRINTING[_i]);
    ASSERT_EXIT(p, PIPE_DEATH);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

/* What takes long is finished first. */
START_TEST(work_outlives_its_reader)
{
    program p = run_into(">&9", WORKING[_i]);
    ASSERT_EXIT(p, NOT_WRITTEN);
    ASSERT_FACTS(p.err, "error", "stdout");
    program_close(&p);
    if (_i >= FIRST_TRAINING)
        ck_assert(file_exists("run/model.safetensors"));
}
END_TEST

START_TEST(eval_prints_a_result)
{
    program p = program_mnist(TRAIN, "--run-dir", "run", "--json", NULL);
    ASSERT_EXIT(p, 0);
    program_close(&p);
    p = run_into(">/dev/full", WORDS("eval", "--checkpoint", "run", "--json"));
    ASSERT_EXIT(p, NOT_WRITTEN);
    program_close(&p);
    p = run_into(">&9", WORDS("eval", "--checkpoint", "run"));
    ASSERT_EXIT(p, PIPE_DEATH);
    program_close(&p);
}
END_TEST

/* Neither the log nor the progress is worth a run. */
START_TEST(training_goes_on_without_a_log)
{
    static const char *const ways[] = {">&9", "2>&9", ">&9 2>&9", ">/dev/full", "2>/dev/full"};
    static const char *const ranks[] = {"--nproc-per-node=1", "--nproc-per-node=2",
                                        "--nproc-per-node=2"};
    static const char *const tees[] = {"--tee=0", "--tee=0", "--tee=3"};
    int kind = _i % 3;
    program p = run_into(ways[_i / 3], WORDS(TRAIN, "--run-dir", "run", "--log-interval=1",
                                             ranks[kind], tees[kind]));
    ASSERT_EXIT(p, 0);
    ck_assert(file_exists("run/model.safetensors"));
    program_close(&p);
}
END_TEST

/* The JSON line comes also where nobody reads the log. */
START_TEST(a_result_needs_no_log)
{
    program p = run_into(_i == 0 ? "2>&9" : "2>/dev/full",
                         WORDS(TRAIN, "--run-dir", "run", "--json", "--nproc-per-node=2"));
    ASSERT_EXIT(p, 0);
    ck_assert_double_eq(training_number(p.out, "world"), 2);
    program_close(&p);
}
END_TEST

/* A program that fails keeps its code, and one that must not write to a full disk runs on. */
START_TEST(a_copy_that_does_not_fit_ends)
{
    program p = run_into(">/dev/full", WORDS("run", "--tee=1", "sh", "-c", "echo out; exit 5"));
    ASSERT_EXIT(p, 5);
    program_close(&p);
    const char *line = "ulimit -f 8; exec \"$0\" \"$@\" >/dev/null";
    p = program_run_with(WORDS("sh", "-c", line),
                         WORDS("run", "--log-dir", test_folder_path("logs"), "--tee=1", "sh", "-c",
                               "head -c 3000000 /dev/zero | tr '\\000' x; echo; touch end"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "stdout.log", "File too large");
    ck_assert_int_eq(facts_count(p.err, "File too large"), 1);
    ck_assert(file_exists("end"));
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("output_errors");
    TCase *errors = suite_case(suite, "errors", 2.0 * RUN_S);
    tcase_add_checked_fixture(errors, open_gone_reader, NULL);
    tcase_add_loop_test(errors, a_full_disk_is_an_error, 0, N_PRINTING + N_WORKING);
    tcase_add_loop_test(errors, printing_ends_with_its_reader, 0, N_PRINTING);
    tcase_add_loop_test(errors, work_outlives_its_reader, 0, N_WORKING);
    tcase_add_test(errors, eval_prints_a_result);
    tcase_add_loop_test(errors, training_goes_on_without_a_log, 0, 15);
    tcase_add_loop_test(errors, a_result_needs_no_log, 0, 2);
    tcase_add_test(errors, a_copy_that_does_not_fit_ends);
    return test_folder_close(suite_run(suite));
}
