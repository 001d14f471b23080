/* A chart, of data as runs leave it. */
#include "app/report/chart.h"

#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <math.h>

static char text[65536];

static void draw_series(chart_axis axis, const chart_series *one)
{
    const chart c = {.title = "T", .x_label = "X", .y_axis = axis, .series = one, .n_series = 1};
    FILE *out = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(out);
    chart_write(out, &c);
    ck_assert_int_eq(fclose(out), 0);
    ASSERT_SILENT(text, "nan");
    ASSERT_SILENT(text, "inf");
    ck_assert_int_le(facts_count(text, "class=\"grid\""), 24);
}

static void draw_at(chart_axis axis, const double *x, const double *y, int n)
{
    draw_series(axis, &(chart_series){.name = "s", .form = CHART_DOTS, .x = x, .y = y, .n = n});
}

static void draw(chart_axis axis, const double *y, int n)
{
    static const double x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    draw_at(axis, x, y, n);
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

/* No share is more than all. */
START_TEST(a_single_point_is_seen)
{
    const double x = 94, y = 0.9629;
    draw_series(CHART_PERCENT,
                &(chart_series){.name = "s", .form = CHART_LINE, .x = &x, .y = &y, .n = 1});
    ck_assert_int_eq(facts_count(text, "<circle"), 1);
    ASSERT_SAYS(text, ">100 %<");
    ASSERT_SILENT(text, ">105 %<");
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
    draw_at(CHART_LINEAR, FAR[_i].x, FAR[_i].y, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), FAR[_i].drawn[0]);
    draw_at(CHART_LOG, FAR[_i].x, FAR[_i].y, 3);
    ck_assert_int_eq(facts_count(text, "<circle"), FAR[_i].drawn[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chart");
    TCase *charts = suite_case(suite, "charts", 10);
    tcase_add_test(charts, gaps_break_a_line);
    tcase_add_test(charts, a_logarithmic_axis_leaves_out_what_is_not_positive);
    tcase_add_test(charts, a_single_point_is_seen);
    tcase_add_test(charts, odd_data_is_drawn_or_said_to_be_none);
    tcase_add_loop_test(charts, axes_have_few_ticks, 0, sizeof FAR / sizeof FAR[0]);
    return suite_run(suite);
}
