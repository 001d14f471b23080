/* mnist_ddp bench scaling, whole: measures, and says what it has done. */
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"

#include <jansson.h>
#include <signal.h>

enum { WHOLE_S = 280 };

#define SMALL \
    "--device", "cpu", "--modes", "ddp,dp,ps", "--models", "mlp", "--batch-sizes", "4,16", \
        "--steps", "3"

static json_t *read_document(const char *folder)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%.3000s/scaling.json", folder);
    json_t *document = json_load_file(path, 0, NULL);
    ck_assert_msg(document != NULL, "no JSON in %s", path);
    return document;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}

/* A child for each repeat: its time is in the case. */
static void check_cases(const json_t *document)
{
    const json_t *cases = json_object_get(document, "cases"), *one;
    size_t i, sums = 0, steps = 0;
    json_array_foreach(cases, i, one)
    {
        const json_t *values = json_object_get(one, "values_s");
        double a = json_number_value(json_array_get(values, 0));
        double b = json_number_value(json_array_get(values, 1));
        ck_assert_uint_eq(json_array_size(values), 2);
        ck_assert_double_gt(a, 0);
        ck_assert_double_eq_tol(number(one, "median_s"), (a + b) / 2, 1e-5 * (a + b));
        ck_assert(json_is_null(json_object_get(one, "low_s"))); /* an interval takes six */
        ck_assert_double_gt(number(one, "bytes"), 0);
        if (strcmp(json_string_value(json_object_get(one, "what")), "all-reduce") == 0) {
            sums++;
            continue;
        }
        steps++;
        ck_assert_double_gt(number(one, "images_per_rank"), 0);
        ck_assert_str_eq(json_string_value(json_object_get(one, "model")), "mlp");
    }
    ck_assert_uint_eq(sums, 8);      /* 256 B to 4 MiB */
    ck_assert_uint_eq(steps, 2 + 6); /* two batches: one rank alone, and each mode of two */
}

START_TEST(steps_and_all_reduces_are_measured)
{
    char out[FILE_PATH_BYTES];
    snprintf(out, sizeof out, "%s", test_folder_path("whole"));
    program p = program_mnist("bench", "scaling", SMALL, "--world-sizes", "1,2", "--repeats", "2",
                              "--out", out, NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "ddp", "mlp", "16");
    ASSERT_FACTS(p.out, "bench/scaling.py");
    ASSERT_FACTS(p.out, "report.html");
    json_t *document = read_document(out);
    const json_t *settings = json_object_get(document, "settings");
    check_cases(document);
    ck_assert_double_ge(number(settings, "cores"), 1);
    ck_assert_ptr_nonnull(json_object_get(settings, "backend"));
    double backward = number(json_object_get(settings, "backward_share"), "mlp");
    ck_assert(backward > 0 && backward < 1);
    json_decref(document);
    program_close(&p);
}
END_TEST

/* A stop ends the measurement and keeps it. */
START_TEST(a_stop_keeps_what_was_measured)
{
    char out[FILE_PATH_BYTES];
    snprintf(out, sizeof out, "%s", test_folder_path("stopped"));
    const char *argv[] = {program_mnist_ddp(),
                          "bench",
                          "scaling",
                          SMALL,
                          "--world-sizes",
                          "1,2",
                          "--repeats",
                          "1000",
                          "--out",
                          out,
                          NULL};
    program p = program_start(argv);
    char *said = NULL;
    for (int tries = 0; tries < 600; tries++) {
        said = program_peek(&p);
        bool measured = facts_in_a_line(said, "1 of 1000", NULL);
        free(said);
        if (measured)
            break;
        usleep(100000);
    }
    kill(p.pid, SIGINT);
    program_wait(&p, 60);
    ASSERT_EXIT(p, 128 + SIGINT);
    ASSERT_FACTS(p.out, "stopped", "measured");
    json_t *document = read_document(out);
    ck_assert_uint_ge(json_array_size(json_object_get(document, "cases")), 1);
    json_decref(document);
    program_close(&p);
}
END_TEST

/* Children that fail are left out, by name; and if no step is left, that is said. */
START_TEST(failing_runs_are_named)
{
    program p = program_mnist("bench", "scaling", SMALL, "--world-sizes", "1,2", "--repeats", "1",
                              "--data-dir", "/nowhere", "--out", test_folder_path("failed"), NULL);
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.out, "ddp, mlp, 1 rank of 4 images", "exit code 65");
    ASSERT_FACTS(p.out, "no steps", "measured");
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("bench_scaling");
    TCase *core = suite_case(suite, "core", WHOLE_S);
    tcase_add_test(core, steps_and_all_reduces_are_measured);
    tcase_add_test(core, a_stop_keeps_what_was_measured);
    tcase_add_test(core, failing_runs_are_named);
    return test_folder_close(suite_run(suite));
}
