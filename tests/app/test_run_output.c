/* mnist_ddp run: what becomes of what the ranks say. */
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"

#include <sys/stat.h>

/* Says "out RANK" and "err RANK". */
#define TALK "echo out $RANK; echo err $RANK >&2"

static void assert_log(int rank, const char *name, const char *text)
{
    char path[FILE_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/attempt_0/%d/%s", run_command_job_folder("logs"), rank, name);
    if (text == NULL) {
        ck_assert_msg(!file_exists(path), "%s is there", path);
        return;
    }
    char *held = test_folder_read(path);
    ck_assert_str_eq(held, text);
    free(held);
}

START_TEST(redirects_go_to_files)
{
    program p = run_command("--nproc-per-node=12 --log-dir=logs --rdzv-id=j -r 0:3,1:1,11:2", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_ptr_nonnull(strstr(run_command_job_folder("logs"), "logs/j_"));
    assert_log(0, "stdout.log", "out 0\n");
    assert_log(0, "stderr.log", "err 0\n");
    assert_log(1, "stdout.log", "out 1\n");
    assert_log(1, "stderr.log", NULL);
    assert_log(2, "stdout.log", NULL);
    assert_log(11, "stdout.log", NULL);
    assert_log(11, "stderr.log", "err 11\n");
    ck_assert_int_eq(facts_count(p.out, "out "), 10);
    ck_assert_int_eq(facts_count(p.err, "err "), 10);
    ASSERT_SAYS(p.err, "err 1\n");
    ASSERT_SILENT(p.err, "err 11\n");
    program_close(&p);
}
END_TEST

START_TEST(tee_goes_both_ways)
{
    program p = run_command(
        "--nproc-per-node=11 --log-dir=logs --role=r -t 1:3,10:1 --redirects=10:2", TALK);
    ASSERT_EXIT(p, 0);
    assert_log(1, "stdout.log", "out 1\n");
    assert_log(1, "stderr.log", "err 1\n");
    assert_log(10, "stdout.log", "out 10\n");
    assert_log(10, "stderr.log", "err 10\n");
    ASSERT_SAYS(p.out, "[r1]:out 1\n");
    ASSERT_SAYS(p.out, "[r10]:out 10\n");
    ASSERT_SAYS(p.err, "[r1]:err 1\n");
    ASSERT_SAYS(p.out, "out 0\n");
    ASSERT_SILENT(p.out, "[r0]");
    ASSERT_SILENT(p.err, "err 10");
    program_close(&p);
}
END_TEST

/* Of the ranks whose output is teed and shown: 0 and 1, not 2 and 3. */
START_TEST(duplicate_filters_copy_matching_lines)
{
    char path[FILE_PATH_BYTES + 64];
    program p = run_command("--nproc-per-node=4 --log-dir=logs -t 0:3,1:3,3:3 "
                            "--local-ranks-filter=0,1,2 --duplicate-stdout-filters=keep,also "
                            "--duplicate_stderr_filters=loud",
                            "echo keep $RANK; echo drop $RANK; printf 'also %s' $RANK; "
                            "echo loud $RANK >&2; echo quiet >&2");
    ASSERT_EXIT(p, 0);
    static const char *const names[] = {"stdout", "stderr"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/attempt_0/filtered_%s.log", run_command_job_folder("logs"),
                 names[i]);
        char *held = test_folder_read(path);
        ck_assert_int_eq(facts_count(held, "\n"), i == 0 ? 4 : 2);
        ASSERT_SAYS(held, i == 0 ? "[default0]:keep 0\n" : "[default0]:loud 0\n");
        ASSERT_SAYS(held, i == 0 ? "[default1]:also 1\n" : "[default1]:loud 1\n");
        free(held);
    }
    ASSERT_SAYS(p.out, "drop 0\n");
    program_close(&p);
}
END_TEST

START_TEST(a_filter_hides_ranks)
{
    program p =
        run_command("--nproc-per-node=11 --log-dir=logs --local-ranks-filter=1,10 -t 2:3", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.out, "out "), 2);
    ck_assert_int_eq(facts_count(p.err, "err "), 2);
    ASSERT_SAYS(p.out, "out 10\n");
    assert_log(2, "stdout.log", "out 2\n");
    program_close(&p);
}
END_TEST

START_TEST(a_prefix_may_be_made)
{
    char words[600], host[256] = "";
    gethostname(host, sizeof host - 1);
    const char *argv[] = {program_mnist_ddp(),
                          "run",
                          "--tee=3",
                          "--log-line-prefix-template",
                          "<${hostname} $role_name ${rank}/$local_rank $$5> ",
                          "sh",
                          "-c",
                          "echo a; printf b >&2",
                          NULL};
    program p = program_start(argv);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    snprintf(words, sizeof words, "<%s default 0/0 $5> a\n", host);
    ck_assert_str_eq(p.out, words);
    snprintf(words, sizeof words, "<%s default 0/0 $5> b\n", host);
    ck_assert_str_eq(p.err, words);
    program_close(&p);
}
END_TEST

/* The last lines are there also where the launcher never saw them. */
START_TEST(the_box_has_the_last_lines_of_a_file)
{
    program p = run_command("--log-dir=logs -r 3", "seq 1 30 >&2; exit 2");
    ASSERT_EXIT(p, 2);
    ASSERT_FACTS(p.err, "| 11");
    ASSERT_FACTS(p.err, "| 30");
    ASSERT_NO_FACTS(p.err, "| 10");
    program_close(&p);
}
END_TEST

START_TEST(each_rank_may_see_one_gpu)
{
    setenv("CUDA_VISIBLE_DEVICES", "5,GPU-ab,7", 1);
    program p = run_command("--nproc-per-node=3 --virtual-local-rank -r 1 --log-dir logs",
                            "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES");
    ASSERT_EXIT(p, 0);
    assert_log(0, "stdout.log", "0 5\n");
    assert_log(1, "stdout.log", "0 GPU-ab\n");
    assert_log(2, "stdout.log", "0 7\n");
    program_close(&p);
    p = run_command("--nproc-per-node=4 --virtual-local-rank", "true");
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "--virtual-local-rank", "4 ranks", "CUDA_VISIBLE_DEVICES", "3 GPUs");
    program_close(&p);
}
END_TEST

/* Nothing is left in the temporary folder after a run that went well. */
START_TEST(a_good_run_leaves_nothing)
{
    ck_assert_int_eq(mkdir("tmp", 0700), 0);
    setenv("TMPDIR", test_folder_path("tmp"), 1);
    program p = run_command("--nproc-per-node=2 -r 3", TALK);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(rmdir("tmp"), 0);
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_output");
    TCase *output = suite_case(suite, "output", 2.0 * RUN_S);
    tcase_add_checked_fixture(output, test_folder_clean, NULL);
    tcase_add_test(output, redirects_go_to_files);
    tcase_add_test(output, tee_goes_both_ways);
    tcase_add_test(output, a_filter_hides_ranks);
    tcase_add_test(output, duplicate_filters_copy_matching_lines);
    tcase_add_test(output, a_prefix_may_be_made);
    tcase_add_test(output, the_box_has_the_last_lines_of_a_file);
    tcase_add_test(output, each_rank_may_see_one_gpu);
    tcase_add_test(output, a_good_run_leaves_nothing);
    return test_folder_close(suite_run(suite));
}
