/* What every benchmark is made of: statistics, measured children, documents. */
#include "app/bench/measure.h"
#include "app/common/version.h"
#include "app/report/report.h"
#include "base/clock.h"
#include "base/file.h"
#include "tests/app/support/browser.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { LONG_MS = 20000, SHORT_MS = 1000 };

START_TEST(an_interval_takes_six_samples)
{
    double five[] = {5, 1, 4, 2, 3}, six[] = {6, 1, 5, 2, 4, 3};
    bench_summary s = bench_stats_summary(five, 5);
    ck_assert(s.n == 5 && s.median == 3 && isnan(s.low) && isnan(s.high) && isnan(s.coverage));
    s = bench_stats_summary(six, 6);
    ck_assert(s.median == 3.5 && s.low == 1 && s.high == 6);
    ck_assert_double_eq_tol(s.coverage, 0.96875, 1e-12);
    ck_assert(isnan(bench_stats_median(six, 0)));
}
END_TEST

/* The tables of order statistics: 9 samples: 2nd to 8th, 96.1 %; 20: 6th to 15th, 95.9 %;
 * 100: 40th to 61st, 96.5 %. */
static const struct {
    int n, low, high;
    double coverage;
} INTERVALS[] = {{8, 1, 8, 0.992}, {9, 2, 8, 0.961}, {20, 6, 15, 0.959}, {100, 40, 61, 0.965}};

START_TEST(intervals_are_those_of_the_tables)
{
    double values[100];
    for (int i = 0; i < INTERVALS[_i].n; i++)
        values[i] = INTERVALS[_i].n - i;
    bench_summary s = bench_stats_summary(values, INTERVALS[_i].n);
    ck_assert_double_eq(s.low, INTERVALS[_i].low);
    ck_assert_double_eq(s.high, INTERVALS[_i].high);
    ck_assert_double_eq_tol(s.coverage, INTERVALS[_i].coverage, 6e-4);
}
END_TEST

START_TEST(outliers_are_counted_and_stay)
{
    double values[] = {10, 11, 12, 13, 14, 15, 40};
    bench_summary s = bench_stats_summary(values, 7);
    ck_assert_int_eq(s.outliers, 1);
    ck_assert(s.median == 13 && s.high == 40);
    ck_assert(bench_stats_is_outlier(&s, 40) && !bench_stats_is_outlier(&s, 10));
    ck_assert_double_eq(bench_stats_quantile(values, 7, 0.25), 11.5);
}
END_TEST

static bench_child place;

/* Runs a shell script as a child. */
static status run_shell(const char *script, int64_t timeout_ms, json_t **out)
{
    static bench_words words;
    words = (bench_words){.n = 0};
    bench_words_add(&words, "sh");
    bench_words_add(&words, "-c");
    bench_words_add(&words, "%s", script);
    if (place.env == NULL)
        ck_assert_msg(bench_child_open(timeout_ms, &place) == STATUS_OK, "%s", status_text());
    return bench_child_run(&place, &words, out);
}

START_TEST(a_benchmark_reads_its_childs_last_json_object)
{
    json_t *object = NULL;
    setenv("MNIST_DDP_EPOCHS", "3", 1);
    setenv("PET_NNODES", "2", 1);
    setenv("RANK", "1", 1);
    setenv("SEEN", "1", 1);
    status st =
        run_shell("echo log; echo '{\"a\": 1}'; echo '{\"a\": 2}'; echo '{broken'; echo end;"
                  "test -z \"$RANK$PET_NNODES$MNIST_DDP_EPOCHS\" &&"
                  "test \"$SEEN\" = 1 && test -n \"$MNIST_DDP_DATA\"",
                  LONG_MS, &object);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(json_integer_value(json_object_get(object, "a")), 2);
    json_decref(object);
    char folder[64];
    strcpy(folder, place.folder);
    ck_assert(file_exists(folder));
    bench_child_close(&place);
    ck_assert(!file_exists(folder));
    bench_child_close(&place);
}
END_TEST

static const struct {
    int64_t timeout_ms;
    const char *script, *facts[3];
} FAILURES[] = {
    {LONG_MS, "echo first >&2; echo 'the reason' >&2; exit 7", {"exit code 7", "the reason"}},
    {LONG_MS, "kill -SEGV $$", {"SIGSEGV"}},
    {LONG_MS, "echo no object", {"JSON"}},
    {LONG_MS, "exec /nowhere/at-all", {"exit code 127"}},
    {SHORT_MS, "echo the last words >&2; sleep 60", {"1 s", "the last words"}},
    {LONG_MS,
     "printf 'a \\033[31mred\\r one\\n' >&2; exit 3",
     {"exit code 3", "a \\x1b[31mred\\x0d one"}},
    {LONG_MS, "yes | head -c 9000000 >&2; echo the end >&2; exit 3", {"exit code 3", "the end"}},
};

START_TEST(failures_say_why)
{
    json_t *object = NULL;
    int64_t start_ns = clock_now_ns();
    status st = run_shell(FAILURES[_i].script, FAILURES[_i].timeout_ms, &object);
    ck_assert(st != STATUS_OK && object == NULL && !bench_child_stopped(&place));
    ASSERT_FACTS_LISTED(status_text(), FAILURES[_i].facts);
    ck_assert(clock_seconds(clock_now_ns() - start_ns) < 10);
    bench_child_close(&place);
}
END_TEST

/* However much it writes: the end is kept, and a line that begins in it. */
START_TEST(the_end_of_a_long_output_is_kept)
{
    json_t *object = NULL;
    char *const argv[] = {"sh", "-c", "yes | head -c 9000000; printf last", NULL};
    char *text = NULL;
    subprocess writer = {.argv = argv, .timeout_ms = LONG_MS};
    test_folder_require(subprocess_run(&writer, &text));
    size_t length = strlen(text);
    ck_assert_uint_eq(length, SUBPROCESS_KEPT_BYTES);
    ck_assert_str_eq(text + length - 6, "y\nlast");
    free(text);
    test_folder_require(run_shell("yes | head -c 9000000; echo '{\"a\": 2}'", LONG_MS, &object));
    ck_assert_int_eq(json_integer_value(json_object_get(object, "a")), 2);
    json_decref(object);
    bench_child_close(&place);
}
END_TEST

START_TEST(a_program_dies_with_who_has_started_it)
{
    char *const argv[] = {"sh", "-c", "echo $$ >child; exec sleep 60", NULL};
    char *text = NULL;
    pid_t starter = fork();
    if (starter == 0)
        _exit(subprocess_run(&(subprocess){.argv = argv, .timeout_ms = 60000}, &text) != STATUS_OK);
    pid_t child = test_folder_await_pid("child");
    kill(starter, SIGKILL);
    waitpid(starter, NULL, 0);
    process_assert_gone(&child, 1, LONG_MS);
}
END_TEST

/* A child in the background of the child would run beside the next measurement. */
START_TEST(nothing_is_left_behind)
{
    json_t *object = NULL;
    char script[256];
    snprintf(script, sizeof script, "sleep 60 & echo $! >%s; echo '{}'", test_folder_path("left"));
    ck_assert(run_shell(script, LONG_MS, &object) == STATUS_OK);
    json_decref(object);
    char *text = test_folder_read("left");
    char path[64], state[512] = "Z";
    snprintf(path, sizeof path, "/proc/%d/stat", atoi(text));
    free(text);
    for (int i = 0; i < 100; i++) { /* SIGKILL takes its time */
        FILE *file = fopen(path, "r");
        if (file == NULL)
            break;
        state[fread(state, 1, sizeof state - 1, file)] = '\0';
        fclose(file);
        if (strstr(state, ") Z") != NULL)
            break;
        clock_sleep_ms(20);
    }
    ck_assert_msg(!file_exists(path) || strstr(state, ") Z") != NULL, "%s", state);
    bench_child_close(&place);
}
END_TEST

START_TEST(a_stop_reaches_the_child)
{
    json_t *object = NULL;
    pid_t self = getpid(), other = fork();
    if (other == 0) {
        clock_sleep_ms(300);
        kill(self, SIGINT);
        _exit(0);
    }
    int64_t start_ns = clock_now_ns();
    status st = run_shell("trap 'exit 75' TERM; sleep 60 & wait", LONG_MS, &object);
    ck_assert(st == STATUS_TIMEOUT && bench_child_stopped(&place));
    ck_assert(clock_seconds(clock_now_ns() - start_ns) < 8);
    ck_assert(run_shell("echo '{}'", LONG_MS, &object) == STATUS_TIMEOUT);
    waitpid(other, NULL, 0);
    bench_child_close(&place);
}
END_TEST

/* Whatever this process has blocked for itself. */
START_TEST(a_program_starts_with_no_signal_blocked)
{
    json_t *object = NULL;
    char *said = NULL;
    char *const argv[] = {"grep", "SigBlk", "/proc/self/status", NULL};
    ck_assert(run_shell("echo '{}'", LONG_MS, &object) == STATUS_OK);
    json_decref(object);
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    ck_assert_int_eq(sigismember(&blocked, SIGTERM), 1);
    test_folder_require(subprocess_run(&(subprocess){.argv = argv, .timeout_ms = LONG_MS}, &said));
    ck_assert_str_eq(said, "SigBlk:\t0000000000000000\n");
    free(said);
    bench_child_close(&place);
}
END_TEST

START_TEST(a_line_is_read_by_the_contract)
{
    bench_sample s;
    json_t *line = json_loads(
        "{\"train_s\": [3.0, 1.0, 1.0], \"images_per_epoch\": 1000, \"steps\": 30, \"phases\": "
        "{\"data\": 0.3, \"forward\": 2.7, \"reduce\": 2.0}, \"comm_total\": 0.6, \"bytes\": "
        "{\"sent\": 10, \"received_busiest\": 30}, \"peak_mib\": [1.5, 2], \"test_acc\": 0.9}",
        0, NULL);
    ck_assert(bench_sample_read(line, 1, 100, &s) == STATUS_OK);
    ck_assert_double_eq_tol(s.images_per_s, 1000, 1e-9);
    ck_assert_double_eq_tol(s.step_s, 0.1, 1e-12);
    ck_assert_double_eq_tol(s.whole_step_s, 5.0 / 30, 1e-12);
    ck_assert_double_eq_tol(s.phase_s[MOMENT_FORWARD], 0.09, 1e-12);
    ck_assert_double_eq_tol(s.comm_total_s, 0.02, 1e-12);
    ck_assert(isnan(s.phase_s[MOMENT_GATHER]) && isnan(s.comm_exposed_s) && isnan(s.last_loss));
    ck_assert(isnan(s.sent_busiest_bytes) && s.received_busiest_bytes == 30);
    ck_assert(s.peak_mib_count == 2 && s.peak_mib[1] == 2);
    ck_assert(bench_sample_read(line, 3, 100, &s) == STATUS_PEER);
    json_decref(line);
    line = json_object();
    ck_assert(bench_sample_read(line, 0, 100, &s) == STATUS_PEER);
    json_decref(line);
}
END_TEST

START_TEST(a_document_is_whole)
{
    static const char *const columns[] = {"name", "n", NULL};
    char *argv[] = {"mnist_ddp", "bench", "x\xff"}, *text = NULL;
    json_t *document = report_create(&(report_head){"benchmark", "sample", "A sample", 3, argv});
    json_t *table = report_table(document, "Figures", columns);
    ck_assert_str_eq(json_string_value(json_object_get(document, "version")), MNIST_DDP_VERSION);
    ck_assert_ptr_nonnull(json_object_get(json_object_get(document, "machine"), "processor"));
    table_row(table);
    table_cell(table, "one");
    table_cell(table, "%d", 1);
    table_note(table, "because");
    table_row(table);
    table_cell(table, "a longer one");
    table_number(table, (double)NAN);
    report_say(document, REPORT_LIMITS, "%d limit", 1);
    json_t *series = report_series(report_plot(document, "sample-speed", "Speed"), "ours");
    json_array_append_new(json_object_get(series, "points"), json_pack("[i, f]", 2, 0.5));
    ck_assert(json_is_null(report_number((double)NAN, 3)));
    ck_assert_msg(report_write(document, test_folder_path("out/deep"), "sample.json") == STATUS_OK,
                  "%s", status_text());
    json_decref(document);
    text = test_folder_read("out/deep/sample.json");
    document = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(document);
    table = json_array_get(json_object_get(json_object_get(document, "report"), "tables"), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(table, "rows")), 2);
    json_t *row = json_array_get(json_object_get(table, "rows"), 1);
    ck_assert_uint_eq(json_array_size(json_object_get(row, "cells")), 2);
    const json_t *plot =
        json_array_get(json_object_get(json_object_get(document, "report"), "plots"), 0);
    series = json_array_get(json_object_get(plot, "series"), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(series, "points")), 1);
    ASSERT_FACTS(text, "mnist_ddp bench x?");
    free(text);
    FILE *out = fopen(test_folder_path("printed"), "w");
    report_print(document, out);
    fclose(out);
    text = test_folder_read("printed");
    ASSERT_FACTS(text, "one", "1");
    ASSERT_FACTS(strstr(text, "one"), "because"); /* below its row */
    free(text);
    json_decref(document);
}
END_TEST

/* A plot that an earlier version drew with gnuplot: nothing of what lies in the folder is shown. */
START_TEST(a_foreign_picture_is_not_taken)
{
    static const char svg[] = "<svg><g id=\"gnuplot_canvas\"><defs></defs>"
                              "<script>alert(1)</script></g></svg>";
    json_t *document = report_create(&(report_head){"benchmark", "sample", "A sample", 0, NULL});
    json_object_del(report_plot(document, "theirs", "A plot"), "series");
    test_folder_require(report_write(document, test_folder_path("foreign"), "sample.json"));
    json_decref(document);
    test_folder_require(
        file_replace(test_folder_path("foreign/theirs.svg"), &(file_part){svg, sizeof svg - 1}, 1));
    test_folder_require(documents_page_write(test_folder_path("foreign"), "Theirs",
                                             (const char *const[]){"sample.json", NULL}));
    char *text = test_folder_read("foreign/report.html");
    json_decref(browser_data(text));
    ck_assert_ptr_null(strstr(text, "alert"));
    free(text);
    char *shown = browser_shows("foreign/report.html", 1400);
    if (shown != NULL)
        ASSERT_SAYS(shown, "no data");
    free(shown);
}
END_TEST

/* Heads break between words, numbers stand to the right, no line is over 80 columns or ends with
 * blanks. */
START_TEST(a_table_fits_a_terminal)
{
    static const char *const columns[] = {"mode x devices", "n", "step ms, of all runs",
                                          "95 % range", NULL};
    json_t *table = table_create("A title", columns);
    table_row(table);
    table_cell(table, "dp x 2");
    table_cell(table, "10");
    table_number(table, 2.5);
    table_interval(table, 1, 22.25);
    table_note(table, "each of these words takes ten columns, and the line is to break before "
                      "the eightieth column, at 5 % of it");
    table_row(table);
    table_cell(table, "\u00b5");
    table_cell(table, "9");
    table_number(table, (double)NAN);
    table_interval(table, (double)NAN, (double)NAN);
    FILE *out = fopen(test_folder_path("printed"), "w");
    table_print(table, out);
    fclose(out);
    char *text = test_folder_read("printed");
    ck_assert_str_eq(
        text, "\nA title\n\n"
              "             step\n"
              "              ms,\n"
              "               of\n"
              "mode x        all\n"
              "devices   n  runs    95 % range\n"
              "dp x 2   10  2.50  1.00 to 22.2\n"
              "    each of these words takes ten columns, and the line is to break before the\n"
              "    eightieth column, at 5 % of it\n"
              "\u00b5         9         n too small\n");
    free(text);
    json_decref(table);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_pieces");
    test_folder_open();
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_test(core, an_interval_takes_six_samples);
    tcase_add_loop_test(core, intervals_are_those_of_the_tables, 0, 4);
    tcase_add_test(core, outliers_are_counted_and_stay);
    tcase_add_test(core, a_benchmark_reads_its_childs_last_json_object);
    tcase_add_loop_test(core, failures_say_why, 0, 7);
    tcase_add_test(core, the_end_of_a_long_output_is_kept);
    tcase_add_test(core, a_program_dies_with_who_has_started_it);
    tcase_add_test(core, nothing_is_left_behind);
    tcase_add_test(core, a_stop_reaches_the_child);
    tcase_add_test(core, a_program_starts_with_no_signal_blocked);
    tcase_add_test(core, a_line_is_read_by_the_contract);
    tcase_add_test(core, a_document_is_whole);
    tcase_add_test(core, a_foreign_picture_is_not_taken);
    tcase_add_test(core, a_table_fits_a_terminal);
    return test_folder_close(suite_run(suite));
}
