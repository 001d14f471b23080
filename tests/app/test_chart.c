/* A chart in a page, of data as runs and benchmarks leave it. SKIP without Chromium. */
#include "app/report/report.h"

#include "base/file.h"
#include "tests/app/support/browser.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LINEAR "linear"
#define LOG "log"
#define PERCENT "percent"

static char *text; /* what the page shows */

static void draw_at(const char *axis, const double *x, const double *y, int n)
{
    static const char *const documents[] = {"chart.json", NULL};
    json_t *document = report_create(&(report_head){"benchmark", "chart", "Charts", 0, NULL});
    json_t *plot = report_plot(document, "p", "T"), *data = NULL;
    json_object_set_new(plot, "y_axis", json_string(axis));
    json_object_set_new(plot, "x_axis", json_string("linear"));
    json_object_set_new(plot, "x", json_string("X"));
    json_t *points = json_object_get(report_series(plot, "s"), "points");
    for (int i = 0; i < n; i++)
        json_array_append_new(
            points, json_pack("[o, o]", report_number(x[i], 17), report_number(y[i], 17)));
    char path[FILE_PATH_BYTES];
    test_folder_require(file_join(test_folder, documents[0], path));
    ck_assert_int_eq(json_dump_file(document, path, JSON_REAL_PRECISION(17)), 0);
    json_decref(document);
    test_folder_require(documents_page_write(test_folder, "Charts", documents));
    free(text);
    char *page = test_folder_read("report.html");
    data = browser_data(page);
    json_decref(data);
    free(page);
    text = browser_shows("report.html", 1200);
    ck_assert_ptr_nonnull(text);
    ASSERT_SILENT(text, "NaN");
    ASSERT_SILENT(text, "Infinity");
    ck_assert_int_le(facts_count(text, "class=\"grid\""), 24);
}

static void draw(const char *axis, const double *y, int n)
{
    static const double x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    draw_at(axis, x, y, n);
}

START_TEST(gaps_break_a_line)
{
    const double y[] = {1, (double)NAN, 3, 4, HUGE_VAL, 6};
    draw(LINEAR, y, 6);
    ck_assert_int_eq(facts_count(text, "<circle"), 4);
    const char *line = strstr(text, "class=\"line\"");
    ck_assert_ptr_nonnull(line);
    int moves = 0;
    for (const char *at = strstr(line, "d=\""); *at != '/'; at++)
        moves += *at == 'M';
    ck_assert_int_eq(moves, 3);
}
END_TEST

START_TEST(a_logarithmic_axis_leaves_out_what_is_not_positive)
{
    const double y[] = {0, -1, 0.01, 100};
    draw(LOG, y, 4);
    ck_assert_int_eq(facts_count(text, "<circle"), 2);
    ASSERT_SAYS(text, ">0.01<");
    ASSERT_SAYS(text, ">100<");
}
END_TEST

/* No share is more than all. */
START_TEST(a_single_point_is_seen)
{
    const double x = 94, y = 0.9629;
    draw_at(PERCENT, &x, &y, 1);
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    ASSERT_SAYS(text, ">100 %<");
    ASSERT_SILENT(text, ">105 %<");
}
END_TEST

START_TEST(odd_data_is_drawn_or_said_to_be_none)
{
    static const double one[] = {5}, same[] = {0, 0, 0}, far[] = {-1e300, 1e300, 1e-300};
    draw(LINEAR, one, 1);
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    draw(LOG, one, 1);
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    draw(PERCENT, same, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), 3);
    draw(LINEAR, far, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), 3);
    draw(LOG, same, 3);
    ASSERT_SAYS(text, "no data");
    draw(LINEAR, one, 0);
    ASSERT_SAYS(text, "no data");
}
END_TEST

/* Numbers whose distance is no double, is none, or is too small for a tick to move. */
static const struct {
    double x[3], y[3];
    int drawn[2]; /* points, on a linear and on a logarithmic axis */
} FAR[] = {
    {{1, 2, 3}, {-1.7e308, 1.7e308, 1}, {1, 1}},
    {{1, 2, 3}, {1e-320, 2e-320, 5e-324}, {3, 0}},
    {{1, 2, 3}, {1e20, 1e20 + 32768, 1e20}, {3, 3}},
    {{1, 2, 3}, {1e-300, 1e300, 1}, {3, 3}},
    {{1, 2, 3}, {-1e300, 1e300, 1}, {3, 2}},
    {{1e16, 1e16 + 2, 1e16 + 4}, {1, 2, 3}, {3, 3}},
    {{HUGE_VAL, 2, (double)NAN}, {1, 2, 3}, {1, 1}},
    {{5e-324, 1e-323, 0}, {1, 2, 3}, {3, 3}},
};

START_TEST(axes_have_few_ticks)
{
    draw_at(LINEAR, FAR[_i].x, FAR[_i].y, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), FAR[_i].drawn[0]);
    draw_at(LOG, FAR[_i].x, FAR[_i].y, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), FAR[_i].drawn[1]);
}
END_TEST

int main(void)
{
    test_folder_open();
    if (!browser_find()) {
        printf("SKIP: Chromium is not installed\n");
        return test_folder_close(TEST_SKIPPED);
    }
    Suite *suite = suite_create("chart");
    TCase *charts = suite_case(suite, "charts", 6 * BROWSER_S);
    tcase_add_test(charts, gaps_break_a_line);
    tcase_add_test(charts, a_logarithmic_axis_leaves_out_what_is_not_positive);
    tcase_add_test(charts, a_single_point_is_seen);
    tcase_add_test(charts, odd_data_is_drawn_or_said_to_be_none);
    tcase_add_loop_test(charts, axes_have_few_ticks, 0, sizeof FAR / sizeof FAR[0]);
    return test_folder_close(suite_run(suite));
}
