/* What a person sees of a training: on a terminal a log and a status line below it, which no other
 * line shares, at every width; elsewhere a few lines, without escapes. */
#include "app/common/status_line.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/screen.h"

#include "base/clock.h"

#include <signal.h>

#define TRAINING \
    program_mnist_ddp(), "train", "--model=mlp", "--threads=1", "--batch-size=4", "--run-dir=run"

/* Long enough for the line to be drawn while it trains. */
#define SLOW_STEP "--inject=delay:rank=0,step=20,ms=300"

static const int WIDTHS[] = {40, 60, 80, 200};
enum { N_WIDTHS = sizeof WIDTHS / sizeof WIDTHS[0], NARROW = 39 };

/* The next line, or NULL; cuts it off. */
static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (*line == '\0')
        return NULL;
    *at = end != NULL ? end + 1 : line + strlen(line);
    if (end != NULL)
        *end = '\0';
    return line;
}

/* Each line that is seen begins as one of these, and holds no part of a status line. */
static void check_lines(const screen *s, const char *const *begins)
{
    char *copy = strdup(s->lines), *at = copy, *line;
    while ((line = next_line(&at)) != NULL) {
        bool known = *line == '\0';
        for (int i = 0; begins[i] != NULL; i++)
            known = known || strncmp(line, begins[i], strlen(begins[i])) == 0;
        ck_assert_msg(known, "'%s' in:\n%s", line, s->lines);
        ck_assert_msg(strstr(line, "epoch 1/2 ") == NULL && strstr(line, "epoch 2/2 ") == NULL,
                      "'%s' in:\n%s", line, s->lines);
    }
    free(copy);
}

#define LOG \
    "mnist_ddp ", "ranks: ", "data: ", "      these are ", \
        "results: ", "epoch 1/2: ", "epoch 2/2: ", "saved: ", "finished: "

START_TEST(no_width_wrecks_the_log)
{
    screen s;
    screen_start(WIDTHS[_i], true, WORDS(TRAINING, "--epochs=2", SLOW_STEP), &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    check_lines(&s, WORDS(LOG, "warning: injected"));
    ASSERT_SAYS(s.lines, "\nepoch 1/2: ");
    ASSERT_SAYS(s.lines, "\nepoch 2/2: ");
    ASSERT_SAYS(s.bytes, "\repoch 1/2 "); /* it was drawn */
    ASSERT_SAYS(s.bytes, "/150 ");
    if (WIDTHS[_i] >= 80)
        ASSERT_FACTS(s.bytes, "[==", "loss ", "images/s", "passed");
    if (WIDTHS[_i] == 200)
        ASSERT_FACTS(s.bytes, "steps/s", "left");
    screen_close(&s);
}
END_TEST

/* Through the launcher: other ranks' lines, its own, and the report stand alone. */
START_TEST(nothing_is_glued_to_it)
{
    screen s;
    screen_start(WIDTHS[_i], true,
                 WORDS(TRAINING, "--epochs=2", "--nproc-per-node=2", "--limit=2000",
                       "--inject=kill:rank=1,step=150"),
                 &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 137);
    ASSERT_SAYS(s.bytes, "\repoch 1/2 ");
    check_lines(&s, WORDS(LOG, "[rank 1] warning: injected",
                          "[rank 0] error: ", "error: rank 1 failed first", "  "));
    screen_close(&s);
}
END_TEST

START_TEST(a_signal_has_a_line_of_its_own)
{
    screen s;
    screen_start(60, true,
                 WORDS(TRAINING, "--epochs=2", program_flag("--nproc-per-node=", _i + 1),
                       "--inject=delay:rank=0,step=20,ms=600"),
                 &s);
    screen_await(&s, "/2 [===");
    kill(s.program.pid, SIGTERM);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 75);
    check_lines(&s, WORDS(LOG, "warning: ", "[rank 0] warning: "));
    ASSERT_FACTS(s.lines, "warning", "stopped", "after epoch");
    screen_close(&s);
}
END_TEST

/* A rank that is late is named, and what goes on when nothing is trained. */
START_TEST(it_says_what_goes_on)
{
    screen s;
    screen_start(100, true,
                 WORDS(TRAINING, "--epochs=1", "--nproc-per-node=2",
                       "--inject=delay:rank=1,step=20,ms=1700"),
                 &s);
    screen_await(&s, "waiting for rank 1 (1 s)");
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ASSERT_SAYS(s.bytes, "starting");
    screen_close(&s);
}
END_TEST

START_TEST(a_test_says_how_far_it_is)
{
    screen s;
    screen_start(100, true,
                 WORDS(program_mnist_ddp(), "train", "--model=cnn", "--device=reference",
                       "--epochs=1", "--limit=1", "--run-dir=run"),
                 &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ASSERT_SAYS(s.bytes, "testing ");
    ASSERT_SAYS(s.bytes, "/250 images");
    screen_close(&s);
}
END_TEST

START_TEST(another_width_counts_at_once)
{
    screen s;
    screen_start(200, true, WORDS(TRAINING, "--epochs=1", "--inject=delay:rank=0,step=20,ms=700"),
                 &s);
    screen_await(&s, "loss ");
    screen_resize(&s, NARROW + 1);
    size_t before = s.size_bytes;
    clock_sleep_ms(300);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    const char *line = strstr(s.bytes + before, "\033[K\repoch "); /* a whole one after it */
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_le(strcspn(line + 4, "\033"), NARROW);
    screen_close(&s);
}
END_TEST

static const char *const WITHOUT[] = {"--no-progress", "--quiet", "--log-format=pytorch"};
enum { N_WITHOUT = sizeof WITHOUT / sizeof WITHOUT[0] };

START_TEST(it_can_be_left_out)
{
    screen s;
    screen_start(80, true, WORDS(TRAINING, "--epochs=2", "--limit=100", WITHOUT[_i]), &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ck_assert_ptr_null(strstr(s.bytes, "\repoch 1/2 "));
    ck_assert_ptr_null(strstr(s.bytes, "[="));
    screen_close(&s);
}
END_TEST

/* The log goes to a file, the line to the terminal. */
START_TEST(a_log_in_a_file_has_no_part_of_it)
{
    screen s;
    screen_start(80, false, WORDS(TRAINING, "--epochs=2", SLOW_STEP), &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ASSERT_SAYS(s.bytes, "\repoch 1/2 ");
    ck_assert_ptr_null(strchr(s.program.out, '\r'));
    ck_assert_ptr_null(strchr(s.program.out, '\033'));
    ASSERT_SAYS(s.program.out, "epoch 1/2 step 1/150 loss ");
    check_lines(&s, WORDS("warning: injected"));
    screen_close(&s);
}
END_TEST

static program run_with(const char *setting, const char *flag)
{
    return program_run_with(WORDS("env", setting),
                            WORDS("train", "--model=mlp", "--threads=1", "--batch-size=4",
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

/* 300 steps in far less than two seconds each. */
START_TEST(a_log_has_a_line_every_two_seconds)
{
    int64_t start_ns = clock_now_ns();
    program p = run_with("A=B", "--progress");
    int most = 1 + (int)(clock_seconds(clock_now_ns() - start_ns) / 2);
    ASSERT_EXIT(p, 0);
    int lines = count_steps(p.out);
    ck_assert_msg(lines >= 1 && lines <= most, "%d lines, want %d: %s", lines, most, p.out);
    ASSERT_SAYS(p.out, "epoch 1/2 step 1/150 loss ");
    ASSERT_FACTS(p.out, "step 1/150", "images/s", "passed", "left");
    ASSERT_FACTS(p.out, "finished", "2 epochs", " s");
    program_close(&p);
    test_folder_remove("run");
    p = run_with("A=B", "--log-interval=50");
    ck_assert_int_eq(count_steps(p.out), 6);
    ASSERT_SAYS(p.out, "epoch 2/2 step 101/150 loss ");
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

#define GREEN "accuracy \033[32m"
#define YELLOW "\033[33mwarning:\033[0m injected"

START_TEST(colours_are_asked_for)
{
    const char *const words[] = {"env",         COLOURS[_i].setting,
                                 TRAINING,      "--epochs=2",
                                 "--limit=100", "--inject=delay:rank=0,step=20,ms=1",
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
    if (strcmp(COLOURS[_i].setting, "TERM=dumb") == 0)
        ck_assert_ptr_null(strchr(s.bytes, '\033'));
    if (COLOURS[_i].terminal)
        screen_close(&s);
    else
        program_close(&p);
}
END_TEST

/* The parts that are worth most stay; nothing is wider than it may be. */
START_TEST(few_columns_keep_what_matters)
{
    status_parts parts = {.done = 0.5, .bar_worth = 2};
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

START_TEST(time_is_short)
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

static void start_clean(void)
{
    test_folder_remove("run");
}

int main(void)
{
    program_clean_environment();
    test_folder_open();
    setenv("TERM", "xterm", 1);
    Suite *suite = suite_create("progress");
    TCase *parts = suite_case(suite, "parts", 10);
    tcase_add_test(parts, few_columns_keep_what_matters);
    tcase_add_test(parts, time_is_short);
    TCase *seen = suite_case(suite, "seen", RUN_S);
    tcase_add_checked_fixture(seen, start_clean, NULL);
    tcase_add_loop_test(seen, no_width_wrecks_the_log, 0, N_WIDTHS);
    tcase_add_loop_test(seen, nothing_is_glued_to_it, 0, N_WIDTHS);
    tcase_add_loop_test(seen, a_signal_has_a_line_of_its_own, 0, 2);
    tcase_add_test(seen, it_says_what_goes_on);
    tcase_add_test(seen, a_test_says_how_far_it_is);
    tcase_add_test(seen, another_width_counts_at_once);
    tcase_add_loop_test(seen, it_can_be_left_out, 0, N_WITHOUT);
    tcase_add_test(seen, a_log_in_a_file_has_no_part_of_it);
    tcase_add_test(seen, a_log_has_a_line_every_two_seconds);
    tcase_add_loop_test(seen, colours_are_asked_for, 0, N_COLOURS);
    return test_folder_close(suite_run(suite));
}
