/* The log of a training, where a person reads it: few lines, and colours on a terminal. And how a
 * status line is fitted; tests/app/test_status_line.c looks at it on terminals. */
#include "app/common/terminal.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/screen.h"

#include "base/clock.h"

#define TRAINING \
    program_mnist_ddp(), "train", "--model=mlp", "--threads=1", "--batch-size=12", "--run-dir=run"

static program run_with(const char *setting, const char *flag)
{
    return program_run_with(WORDS("env", setting),
                            WORDS("train", "--model=mlp", "--threads=1", "--batch-size=12",
                                  "--run-dir=run", "--epochs=2", flag));
}

static int count_steps(const char *text)
{
    int n = 0;
    while ((text = strstr(text, " step ")) != NULL) {
        text++;
        n++;
    }
    return n;
}

/* 100 steps in far less than two seconds each, but for one: after it the pace is known. */
START_TEST(a_log_has_a_line_every_two_seconds)
{
    int64_t start_ns = clock_now_ns();
    program p = run_with("A=B", "--inject=delay:rank=0,step=30,ms=2100");
    int most = 1 + (int)(clock_seconds(clock_now_ns() - start_ns) / 2);
    ASSERT_EXIT(p, 0);
    int lines = count_steps(p.out);
    ck_assert_msg(lines >= 2 && lines <= most, "%d lines, want %d", lines, most);
    ASSERT_SAYS(p.out, "epoch 1/2 step 1/50 loss ");
    const char *first = strstr(p.out, "step 1/50 "); /* of one cold step no pace is told */
    ck_assert(memmem(first, strcspn(first, "\n"), "images/s", 8) == NULL);
    ASSERT_FACTS(p.out, "step ", "/50 loss ", "images/s", "passed", "left");
    ASSERT_FACTS(p.out, "finished", "2 epochs", " s");
    program_close(&p);
    test_folder_remove("run");
    p = run_with("A=B", "--log-interval=20");
    ck_assert_int_eq(count_steps(p.out), 6);
    ASSERT_SAYS(p.out, "epoch 2/2 step 21/50 loss ");
    program_close(&p);
}
END_TEST

static const struct {
    const char *setting;
    bool terminal, coloured;
} COLOURS[] = {
    {"A=B", true, true},         {"A=B", false, false},
    {"NO_COLOR=1", true, false}, {"CLICOLOR_FORCE=1", false, true},
    {"TERM=dumb", true, false},  {"CLICOLOR_FORCE=0", false, false},
};
enum { N_COLOURS = sizeof COLOURS / sizeof COLOURS[0] };

#define GREEN "\033[32m" /* the accuracy, which a narrow terminal may have on its next line */
#define YELLOW "\033[33mwarning:\033[0m injected"

START_TEST(colours_are_asked_for)
{
    const char *const words[] = {"env",         COLOURS[_i].setting,
                                 TRAINING,      "--epochs=2",
                                 "--limit=100", "--inject=delay:rank=0,step=5,ms=1",
                                 NULL};
    screen s = {.from = -1};
    program p = {0};
    if (COLOURS[_i].terminal) {
        screen_start(80, true, words, &s);
        screen_finish(&s);
        p = s.program;
    } else {
        p = program_start(words);
        program_wait(&p, RUN_S);
    }
    ASSERT_EXIT(p, 0);
    const char *out = COLOURS[_i].terminal ? s.bytes : p.out;
    const char *err = COLOURS[_i].terminal ? s.bytes : p.err;
    ck_assert_msg((strstr(out, GREEN) != NULL) == COLOURS[_i].coloured, "%s", out);
    ck_assert_msg((strstr(err, YELLOW) != NULL) == COLOURS[_i].coloured, "%s", err);
    bool is_dumb = strcmp(COLOURS[_i].setting, "TERM=dumb") == 0;
    if (is_dumb)
        ck_assert_ptr_null(strchr(s.bytes, '\033'));
    if (COLOURS[_i].terminal && !is_dumb) { /* a status line, of which nothing is left */
        ASSERT_SAYS(s.bytes, "\repoch 1/2 ");
        ck_assert_ptr_null(strstr(s.lines, "epoch 1/2 "));
    }
    if (COLOURS[_i].terminal)
        screen_close(&s);
    else
        program_close(&p);
}
END_TEST

/* The parts of the highest priority stay; nothing is wider than it may be. */
START_TEST(few_columns_keep_what_matters)
{
    status_parts parts = {.done = 0.5, .bar_priority = 2};
    char line[256];
    status_parts_add(&parts, 4, "%s", "first");
    status_parts_add(&parts, 1, "%s", "rarely");
    status_parts_add(&parts, 3, "%d/%d", 12, 24);
    for (int columns = 0; columns < 200; columns++) {
        status_parts_fit(&parts, columns, line);
        ck_assert_uint_le(strlen(line), (size_t)columns);
    }
    status_parts_fit(&parts, 80, line);
    ck_assert_str_eq(line, "first [===============               ] rarely 12/24");
    status_parts_fit(&parts, 29, line);
    ck_assert_str_eq(line, "first [====    ] rarely 12/24");
    status_parts_fit(&parts, 28, line);
    ck_assert_str_eq(line, "first [=======       ] 12/24");
    status_parts_fit(&parts, 21, line);
    ck_assert_str_eq(line, "first 12/24");
    status_parts_fit(&parts, 10, line);
    ck_assert_str_eq(line, "first");
    status_parts_fit(&parts, 3, line);
    ck_assert_str_eq(line, "fir");
}
END_TEST

START_TEST(the_status_line_writes_times_as_m_ss)
{
    static const struct {
        double s;
        const char *text;
    } cases[] = {{0, "0:00"},     {9.9, "0:09"},         {65, "1:05"},
                 {3599, "59:59"}, {3600, "1:00:00"},     {7265, "2:01:05"},
                 {-1, "0:00"},    {360000, "100:00:00"}, {1e300, "0:00"}};
    char text[STATUS_TIME_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        status_parts_time(cases[i].s, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    setenv("TERM", "xterm", 1);
    Suite *suite = suite_create("progress");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, few_columns_keep_what_matters);
    tcase_add_test(core, the_status_line_writes_times_as_m_ss);
    tcase_add_test(core, a_log_has_a_line_every_two_seconds);
    tcase_add_loop_test(core, colours_are_asked_for, 0, N_COLOURS);
    return test_folder_close(suite_run(suite));
}
