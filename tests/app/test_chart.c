/* A chart, of data as runs leave it. */
#include "app/report/chart.h"

#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <math.h>

static char text[65536];

static void draw(chart_axis axis, const double *y, int n)
{
    static const double x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const chart_series one = {.name = "s", .form = CHART_DOTS, .x = x, .y = y, .n = n};
    const chart c = {.title = "T", .x_label = "X", .y_axis = axis, .series = &one, .n_series = 1};
    FILE *out = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(out);
    chart_write(out, &c);
    ck_assert_int_eq(fclose(out), 0);
    ASSERT_SILENT(text, "nan");
    ASSERT_SILENT(text, "inf");
}

START_TEST(gaps_break_a_line)
{
    const double y[] = {1, (double)NAN, 3, 4, HUGE_VAL, 6};
    draw(CHART_LINEAR, y, 6);
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
    draw(CHART_LOG, y, 4);
    ck_assert_int_eq(facts_count(text, "<circle"), 2);
    ASSERT_SAYS(text, ">0.01<");
    ASSERT_SAYS(text, ">100<");
}
END_TEST

START_TEST(odd_data_is_drawn_or_said_to_be_none)
{
    static const double one[] = {5}, same[] = {0, 0, 0}, far[] = {-1e300, 1e300, 1e-300};
    draw(CHART_LINEAR, one, 1);
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    draw(CHART_LOG, one, 1);
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    draw(CHART_PERCENT, same, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), 3);
    draw(CHART_LINEAR, far, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), 3);
    draw(CHART_LOG, same, 3);
    ASSERT_SAYS(text, "no data");
    draw(CHART_LINEAR, one, 0);
    ASSERT_SAYS(text, "no data");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chart");
    TCase *charts = suite_case(suite, "charts", 10);
    tcase_add_test(charts, gaps_break_a_line);
    tcase_add_test(charts, a_logarithmic_axis_leaves_out_what_is_not_positive);
    tcase_add_test(charts, odd_data_is_drawn_or_said_to_be_none);
    return suite_run(suite);
}
