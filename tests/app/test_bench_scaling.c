/* mnist_ddp bench scaling, whole: measures, fits, projects and says what it has done. */
#include "app/bench/cases.h"
#include "app/report/plot.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"

#include <jansson.h>
#include <math.h>
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

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The error that is told is that of the cases in the document. */
static void check_held_out(const json_t *document)
{
    const json_t *cases = json_object_get(document, "cases"), *one;
    const json_t *told = json_object_get(json_object_get(document, "held_out"), "steps");
    double errors[256];
    size_t i, n = 0;
    json_array_foreach(cases, i, one)
    {
        bool held_out = json_is_true(json_object_get(one, "held_out"));
        ck_assert_int_eq(held_out, (int)number(one, "ranks") == 3);
        ck_assert_double_gt(number(one, "median_s"), 0);
        if (held_out && strcmp(json_string_value(json_object_get(one, "what")), "all-reduce") != 0)
            errors[n++] = fabs(number(one, "model_s") / number(one, "median_s") - 1);
    }
    ck_assert_uint_ge(n, 2);
    qsort(errors, n, sizeof *errors, by_size);
    ck_assert_uint_eq((size_t)number(told, "cases"), n);
    ck_assert_double_eq_tol(number(told, "median"), (errors[n / 2] + errors[(n - 1) / 2]) / 2,
                            1e-3 * number(told, "median") + 1e-5);
}

static void check_projection(const json_t *document)
{
    const json_t *projection = json_object_get(document, "projection"), *curve;
    const json_t *curves = json_object_get(projection, "curves");
    size_t i;
    ck_assert_ptr_nonnull(json_object_get(projection, "what"));
    ck_assert_uint_eq(json_array_size(curves), 10); /* five ways, weak and strong */
    json_array_foreach(curves, i, curve)
    {
        const json_t *ranks = json_object_get(curve, "ranks");
        size_t n = json_array_size(ranks);
        ck_assert_uint_eq(json_array_size(json_object_get(curve, "images_per_s")), n);
        ck_assert_int_eq(json_integer_value(json_array_get(ranks, 0)), 1);
        ck_assert_int_eq(json_integer_value(json_array_get(ranks, n - 1)), 100000);
    }
}

static void check_plots(const json_t *document, const char *folder)
{
    static const char *const kinds[] = {"svg", "png"};
    const json_t *plots = json_object_get(json_object_get(document, "report"), "plots"), *plot;
    size_t i;
    ck_assert_uint_eq(json_array_size(plots), plot_is_possible() ? 3 : 0);
    json_array_foreach(plots, i, plot) for (int k = 0; k < 2; k++)
    {
        char path[FILE_PATH_BYTES];
        snprintf(path, sizeof path, "%.3000s/%.200s.%s", folder,
                 json_string_value(json_object_get(plot, "name")), kinds[k]);
        ck_assert_msg(file_exists(path), "no %s", path);
    }
}

/* Each measured mode has its dots, the model's line beside them, and its colour. */
static void check_fit_plot(const char *folder)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%.3000s/scaling_fit.gp", folder);
    if (!plot_is_possible())
        return;
    char *script = test_folder_read(path);
    ASSERT_SILENT(script, "<< EOD\nEOD"); /* a curve without points */
    for (strategy_kind mode = STRATEGY_DP; mode <= STRATEGY_PS; mode++)
        ASSERT_SAYS(script, mode_colours[mode]);
    ASSERT_SAYS(script, "set xtics 1\n");
    free(script);
}

START_TEST(measures_fits_and_projects)
{
    char out[FILE_PATH_BYTES];
    snprintf(out, sizeof out, "%s", test_folder_path("whole"));
    program p = program_mnist("bench", "scaling", SMALL, "--world-sizes", "1,2,3", "--hold-out",
                              "3", "--repeats", "1", "--out", out, NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "world sizes 3", "held out", "%");
    ASSERT_FACTS(p.out, "PROJECTION", "mlp", "weak");
    ASSERT_FACTS(p.out, "projection", "mlp", "strong", "DP", "master");
    ASSERT_FACTS(p.out, "DDP ring");
    ASSERT_FACTS(p.out, "DDP tree");
    ASSERT_FACTS(p.out, "mlp", "image", "us", "cores");
    ASSERT_FACTS(p.out, "report.html");
    json_t *document = read_document(out);
    check_held_out(document);
    check_projection(document);
    check_plots(document, out);
    check_fit_plot(out);
    ck_assert_ptr_nonnull(json_object_get(json_object_get(document, "fit"), "compute"));
    json_decref(document);
    program_close(&p);
}
END_TEST

/* A stop ends the measurement and keeps it, with or without enough for a fit. */
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

/* Children that fail are left out, by name, and if none is left there is no fit and no projection,
 * and what happened is said. */
START_TEST(failing_runs_are_named)
{
    program p = program_mnist("bench", "scaling", SMALL, "--world-sizes", "1,2", "--repeats", "1",
                              "--data-dir", "/nowhere", "--out", test_folder_path("failed"), NULL);
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.out, "ddp, mlp, 1 rank of 4 images", "exit code 65");
    ASSERT_FACTS(p.out, "no fit", "steps");
    ASSERT_NO_FACTS(p.out, "PROJECTION");
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("bench_scaling");
    TCase *core = suite_case(suite, "core", WHOLE_S);
    tcase_add_test(core, measures_fits_and_projects);
    tcase_add_test(core, a_stop_keeps_what_was_measured);
    tcase_add_test(core, failing_runs_are_named);
    return test_folder_close(suite_run(suite));
}
