/* --duplicate-stdout-filters: words, commas in them, and lines. */
#include "app/launch/output.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>

static const struct {
    const char *list, *line;
    int words;
    bool matches;
} CASES[] = {
    {NULL, "apple", 0, false},
    {"", "apple", 0, false},
    {"apple", "an apple a day", 1, true},
    {"apple", "an app", 1, false},
    {"apple,orange", "orange", 2, true},
    {"apple,orange", "apple,orange", 2, true},
    {"a,,b", "a,b", 1, true},
    {"a,,b", "a", 1, false},
    {"a,,", "a", 1, false},
    {"a,,", "a,", 1, true},
    {"a,,,b", "b", 2, true},
    {"a,,,b", "a", 2, false},
    {",", "anything", 0, false},
    {"a,", "b", 1, false},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

START_TEST(words_are_found_in_lines)
{
    line_filter filter;
    ck_assert_int_eq(line_filter_parse("--flag", CASES[_i].list, &filter), STATUS_OK);
    ck_assert_int_eq(filter.n, CASES[_i].words);
    const char *line = CASES[_i].line;
    ck_assert_int_eq(line_filter_matches(&filter, line, strlen(line)), CASES[_i].matches);
}
END_TEST

START_TEST(long_lists_are_refused)
{
    char list[2 * LINE_FILTER_BYTES] = "";
    line_filter filter;
    for (int i = 0; i <= LINE_FILTER_WORDS; i++)
        strcat(list, i == 0 ? "w" : ",w");
    ck_assert_int_eq(line_filter_parse("--flag", list, &filter), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "--flag", "16");
    memset(list, 'x', LINE_FILTER_BYTES - 1);
    list[LINE_FILTER_BYTES - 1] = '\0';
    ck_assert_int_eq(line_filter_parse("--flag", list, &filter), STATUS_INVALID);
    list[LINE_FILTER_BYTES - 2] = '\0'; /* the longest */
    ck_assert_int_eq(line_filter_parse("--flag", list, &filter), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("line_filter");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, words_are_found_in_lines, 0, N_CASES);
    tcase_add_test(core, long_lists_are_refused);
    return suite_run(suite);
}
