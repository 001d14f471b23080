/* A trace as a picture: each span has its rectangle, in its rank's lane, at its time. */
#include "app/report/trace_picture.h"
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

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
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
    ck_assert_int_eq(trace_picture_write_page("t.json", "t.html"), STATUS_OK);
    char *page = test_folder_read("t.html");
    ck_assert_int_eq(count(page, "<rect"), 4);
    ck_assert_int_eq(count(page, "class=\"lane\""), 2);
    ASSERT_SAYS(page, "<rect class=\"forward\" x=\"0.000\" y=\"26\" width=\"400.001\"");
    ASSERT_SAYS(page, "<rect class=\"backward\" x=\"400.000\" y=\"26\" width=\"600.000\"");
    ASSERT_SAYS(page, "backward\n0.600 ms\nbytes: 12</title>");
    ASSERT_SAYS(page, "a &lt; b");
    ASSERT_SILENT(page, "a < b");
    ASSERT_SILENT(page, "src=");
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
        ck_assert_int_eq(trace_picture_write_page("t.json", "t.html"), STATUS_INVALID);
    }
    ck_assert_int_eq(trace_picture_write_steps("nothing.json", "t.svg"), STATUS_INVALID);
}
END_TEST

/* A run's page has as many rectangles as its trace has spans; its report has three steps. */
START_TEST(a_run_is_drawn)
{
    program p = program_run_line("train --nproc-per-node=2 --model=mlp --epochs=1 --limit=200 "
                                 "--batch-size=8 --threads=1 --trace=t.json --run-dir=r");
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "as a page: t.html");
    char *trace = test_folder_read("t.json"), *page = test_folder_read("t.html");
    ck_assert_int_eq(count(page, "<rect"), count(trace, "\"ph\":\"X\""));
    char *report = test_folder_read("r/report.html"), *steps = test_folder_read("r/trace.svg");
    ASSERT_SAYS(report, "What every rank did when");
    ASSERT_SAYS(report, "src=\"data:image/svg+xml;base64,");
    ck_assert_int_ge(count(steps, "<title>step"), 6); /* of both ranks */
    ck_assert_int_le(count(steps, "<title>step"), 10);
    free(steps);
    free(trace);
    free(page);
    free(report);
    program_close(&p);
}
END_TEST

/* Whatever lies in a run's folder as trace.svg: it runs no script, and costs no report. */
START_TEST(a_strange_picture_costs_no_report)
{
    program p = program_run_line("train --model=mlp --epochs=1 --limit=64 --threads=1 --run-dir=r");
    ASSERT_EXIT(p, 0);
    program_close(&p);
    test_folder_write("r/trace.svg", "<svg><script>alert(1)</script></svg>");
    p = program_run_line("report r");
    ASSERT_EXIT(p, 0);
    char *report = test_folder_read("r/report.html");
    ASSERT_SILENT(report, "<script>alert");
    free(report);
    program_close(&p);
    ck_assert_int_eq(remove("r/trace.svg"), 0);
    ck_assert_int_eq(mkdir("r/trace.svg", 0777), 0);
    p = program_run_line("report r");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "picture of the trace", "trace.svg");
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
