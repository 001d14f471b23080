/* Plots of a benchmark, drawn by gnuplot. SKIP without gnuplot. */
#include "app/report/plot.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"

static char *text_of(const char *name, size_t *size_bytes)
{
    char *text = NULL;
    test_folder_require(file_read(test_folder_path(name), 1 << 22, &text, size_bytes));
    return text;
}

START_TEST(a_plot_is_drawn_twice)
{
    size_t size_bytes = 0;
    status st = plot_draw(test_folder, "line", "$d << EOD\n1 2\n2 3\nEOD\nplot $d with lines\n");
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    char *text = text_of("line.svg", &size_bytes);
    ASSERT_FACTS(text, "<svg");
    ASSERT_FACTS(text, "</svg>");
    free(text);
    text = text_of("line.png", &size_bytes);
    ck_assert(size_bytes > 1000 && memcmp(text, "\x89PNG", 4) == 0);
    free(text);
}
END_TEST

START_TEST(a_plot_that_fails_leaves_the_last_one)
{
    test_folder_require(plot_draw(test_folder, "kept", "plot x\n"));
    ck_assert(plot_draw(test_folder, "kept", "plot $nothing\n") == STATUS_INVALID);
    ASSERT_FACTS(status_text(), "gnuplot", "exit code 1");
    ck_assert(file_exists(test_folder_path("kept.svg")));
    ck_assert(!file_exists(test_folder_path("kept.svg.tmp")));
}
END_TEST

int main(void)
{
    if (!plot_is_possible()) {
        printf("SKIP: gnuplot is not installed\n");
        return TEST_SKIPPED;
    }
    test_folder_open();
    Suite *suite = suite_create("bench_plot");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_test(core, a_plot_is_drawn_twice);
    tcase_add_test(core, a_plot_that_fails_leaves_the_last_one);
    return test_folder_close(suite_run(suite));
}
