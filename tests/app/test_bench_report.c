/* report.html in a browser: every plot is there and drawn, and nothing is complained about. */
#include "app/bench/bench.h"
#include "base/file.h"
#include "tests/app/support/bench_fixture.h"
#include "tests/app/support/browser.h"

enum { MAX_FIGURES = 64, WIDTH = 1200 };

/* What the page looks like to the browser: for each plot its name, and whether its picture is as
 * large as one and has lines or bars. Put behind a copy of the page. */
static const char PROBE[] =
    "document.body.setAttribute('data-seen', "
    "Array.from(document.querySelectorAll('figure')).map(f => { "
    "const s = f.querySelector('svg'), box = s.getBoundingClientRect(); "
    "const ink = Array.from(s.querySelectorAll('.line, rect, circle')).filter(e => { "
    "const b = e.getBBox(); return b.width + b.height > 0; }).length; "
    "return f.id + ':' + (box.width > 200 && box.height > 100 && ink > 0 ? 'drawn' : 'empty'); "
    "}).join(' ') + ' ids:' + (new Set(Array.from(document.querySelectorAll('[id]')).map(e => "
    "e.id))"
    ".size === document.querySelectorAll('[id]').length ? 'unique' : 'shared'));";

static void make_bench(const char *folder)
{
    bench_fixture b;
    test_folder_require(file_make_folders(folder));
    bench_fixture_open(
        "bench dp-vs-ddp --models mlp,cnn --world-sizes 1,2,4 --repeats 6 --steps 4 --modes "
        "single,dp,ddp,ps",
        &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    dp_vs_ddp_plots(&b.rows, b.document);
    report_say(b.document, REPORT_NOTES, "<script>console.error('markup')</script> & more");
    test_folder_require(report_write(b.document, folder, "dp-vs-ddp.json"));
    bench_fixture_close(&b);
    /* what another benchmark may have left there */
    char name[200] = "<b>", *words[] = {name, name};
    memset(name + 3, 'W', sizeof name - 4);
    json_t *other = report_create(&(report_head){"benchmark", "scaling", name, 2, words});
    report_say(other, REPORT_NOTES, "%s", name);
    table_row(report_table(other, name, (const char *const[]){name, NULL}));
    json_t *line = report_series(report_plot(other, "scaling-test", "A line"), "</script>ours");
    json_array_append_new(json_object_get(line, "points"), json_pack("[i, i]", 1, 2));
    json_array_append_new(json_object_get(line, "points"), json_pack("[i, i]", 2, 3));
    test_folder_require(report_write(other, folder, "scaling.json"));
    json_decref(other);
    test_folder_require(bench_page_write(folder));
}

/* Names of plots that both documents list. */
static int list_plots(char names[MAX_FIGURES][128])
{
    static const char *const files[] = {"out/dp-vs-ddp.json", "out/scaling.json"};
    int n = 0;
    for (int f = 0; f < 2; f++) {
        const json_t *plot;
        size_t i;
        char *text = test_folder_read(files[f]);
        json_t *document = json_loads(text, 0, NULL);
        json_array_foreach(json_object_get(json_object_get(document, "report"), "plots"), i, plot)
            snprintf(names[n++], 128, "%s", json_string_value(json_object_get(plot, "name")));
        json_decref(document);
        free(text);
    }
    return n;
}

START_TEST(every_figure_is_drawn_and_nothing_complains)
{
    char names[MAX_FIGURES][128], want[192];
    make_bench("out");
    char *page = test_folder_read("out/report.html");
    json_decref(browser_data(page));
    ck_assert_ptr_null(strstr(page, "http://www.w3.org/TR")); /* no document type from elsewhere */
    free(page);
    browser_probe("out/report.html", PROBE, "out/probed.html");
    program p = browser_run("out/probed.html", WIDTH);
    const char *seen = strstr(p.out, "data-seen=\"");
    ck_assert_msg(seen != NULL, "the probe did not run: %.2000s", p.out);
    int n = list_plots(names);
    ck_assert_int_eq(n, 2 * 2 * 3 + 1); /* models x scalings x kinds, and the other benchmark's */
    for (int i = 0; i < n; i++) {
        snprintf(want, sizeof want, "plot-%.127s:drawn", names[i]);
        ck_assert_msg(strstr(seen, want) != NULL, "no %s in %.1500s", want, seen);
    }
    ck_assert_msg(strstr(seen, "ids:unique") != NULL, "%.1500s", seen);
    ck_assert_ptr_null(strstr(seen, ":empty"));
    program_close(&p);
    browser_check_looks((const char *const[]){"out/report.html"}, 1);
}
END_TEST

/* The test sees what it looks for. */
START_TEST(the_browser_check_sees_a_console_error)
{
    static const char page[] = "<!DOCTYPE html><script>console.error('aha')</script>";
    file_part part = {page, sizeof page - 1};
    test_folder_require(file_replace(test_folder_path("bad.html"), &part, 1));
    program p = browser_open(test_folder_path("bad.html"), WIDTH);
    ck_assert_msg(strstr(p.err, "CONSOLE") != NULL, "%.2000s", p.err);
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    if (!browser_find()) {
        printf("SKIP: Chromium is not installed\n");
        return test_folder_close(TEST_SKIPPED);
    }
    Suite *suite = suite_create("bench_report");
    TCase *core = suite_case(suite, "core", 2 * BROWSER_S);
    tcase_add_test(core, every_figure_is_drawn_and_nothing_complains);
    tcase_add_test(core, the_browser_check_sees_a_console_error);
    return test_folder_close(suite_run(suite));
}
