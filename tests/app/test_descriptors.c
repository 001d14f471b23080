/* Descriptors 0 to 2 closed in every combination: each command ends as it should, a model is saved,
 * and nothing is written into a file or pipe that got the number of a closed one. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"

enum { COMBINATIONS = 8, OUT = 1 << 1, ERR = 1 << 2, HANG_S = 30, WITHOUT_RESULT = 74 };

/* Runs the program with the descriptors of `closed` (a bit each) closed. */
static program run_closed(int closed, const char *const *flags)
{
    static char line[64];
    snprintf(line, sizeof line, "exec \"$0\" \"$@\"%s%s%s", closed & 1 ? " <&-" : "",
             closed & OUT ? " >&-" : "", closed & ERR ? " 2>&-" : "");
    program p = program_start_with(WORDS("sh", "-c", line), flags);
    program_wait(&p, HANG_S);
    ck_assert_msg(p.exit_code >= 0 && p.exit_code < 128, "closed %d: exit %d: %s", closed,
                  p.exit_code, p.err);
    ASSERT_NO_FACTS(p.err, "bug");
    return p;
}

static int result_code(int closed)
{
    return closed & OUT ? WITHOUT_RESULT : 0;
}

static const char *const *const TRAININGS[] = {
    WORDS("--nproc-per-node=1"),
    WORDS("--nproc-per-node=2", "--backend=shm"),
    WORDS("--nproc-per-node=2", "--backend=gloo"),
};

static program train_closed(int closed, int kind, const char *first, const char *second)
{
    const char *backend = TRAININGS[kind][1];
    test_folder_remove("run");
    return run_closed(closed,
                      WORDS("train", "--model", "mlp", "--limit", "192", "--epochs", "1",
                            "--threads", "1", "--run-dir", test_folder_path("run"), first, second,
                            TRAININGS[kind][0], backend != NULL ? backend : "--seed=1"));
}

START_TEST(a_model_is_trained)
{
    int closed = _i % COMBINATIONS, kind = _i / COMBINATIONS;
    program p = train_closed(closed, kind, "--json", "--inject=delay:rank=0,ms=1");
    ASSERT_EXIT(p, result_code(closed));
    if ((closed & OUT) == 0)
        ck_assert_double_eq(training_number(p.out, "world"), kind == 0 ? 1 : 2);
    else if ((closed & ERR) == 0)
        ASSERT_FACTS(p.err, "stdout");
    program_close(&p);
    const char *kept = test_folder_path(kind == 0 ? "one" : "two");
    if (closed == 0 && kind < 2)
        ck_assert_int_eq(rename(test_folder_path("run"), kept), 0);
    else
        model_file_assert_same_bits(test_folder_path("run"), kept);
}
END_TEST

/* Its progress is no result: who closes stdout does not want to see it. */
START_TEST(progress_may_be_lost)
{
    program p = train_closed(OUT, _i % 2, "--log-interval=1", _i < 2 ? "--tee=0" : "--tee=3");
    ASSERT_EXIT(p, 0);
    ck_assert(file_exists(test_folder_path("run/model.safetensors")));
    program_close(&p);
}
END_TEST

static void assert_log(int rank, const char *name, const char *text)
{
    char path[FILE_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/attempt_0/%d/%s", run_command_job_folder("logs"), rank, name);
    char *held = test_folder_read(path);
    ck_assert_str_eq(held, text);
    free(held);
}

START_TEST(a_program_is_run)
{
    int closed = _i % COMBINATIONS;
    bool tee = _i >= COMBINATIONS;
    test_folder_remove("logs");
    program p =
        run_closed(closed, WORDS("run", "--nproc-per-node=2", "--log-dir", test_folder_path("logs"),
                                 tee ? "--tee=3" : "--tee=0", "--", "sh", "-c",
                                 "echo out $RANK; echo err $RANK >&2; cat; exit 0"));
    ASSERT_EXIT(p, tee ? result_code(closed) : 0);
    for (int rank = 0; rank < 2 && tee; rank++) {
        assert_log(rank, "stdout.log", rank == 0 ? "out 0\n" : "out 1\n");
        assert_log(rank, "stderr.log", rank == 0 ? "err 0\n" : "err 1\n");
    }
    ck_assert_int_eq(facts_count(p.out, "out "), closed & OUT ? 0 : 2);
    ck_assert_int_eq(facts_count(p.err, "err "), closed & ERR ? 0 : 2);
    ASSERT_NO_FACTS(p.out, "err");
    program_close(&p);
}
END_TEST

/* Each prints, and what it prints is a result. */
START_TEST(a_command_prints)
{
    const char *model = test_folder_path("one/model.safetensors");
    const char *const *const commands[] = {
        WORDS("eval", "--json", "--checkpoint", model),
        WORDS("sampler", "--samples=90", "--json"),
        WORDS("env", "--json"),
        WORDS("doctor", "--json"),
        WORDS("version"),
        WORDS("help"),
        WORDS("bench", "all-reduce", "-b4", "-e4K", "-n2", "-w1", "--nproc-per-node=2"),
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        program p = run_closed(_i, commands[i]);
        ck_assert_msg(p.exit_code == result_code(_i), "%s, closed %d: exit %d: %s", commands[i][0],
                      _i, p.exit_code, p.err);
        ck_assert_msg((p.out[0] == '\0') == ((_i & OUT) != 0), "%s, closed %d: stdout: %s",
                      commands[i][0], _i, p.out);
        program_close(&p);
    }
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    const char *no_gloo = training_has_gloo() ? NULL : "gloo is not in this build";
    Suite *suite = suite_create("descriptors");
    TCase *closed = suite_case(suite, "closed", 4.0 * HANG_S);
    for (int i = 0; i < 3 * COMBINATIONS; i++)
        suite_add(closed, a_model_is_trained, i, i / COMBINATIONS == 2 ? no_gloo : NULL);
    tcase_add_loop_test(closed, progress_may_be_lost, 0, 4);
    tcase_add_loop_test(closed, a_program_is_run, 0, 2 * COMBINATIONS);
    tcase_add_loop_test(closed, a_command_prints, 0, COMBINATIONS);
    return test_folder_close(suite_run(suite));
}
