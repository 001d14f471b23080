/* Runs do not get into each other's folders. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <glob.h>
#include <signal.h>

#define TRAIN "train", "--model", "mlp", "--limit", "64", "--threads", "1", "--quiet"

/* Several that begin in one second, each with a folder of its own. */
START_TEST(runs_of_one_second_have_folders_of_their_own)
{
    enum { RUNS = 4 };
    program p[RUNS];
    for (int i = 0; i < RUNS; i++)
        p[i] = program_start_with(
            NULL, WORDS(TRAIN, "--epochs", "2", "--nproc-per-node", i % 2 == 0 ? "1" : "2"));
    for (int i = 0; i < RUNS; i++) {
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 0);
        program_close(&p[i]);
    }
    glob_t found = {0};
    ck_assert_int_eq(glob("runs/*", 0, NULL, &found), 0);
    ck_assert_uint_eq(found.gl_pathc, RUNS);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[FILE_PATH_BYTES];
        snprintf(path, sizeof path, "%s/result.json", found.gl_pathv[i]);
        ck_assert_msg(file_exists(path), "no %s", path);
    }
    globfree(&found);
}
END_TEST

/* A file is where runs/ would be made. What is to be saved is refused, with a way out; a run that
 * saves nothing is not. */
START_TEST(a_folder_that_cannot_be_made_costs_no_run_without_a_model)
{
    test_folder_require(file_make_folders("part"));
    test_folder_write("part/runs", "a file");
    program p = program_run_with(WORDS("env", "-C", "part"), WORDS(TRAIN, "--epochs", "1"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "runs", "--run-dir");
    program_close(&p);
    for (int ranks = 1; ranks <= 2; ranks++) {
        p = program_run_with(WORDS("env", "-C", "part"),
                             WORDS(TRAIN, "--epochs", "1", "--no-save-model",
                                   program_flag("--nproc-per-node=", ranks)));
        ASSERT_EXIT(p, 0);
        ASSERT_FACTS(p.err, "warning", "runs", "temporary");
        program_close(&p);
    }
}
END_TEST

START_TEST(a_folder_in_use_is_refused)
{
    program first = program_start_with(NULL, WORDS(TRAIN, "--epochs", "1", "--run-dir", "part",
                                                   "--inject", "delay:rank=0,step=1,ms=20000"));
    program_await(&first, "injected", "20000 ms");
    for (int i = 0; i < 2; i++) {
        program second = program_run_with(NULL, WORDS(TRAIN, "--epochs", "1", "--run-dir", "part",
                                                      i == 0 ? "--no-resume" : "--resume=auto"));
        ASSERT_EXIT(second, 74);
        ASSERT_FACTS(second.err, "error", "part", "--run-dir");
        ASSERT_NO_FACTS(second.err, "--resume"); /* that would not help */
        program_close(&second);
    }
    kill(first.pid, SIGKILL);
    program_wait(&first, RUN_S);
    program_close(&first);
    program third = program_run_with(NULL, WORDS(TRAIN, "--epochs", "1", "--run-dir", "part"));
    ASSERT_EXIT(third, 0); /* the dead hold nothing */
    program_close(&third);
}
END_TEST

/* What a killed run left of the files that it was writing goes as soon as the next one has the
 * folder; a refused one has no say. */
START_TEST(half_written_files_go)
{
    static const char *const ours[] = {"part/result.json.tmp-0123abcd",
                                       "part/model.safetensors.tmp-0123abcd"};
    static const char mine[] = "part/result.json.tmp-mine";
    program first = program_run_with(NULL, WORDS(TRAIN, "--epochs", "1", "--run-dir", "part"));
    ASSERT_EXIT(first, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(file_write(ours[i], NULL, 0), STATUS_OK);
    ck_assert_int_eq(file_write(mine, NULL, 0), STATUS_OK);
    program refused = program_run_with(NULL, WORDS(TRAIN, "--epochs", "2", "--run-dir", "part"));
    ASSERT_EXIT(refused, 74);
    ck_assert(file_exists(ours[0]) && file_exists(ours[1]));
    program cut = program_run_with(NULL, WORDS(TRAIN, "--epochs", "2", "--run-dir", "part",
                                               "--resume", "--inject", "kill:rank=0,step=2"));
    ASSERT_EXIT(cut, 128 + SIGKILL);
    ck_assert(!file_exists(ours[0]) && !file_exists(ours[1]));
    ck_assert(file_exists(mine));
    program_close(&first);
    program_close(&refused);
    program_close(&cut);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_folder");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, runs_of_one_second_have_folders_of_their_own);
    tcase_add_test(runs, a_folder_that_cannot_be_made_costs_no_run_without_a_model);
    tcase_add_test(runs, a_folder_in_use_is_refused);
    tcase_add_test(runs, half_written_files_go);
    return test_folder_close(suite_run(suite));
}
