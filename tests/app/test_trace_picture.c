/* A trace as a picture: each span has its rectangle, in its rank's lane, at its time. */
#include "app/report/trace_picture.h"
#include "tests/app/support/browser.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define META(pid, tid, name) \
    "{\"ph\":\"M\",\"pid\":" #pid ",\"tid\":" #tid \
    ",\"name\":\"thread_name\",\"args\":{\"name\":\"" name "\"}},"
#define SPAN(pid, ts, dur, name, args) \
    "{\"ph\":\"X\",\"pid\":" #pid ",\"tid\":1,\"ts\":" #ts ",\"dur\":" #dur ",\"name\":\"" name \
    "\",\"args\":{" args "}}"

enum { ROW = 18 };

/* The row of the first span of a kind; its begin and its length in at[0] and at[1]. */
static int place_of(const char *page, const char *kind, double at[2])
{
    char begin[64];
    int y = -1;
    snprintf(begin, sizeof begin, "<rect class=\"%s\"", kind);
    const char *rect = strstr(page, begin);
    ck_assert_ptr_nonnull(rect);
    ck_assert_int_eq(
        sscanf(rect + strlen(begin), " x=\"%lf\" y=\"%d\" width=\"%lf\"", &at[0], &y, &at[1]), 3);
    return y;
}

/* Two ranks; forward ends where backward begins, but for the last decimal. */
START_TEST(a_span_stands_in_its_place)
{
    test_folder_write(
        "t.json", "{\"traceEvents\":[" META(0, 1, "main") META(1, 1, "main")
                      SPAN(0, 0.0, 1000.0, "step", "\"step\":1") "," SPAN(
                          0, 0.0, 400.001, "forward",
                          "") "," SPAN(0, 400.0, 600.0, "backward",
                                       "\"bytes\":12") "," SPAN(1, 500.0, 500.0, "a < b", "") "]}");
    ck_assert_int_eq(trace_picture_page_write("t.json", "t.html"), STATUS_OK);
    char *page = test_folder_read("t.html");
    json_t *data = browser_data(page);
    ck_assert_uint_eq(json_array_size(json_object_get(data, "trace")), 6);
    json_decref(data);
    ASSERT_SILENT(page, "a < b");
    free(page);
    page = browser_shows("t.html", 1200);
    if (page == NULL)
        return;
    ck_assert_int_eq(facts_count(page, "<rect"), 4);
    ck_assert_int_eq(facts_count(page, "class=\"lane\""), 2);
    double step[2], forward[2], backward[2];
    int row = place_of(page, "other", step);
    ck_assert_int_eq(place_of(page, "forward", forward), row + ROW);
    ck_assert_int_eq(place_of(page, "backward", backward), row + ROW);
    ck_assert_double_eq_tol(forward[0], step[0], 0.02);
    ck_assert_double_eq_tol(forward[1] / step[1], 0.4, 1e-3);
    ck_assert_double_eq_tol((backward[0] - step[0]) / step[1], 0.4, 1e-3);
    ck_assert_double_eq_tol(backward[1] / step[1], 0.6, 1e-3);
    ASSERT_SAYS(page, "backward\n0.600 ms\nbytes: 12</title>");
    ASSERT_SAYS(page, "a &lt; b");
    ASSERT_SAYS(page, ">step 1</text>");
    ASSERT_SAYS(page, ">500 \u00b5s</text>"); /* round, in one unit */
    ck_assert_int_eq(facts_count(page, " ms</text>"), 0);
    free(page);
}
END_TEST

START_TEST(what_is_no_trace_is_told)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{\"traceEvents\":7}",
                                        "{\"traceEvents\":[]}",
                                        "{\"traceEvents\":[1,null,\"x\"]}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        test_folder_write("t.json", texts[i]);
        ck_assert_int_eq(trace_picture_page_write("t.json", "t.html"), STATUS_INVALID);
    }
    ck_assert_int_ne(trace_picture_write_steps("nothing.json", "steps.json"), STATUS_OK);
    ck_assert(!file_exists("steps.json"));
}
END_TEST

/* The first view is one step, which is wide; then all spans are counted. */
static const char PROBE[] =
    "const first = document.querySelectorAll('.trace rect').length;"
    "const named = document.querySelectorAll('.trace .step').length;"
    "const steps = [...document.querySelectorAll('.trace rect')].filter(r => "
    "r.textContent.startsWith('step')).map(r => r.getBoundingClientRect().width);"
    "const isOne = Math.max(...steps) > 0.2 * document.querySelector('.trace').clientWidth;"
    "document.getElementById('all').click();"
    "requestAnimationFrame(() => document.body.setAttribute('data-seen', "
    "`first:${first > 0} one:${isOne} named:${named > 0} "
    "all:${document.querySelectorAll('.trace rect').length}.`));";

static void draw_all(int spans)
{
    char want[64];
    if (!browser_find())
        return;
    browser_probe("t.html", PROBE, "probed.html");
    char *shown = browser_shows("probed.html", 1200);
    const char *seen = strstr(shown, "data-seen=");
    ck_assert_ptr_nonnull(seen);
    snprintf(want, sizeof want, "\"first:true one:true named:true all:%d.\"", spans);
    ck_assert_msg(strstr(seen, want) != NULL, "no %s in %.60s", want, seen);
    free(shown);
}

/* A run's page has as many rectangles as its trace has spans; its report has three steps. */
START_TEST(a_run_is_drawn)
{
    program p = program_run_line("train --nproc-per-node=2 --model=mlp --epochs=1 --limit=200 "
                                 "--batch-size=8 --threads=1 --trace=t.json --run-dir=r");
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "as a page: t.html");
    char *trace = test_folder_read("t.json"), *page = test_folder_read("t.html");
    ck_assert_int_eq(facts_count(page, "\"ph\":\"X\""), facts_count(trace, "\"ph\":\"X\""));
    draw_all(facts_count(trace, "\"ph\":\"X\""));
    char *report = test_folder_read("r/report.html"),
         *steps = test_folder_read("r/trace_steps.json");
    json_t *data = browser_data(report);
    const json_t *run = json_array_get(json_object_get(data, "runs"), 0);
    ck_assert_uint_gt(json_array_size(json_object_get(run, "trace")), 0);
    json_decref(data);
    char *shown = browser_shows("r/report.html", 1200);
    if (shown != NULL) {
        ASSERT_SAYS(shown, "What every rank did when");
        ASSERT_SAYS(shown, "<svg class=\"trace\"");
    }
    free(shown);
    ck_assert_int_ge(facts_count(steps, "\"name\":\"step\""), 6); /* of both ranks */
    ck_assert_int_le(facts_count(steps, "\"name\":\"step\""), 10);
    free(steps);
    free(trace);
    free(page);
    free(report);
    program_close(&p);
}
END_TEST

/* Whatever lies in a run's folder as trace_steps.json: it runs no script, and costs no report. */
START_TEST(a_strange_picture_costs_no_report)
{
    program p = program_run_line("train --model=mlp --epochs=1 --limit=64 --threads=1 --run-dir=r");
    ASSERT_EXIT(p, 0);
    program_close(&p);
    test_folder_write("r/trace_steps.json",
                      "{\"traceEvents\":[null,7,{\"name\":\"thread_name\",\"args\":3},"
                      "{\"ph\":\"X\",\"dur\":1,\"name\":\"</script><script>alert(1)</script>\","
                      "\"ts\":0,\"args\":[\"<svg onload=alert(1)>\"]}]}");
    p = program_run_line("report r");
    ASSERT_EXIT(p, 0);
    char *report = test_folder_read("r/report.html");
    ASSERT_SILENT(report, "<script>alert");
    json_decref(browser_data(report));
    free(report);
    char *shown = browser_shows("r/report.html", 1200);
    if (shown != NULL) {
        ASSERT_SILENT(shown, "<svg onload");
        ASSERT_SAYS(shown, "&lt;/script&gt;&lt;script&gt;alert(1)");
        ASSERT_SAYS(shown, "The run and its machine"); /* nothing after it is missing */
    }
    free(shown);
    program_close(&p);
    ck_assert_int_eq(remove("r/trace_steps.json"), 0);
    ck_assert_int_eq(mkdir("r/trace_steps.json", 0777), 0);
    p = program_run_line("report r");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "picture of the trace", "trace_steps.json");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("trace_picture");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, a_span_stands_in_its_place);
    tcase_add_test(core, what_is_no_trace_is_told);
    tcase_add_test(core, a_run_is_drawn);
    tcase_add_test(core, a_strange_picture_costs_no_report);
    return test_folder_close(suite_run(suite));
}
