/* report.html of a run, and of several: what stands in it, and that a browser draws it. */
#include "app/report/run_page.h"
#include "tests/app/support/browser.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/no_memory.h"

#include "base/json_text.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { CHARTS = 4, PICTURES = 24 + 32 };

#define RUN \
    "train", "--model", "mlp", TRAINING_SGD, "--limit", "192", "--batch-size", "16", "--threads", \
        "1", "--epochs", "2", "--log-interval", "1", "--quiet", "--no-save-model"

static void train(int exit_code, const char *folder, const char *more)
{
    program p = program_run_with(NULL, WORDS(RUN, "--run-dir", folder, more));
    ASSERT_EXIT(p, exit_code);
    program_close(&p);
}

/* What the page shows, in a browser; NULL if there is none. *data: what it is drawn from. */
static char *read_both(const char *path, json_t **data)
{
    char *page = test_folder_read(path);
    ASSERT_SILENT(page, "nan");
    ASSERT_SILENT(page, "\x1b");
    ASSERT_SAYS(page, "<noscript><pre>");
    *data = browser_data(page);
    free(page);
    char *shown = browser_shows(path, 1400);
    if (shown != NULL)
        ASSERT_SILENT(shown, "NaN");
    return shown;
}

static char *read_page(const char *path)
{
    json_t *data = NULL;
    char *shown = read_both(path, &data);
    json_decref(data);
    return shown;
}

static const json_t *run_of(const json_t *data, size_t run)
{
    return json_array_get(json_object_get(data, "runs"), run);
}

/* The value of a run's setting. */
static double setting_of(const json_t *data, size_t run, const char *name)
{
    const json_t *settings =
        json_object_get(json_object_get(run_of(data, run), "config"), "settings");
    return json_number_value(json_object_get(json_object_get(settings, name), "value"));
}

static size_t points_of(const json_t *data, const char *curve)
{
    const json_t *curves = json_object_get(run_of(data, 0), "curves");
    return json_array_size(json_object_get(json_object_get(curves, curve), "points"));
}

START_TEST(a_run_ends_with_its_page)
{
    json_t *data = NULL;
    train(0, "one", "--lr=0.25");
    char *page = read_both("one/report.html", &data);
    ck_assert_double_eq(setting_of(data, 0, "lr"), 0.25);
    ck_assert_uint_eq(points_of(data, "loss"), 24);
    ck_assert_uint_eq(points_of(data, "test_loss"), 2);
    ck_assert_uint_eq(points_of(data, "test_acc"), 2);
    ck_assert_uint_eq(points_of(data, "epoch_images_per_s"), 2);
    ck_assert(json_is_true(json_object_get(run_of(data, 0), "log")));
    json_decref(data);
    if (page == NULL)
        return;
    ck_assert_int_eq(facts_count(page, "<svg class=\"chart\""), CHARTS);
    ASSERT_SILENT(page, "no data");
    ck_assert_int_eq(facts_count(page, "<circle"),
                     3 * 2); /* two epochs: loss, accuracy, images/s */
    ASSERT_SAYS(page, "<td>lr</td><td>0.25</td>");
    ASSERT_SAYS(page, "<td>processor</td>");
    ASSERT_SAYS(page, "<a href=\"train.log\">");
    ASSERT_SAYS(page, "backward");
    free(page);
}
END_TEST

/* Names and files of others: no control character reaches a terminal or the page, and no count is
 * taken that a sum cannot hold. */
START_TEST(a_hostile_folder_is_shown_harmlessly)
{
    static const char folder[] = "a\x1b]0;x\a<b";
    json_t *document = NULL;
    program p = program_run_with(
        NULL, WORDS(RUN, "--run-dir", folder, "--save-model", "--epochs", "2", "--lr", "0"));
    ASSERT_EXIT(p, 0);
    ASSERT_SILENT(p.out, "\x1b");
    program_close(&p);
    char *log = test_folder_read("a\x1b]0;x\a<b/train.log");
    ASSERT_SAYS(log, "report: a\\x1b]0;x\\x07<b/report.html");
    ASSERT_SAYS(log, "a\\x1b]0;x\\x07<b/checkpoints/best"); /* which was not the last one */
    ASSERT_SILENT(log, "\x1b");
    ASSERT_SAYS(log, "results: a\\x1b]0;x\\x07<b");
    free(log);
    test_folder_require(json_text_read("a\x1b]0;x\a<b/eval.json", 1 << 20, &document));
    for (size_t i = 0; i < 2; i++)
        json_array_set_new(json_array_get(json_object_get(document, "confusion"), 0), i,
                           json_integer(INT64_MAX));
    ck_assert_int_eq(json_dump_file(document, "a\x1b]0;x\a<b/eval.json", 0), 0);
    json_decref(document);
    p = program_mnist("report", folder, NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "a\\x1b]0;x\\x07<b");
    ASSERT_SILENT(p.out, "\x1b");
    program_close(&p);
    char *page = read_page("a\x1b]0;x\a<b/report.html");
    if (page == NULL)
        return;
    ASSERT_SILENT(page, "\x1b");
    ASSERT_SAYS(page, "a\uFFFD]0;x\uFFFD&lt;b");
    ASSERT_SILENT(page, "9223372036854775807");
    free(page);
}
END_TEST

/* Its numbers are those of eval.json. */
START_TEST(the_page_shows_what_was_learned)
{
    json_t *document = NULL, *data = NULL;
    char fact[64];
    train(0, "one", "--lr=0.25");
    char *page = read_both("one/report.html", &data);
    test_folder_require(json_text_read("one/eval.json", 1 << 20, &document));
    ck_assert(json_equal(json_object_get(run_of(data, 0), "eval"), document));
    json_decref(data);
    if (page == NULL)
        return;
    const json_t *rows = json_object_get(document, "confusion"), *row, *cell;
    size_t a, b;
    int cells = 0;
    json_array_foreach(rows, a, row) json_array_foreach(row, b, cell)
    {
        if (json_integer_value(cell) == 0)
            continue;
        if (a == b)
            snprintf(fact, sizeof fact, "\"%zu recognised: %lld\"", a,
                     (long long)json_integer_value(cell));
        else
            snprintf(fact, sizeof fact, "\"%zu taken for %zu: %lld\"", a, b,
                     (long long)json_integer_value(cell));
        ASSERT_SAYS(page, fact);
        cells++;
    }
    ck_assert_int_eq(facts_count(page, "class=\"hit\"") + facts_count(page, "class=\"miss\""),
                     cells);
    ck_assert_int_eq(facts_count(page, "<canvas"), PICTURES);
    snprintf(fact, sizeof fact, "%lld of 250 test images",
             (long long)json_integer_value(json_object_get(document, "correct")));
    ASSERT_SAYS(page, fact);
    json_decref(document);
    free(page);
}
END_TEST

START_TEST(a_run_without_it_says_how_to_get_it)
{
    program p = program_run_with(NULL, WORDS(RUN, "--save-model", "--run-dir", "one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    test_folder_remove("one/eval.json");
    p = program_run_with(NULL, WORDS("report", "./one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    json_t *data = NULL;
    char *page = read_both("one/report.html", &data);
    ck_assert_str_eq(json_string_value(json_object_get(run_of(data, 0), "folder")), "./one");
    ck_assert(json_is_null(json_object_get(run_of(data, 0), "eval")));
    json_decref(data);
    if (page != NULL) {
        ASSERT_SAYS(page, "mnist_ddp eval --checkpoint ./one --out ./one");
        ASSERT_SILENT(page, "Confusion matrix");
    }
    free(page);
    p = program_run_with(NULL, WORDS("eval", "--checkpoint", "one", "--out", "one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    p = program_run_with(NULL, WORDS("report", "one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    page = read_both("one/report.html", &data);
    ck_assert(json_is_object(json_object_get(run_of(data, 0), "eval")));
    json_decref(data);
    if (page != NULL)
        ASSERT_SAYS(page, "Confusion matrix");
    free(page);
}
END_TEST

/* JSON, but no test's: nothing of it is shown, and nothing breaks. */
START_TEST(an_odd_file_is_shown_as_far_as_it_goes)
{
    train(0, "one", "--lr=0.25");
    test_folder_write("one/eval.json", "{\"confusion\":[[1,null],\"x\"],\"recall\":[null,7],"
                                       "\"mistakes\":[{\"pixels\":\"0g\"},3],"
                                       "\"filters\":{\"side\":28,\"pixels\":[\"00\",1]}}");
    program p = program_run_with(NULL, WORDS("report", "one"));
    ASSERT_EXIT(p, 0);
    char *page = read_page("one/report.html");
    if (page == NULL)
        return;
    ASSERT_SAYS(page, "Confusion matrix");
    ck_assert_int_eq(facts_count(page, "<canvas"), 0);
    free(page);
    program_close(&p);
}
END_TEST

START_TEST(runs_are_laid_over_each_other)
{
    train(0, "one", "--lr=0.25");
    train(0, "a<b>&\"", "--lr=0.125");
    program p = program_run_with(NULL, WORDS("report", "one", "a<b>&\""));
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.out, "report.html\n");
    json_t *data = NULL;
    char *page = read_both("report.html", &data);
    ck_assert_double_eq(setting_of(data, 0, "lr"), 0.25);
    ck_assert_double_eq(setting_of(data, 1, "lr"), 0.125);
    ck_assert_str_eq(json_string_value(json_object_get(run_of(data, 1), "name")), "a<b>&\"");
    json_decref(data);
    if (page == NULL)
        return;
    ck_assert_int_eq(facts_count(page, "<svg class=\"chart\""), CHARTS);
    ASSERT_SAYS(page, "a&lt;b&gt;&amp;\"");
    ASSERT_SILENT(page, "a<b>");
    ASSERT_SAYS(page, "<tr class=\"differs\"><td>lr</td><td>0.25</td><td>0.125</td>");
    program_close(&p);
    free(page);
}
END_TEST

/* What they share is folded away, and where their files are is no difference. */
START_TEST(what_differs_stands_first)
{
    train(0, "one", "--lr=0.25");
    train(0, "two", "--lr=0.125");
    program p = program_run_with(NULL, WORDS("report", "one", "two"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *page = read_page("report.html");
    if (page == NULL)
        return;
    ASSERT_SAYS(page, "<p>They differ in: <b>lr</b> 0.25 | 0.125</p>");
    const char *folded = strstr(page, "<summary>"), *seed = strstr(page, "<td>seed</td>");
    ck_assert(folded != NULL && folded > strstr(page, "<td>lr</td>") && folded < seed);
    ASSERT_SAYS(page, "dashed line: training");
    free(page);
}
END_TEST

#define STARTS \
    "\"settings\":{},\"starts\":[{\"date\":\"A\",\"step\":0},{\"date\":\"B\",\"step\":49}]}"

/* Its result is that of the last session, its metrics those of all. */
START_TEST(a_resumed_run_says_which_steps_are_timed)
{
    ck_assert_int_eq(file_make_folders("one"), STATUS_OK);
    test_folder_write("one/config.json", "{\"format\":1,\"date\":\"B\"," STARTS);
    test_folder_write("one/metrics.jsonl",
                      "{\"event\":\"step\",\"step\":9,\"images_per_s\":9000}\n"
                      "{\"event\":\"epoch\",\"step\":49,\"images_per_s\":800}\n"
                      "{\"event\":\"epoch\",\"step\":98,\"images_per_s\":700}\n");
    static const char *const dates[] = {"A", "B"};
    static const char *const facts[][2] = {
        {"rank 0, until the resume at step 49</h2>", "<b>98</b>last logged step"},
        {"rank 0, since the resume at step 49</h2>", "<b>98</b>steps"}};
    char result[256];
    snprintf(result, sizeof result,
             "{\"date\":\"%s\",\"images_per_s\":700,\"world\":2,\"replicas\":1,"
             "\"bind_note\":\"cores: 1\",\"phases\":{\"forward\":1,\"waiting\":3}}",
             dates[_i]);
    test_folder_write("one/result.json", result);
    program p = program_run_with(NULL, WORDS("report", "one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *page = read_page("one/report.html");
    if (page == NULL)
        return;
    ASSERT_SAYS(page, facts[_i][0]);
    ASSERT_SAYS(page, facts[_i][1]);
    ASSERT_SAYS(page, "<b>800</b>images/s, best epoch");
    ASSERT_SAYS(page, "75 % of the time rank 0 waited for rank 1");
    ASSERT_SAYS(page, "<b>waiting</b>: for a rank or replica");
    ASSERT_SAYS(page, "cores: 1");
    free(page);
}
END_TEST

/* A run that was killed has no result.json, and may have a torn line. */
START_TEST(an_unfinished_run_has_a_page)
{
    train(128 + SIGKILL, "one", "--inject=kill:rank=0,step=20");
    test_folder_write("one/metrics.jsonl",
                      "{\"event\":\"step\",\"step\":1,\"epoch\":1,\"time_s\":1,\"loss\":null,"
                      "\"lr\":1,\"images_per_s\":5}\n{\"event\":\"st");
    program p = program_run_with(NULL, WORDS("report", "one/"));
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.out, "one//report.html\n");
    char *page = read_page("one/report.html");
    if (page == NULL)
        return;
    ck_assert_int_eq(facts_count(page, "<svg"), 2); /* learning rate and images per second */
    ck_assert_int_eq(facts_count(page, "no data"), 2);
    ASSERT_SAYS(page, "<h1>one</h1>");
    ASSERT_SAYS(page, "<b>1</b>last logged step");
    ASSERT_SAYS(page, "Where the steps' time went");
    program_close(&p);
    free(page);
}
END_TEST

static const struct {
    const char *words[11];
    int exit_code;
    const char *fact;
} REFUSED[] = {
    {{"report"}, 74, "RUN"},
    {{"report", "none"}, 74, "none"},
    {{"report", "."}, 74, "config.json"},
    {{"report", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, 64, "8"},
};

START_TEST(what_is_no_run_is_refused)
{
    program p = program_run_with(NULL, REFUSED[_i].words);
    ASSERT_EXIT(p, REFUSED[_i].exit_code);
    ASSERT_FACTS(p.err, "error", REFUSED[_i].fact);
    ck_assert_str_eq(p.out, "");
    ck_assert(!file_exists("report.html"));
    program_close(&p);
}
END_TEST

/* Root looks everywhere with the two capabilities. */
START_TEST(a_closed_folder_is_told_as_such)
{
    ck_assert_int_eq(file_make_folders("closed"), STATUS_OK);
    ck_assert_int_eq(chmod("closed", 0), 0);
    (void)prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
    (void)prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
    program p = program_run_with(NULL, WORDS("report", "closed"));
    ck_assert_int_eq(chmod("closed", 0755), 0);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "closed/config.json", "Permission denied");
    ASSERT_SILENT(p.err, "not the folder of a run");
    program_close(&p);
}
END_TEST

/* What it sees: how many charts are drawn, whether the page is wider than its window, how many
 * pictures are decoded, whether the confusion matrix is cut off, how many pictures can be saved as
 * files of their own, what a point says, and whether the page is light. */
static const char PROBE[] =
    "const saved = Array.from(document.querySelectorAll('figure svg')).map(svgText).filter(text => "
    "!text.includes('var(') && new DOMParser().parseFromString(text, 'image/svg+xml')"
    ".documentElement.tagName === 'svg').length;"
    "const dot = document.querySelector('figure svg circle').getBoundingClientRect();"
    "document.querySelector('figure svg').dispatchEvent(new PointerEvent('pointermove', "
    "{clientX: dot.x + 3, clientY: dot.y + 3}));"
    "const tip = document.querySelector('.tip').textContent;"
    "document.querySelector('.tip').remove();"
    "parent.postMessage('charts:' + "
    "Array.from(document.querySelectorAll('figure svg')).filter(s => { "
    "const b = s.getBoundingClientRect(); return b.width > 200 && b.height > 100; }).length + "
    "(document.documentElement.scrollWidth <= document.documentElement.clientWidth ? ' fits' : "
    "' wide') + "
    "' pictures:' + Array.from(document.querySelectorAll('canvas')).filter(i => i.width == 28 && "
    "new Set(i.getContext('2d').getImageData(0, 0, 28, 28).data).size > 4).length + "
    "(document.querySelector('.confusion').scrollWidth <= "
    "document.querySelector('.confusion').parentNode.clientWidth ? ' whole' : ' cut') + "
    "` saved:${saved} tip:${tip.startsWith('test, step ')} width:${innerWidth} "
    "${getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)' ? 'light' : "
    "'dark'}`, '*');";

START_TEST(a_page_fits_every_browser_window)
{
    static const char *const windows[] = {"400 light", "1400 light", "400 dark", "1400 dark"};
    char want[160];
    train(0, "one", "--lr=0.25");
    program p = browser_windows((const char *const[]){"one/report.html"}, 1, PROBE);
    for (int i = 0; i < BROWSER_WINDOWS; i++) {
        snprintf(want, sizeof want,
                 "seen: charts:4 fits pictures:56 whole saved:5 tip:true width:%s\n", windows[i]);
        ck_assert_msg(strstr(p.out, want) != NULL, "%.900s", strstr(p.out, "seen: "));
    }
    program_close(&p);
}
END_TEST

/* Of one run, of two, and a trace; the other one has long names, with markup. */
START_TEST(each_page_fits_its_window)
{
    char name[224], page[256], trace[256];
    memset(name, 'W', sizeof name);
    memcpy(name, "<b>", 3);
    name[200] = '\0';
    snprintf(page, sizeof page, "%s/report.html", name);
    snprintf(trace, sizeof trace, "--trace=%s.json", name);
    train(0, "one", "--trace=t.json");
    train(0, name, trace);
    program p = program_run_with(NULL, WORDS("report", "one", name));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    browser_check_looks((const char *const[]){"one/report.html", page, "report.html", "t.html"}, 4);
}
END_TEST

/* A run of an older program, without what a newer one tells. */
START_TEST(every_runs_facts_have_a_row)
{
    ck_assert_int_eq(file_make_folders("one"), STATUS_OK);
    ck_assert_int_eq(file_make_folders("two"), STATUS_OK);
    test_folder_write("one/config.json",
                      "{\"format\": 1, \"run\": {\"world\": 1, \"old\": 5},"
                      " \"settings\": {\"lr\": {\"value\": 1, \"origin\": \"flag\"}}}");
    test_folder_write("two/config.json",
                      "{\"format\": 1, \"run\": {\"world\": 1, \"gpu\": \"H200\"},"
                      " \"settings\": {\"lr\": {\"value\": 1, \"origin\": \"flag\"},"
                      " \"fresh\": {\"value\": 7, \"origin\": \"flag\"},"
                      " \"usual\": {\"value\": 8, \"origin\": \"default\"}}}");
    program p = program_run_with(NULL, WORDS("report", "one", "two"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *page = read_page("report.html");
    if (page == NULL)
        return;
    ASSERT_SAYS(page, "<tr><td>world</td><td>1</td><td>1</td></tr>");
    ASSERT_SAYS(page, "<tr class=\"differs\"><td>old</td><td>5</td><td></td></tr>");
    ASSERT_SAYS(page, "<tr class=\"differs\"><td>gpu</td><td></td><td>H200</td></tr>");
    ASSERT_SAYS(page, "<tr class=\"differs\"><td>fresh</td><td></td><td>7</td></tr>");
    ASSERT_SAYS(page, "<tr class=\"differs\"><td>usual</td><td></td><td>8</td></tr>");
    ck_assert_int_eq(facts_count(page, "<td>lr</td>"), 1);
    free(page);
}
END_TEST

/* Whatever a config.json holds: no script of it runs, no tag is made, and the page is whole. */
START_TEST(a_hostile_config_is_text)
{
    ck_assert_int_eq(file_make_folders("one"), STATUS_OK);
    test_folder_write(
        "one/config.json",
        "{\"format\": 1, \"date\": \"</script><script>alert(1)</script>\", \"command\": [7, "
        "\"<img onerror=alert(1)>\"], \"starts\": [null, {\"step\": \"<b>\"}], \"run\": "
        "{\"model\": \"<!--<script>\", \"world\": [], \"gpu\": {}, \"__proto__\": 3}, "
        "\"settings\": {\"<svg onload=alert(1)>\": {\"value\": \"]]>\\u001b[2J\\u007f\"}, "
        "\"lr\": null, \"seed\": [{}], \"constructor\": {\"value\": 1e308}}}");
    test_folder_write("one/result.json", "{\"phases\":{\"forward\":\"1\",\"waiting\":2},"
                                         "\"world\":\"2\",\"bind_note\":[]}");
    program p = program_run_with(NULL, WORDS("report", "one"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *page = read_page("one/report.html");
    if (page == NULL)
        return;
    ASSERT_SILENT(page, "<img");
    ASSERT_SILENT(page, "<svg onload");
    ASSERT_SILENT(page, "<!--<script");
    ASSERT_SAYS(page, "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    ASSERT_SAYS(page, "&lt;svg onload=alert(1)&gt;");
    ASSERT_SAYS(page, "]]&gt;\uFFFD[2J\uFFFD");
    ASSERT_SAYS(page, "The run and its machine");
    free(page);
}
END_TEST

/* Not even lines that are whole are taken for torn ones. */
START_TEST(want_of_memory_is_no_end_of_the_lines)
{
    run_data run = {0};
    ck_assert_int_eq(file_make_folders("one"), STATUS_OK);
    test_folder_write("one/metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
    no_memory_begin();
    ck_assert_int_eq(run_data_read("one", &run), STATUS_NO_MEMORY);
    no_memory_end();
    test_folder_require(run_data_read("one", &run));
    ck_assert_uint_eq(json_array_size(run.lines), 2);
    run_data_close(&run);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("report");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, a_run_ends_with_its_page);
    tcase_add_test(runs, a_hostile_folder_is_shown_harmlessly);
    tcase_add_test(runs, the_page_shows_what_was_learned);
    tcase_add_test(runs, a_run_without_it_says_how_to_get_it);
    tcase_add_test(runs, an_odd_file_is_shown_as_far_as_it_goes);
    tcase_add_test(runs, runs_are_laid_over_each_other);
    tcase_add_test(runs, what_differs_stands_first);
    tcase_add_loop_test(runs, a_resumed_run_says_which_steps_are_timed, 0, 2);
    tcase_add_test(runs, want_of_memory_is_no_end_of_the_lines);
    tcase_add_test(runs, every_runs_facts_have_a_row);
    tcase_add_test(runs, a_hostile_config_is_text);
    tcase_add_test(runs, an_unfinished_run_has_a_page);
    tcase_add_loop_test(runs, what_is_no_run_is_refused, 0, sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_test(runs, a_closed_folder_is_told_as_such);
    TCase *browser = suite_case(suite, "browser", 2 * BROWSER_S);
    tcase_add_checked_fixture(browser, test_folder_clean, NULL);
    const char *missing = browser_find() ? NULL : "Chromium is missing";
    suite_add_all(browser, a_page_fits_every_browser_window, 1, missing);
    suite_add_all(browser, each_page_fits_its_window, 1, missing);
    return test_folder_close(suite_run(suite));
}
