/* train --explain: what it says is what comes. */
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, LINE_BYTES = 512 };

/* A run's log, with its last line of JSON apart. */
static program explain(const char *flags)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line,
             "train --explain --json --model=cnn --epochs=1 --threads=1 --no-save-model "
             "--eval-every=0 --batch-size=16 --run-dir=r %s",
             flags);
    program p = program_run_line(line);
    ASSERT_EXIT(p, 0);
    return p;
}

/* What result.json calls steps, and bytes.sent, which is of one step. */
static void read_result(const char *out, double *steps, double *sent_bytes)
{
    json_t *result = json_loads(out, 0, NULL);
    *steps = json_number_value(json_object_get(result, "steps"));
    *sent_bytes = json_number_value(json_object_get(json_object_get(result, "bytes"), "sent"));
    json_decref(result);
}

/* The megabytes that stand after `before` in the log. */
static double megabytes(const char *log, const char *before)
{
    const char *at = strstr(log, before);
    ck_assert_msg(at != NULL, "no '%s' in: %s", before, log);
    return strtod(at + strlen(before), NULL);
}

START_TEST(it_fits_a_terminal)
{
    static const char *const flags[] = {"",
                                        "--nproc-per-node=3",
                                        "--mode=dp --replicas=3",
                                        "--mode=ps --nproc-per-node=2 --backend=shm",
                                        "--mode=model --replicas=3",
                                        "--nproc-per-node=2 --sync-every=1000 --outer-lr=0.7"};
    program p = explain(flags[_i]);
    char *from = strstr(p.err, "what is about to happen:");
    ck_assert_ptr_nonnull(from);
    for (char *line = strtok(from, "\n"); line != NULL && strstr(line, "memory") == NULL;
         line = strtok(NULL, "\n"))
        ck_assert_msg(strlen(line) <= COLUMNS, "more than %d columns: %s", COLUMNS, line);
    program_close(&p);
}
END_TEST

/* Bytes of a step, steps of the epoch, padding, buckets. */
START_TEST(the_numbers_are_those_of_the_run)
{
    program p = explain("--nproc-per-node=2 --limit=95");
    double steps, sent_bytes;
    read_result(p.out, &steps, &sent_bytes);
    ck_assert_double_eq(steps, 3);
    ck_assert_double_eq_tol(megabytes(p.err, "rank 0 sends "), sent_bytes * 1e-6, 0.01);
    ASSERT_FACTS(p.err, "3 such steps");
    ck_assert_ptr_null(strstr(p.err, "the last one of"));
    ASSERT_FACTS(p.err, "1 is dealt twice");
    ASSERT_FACTS(p.err, "numbers r, r + 2", "48 of them");
    ASSERT_FACTS(p.err, "forward and backward of 16 samples", "32 on all");
    ASSERT_FACTS(p.err, "bucket 0: 4.72 MB", "4 tensors from fc2.bias to fc1.weight");
    ASSERT_FACTS(p.err, "bucket 1: 0.08 MB", "4 tensors from conv2.bias to conv1.weight");
    program_close(&p);
}
END_TEST

/* Batches of DataParallel are not those of a rank. */
START_TEST(a_batch_is_cut_among_replicas)
{
    program p = explain("--mode=dp --replicas=3 --limit=40");
    ASSERT_FACTS(p.err, "3 such steps", "the last one of 8 samples");
    ASSERT_FACTS(p.err, "forward and backward of 16 samples", "cut among 3 replicas");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("explain");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_loop_test(core, it_fits_a_terminal, 0, 6);
    tcase_add_test(core, the_numbers_are_those_of_the_run);
    tcase_add_test(core, a_batch_is_cut_among_replicas);
    return test_folder_close(suite_run(suite));
}
