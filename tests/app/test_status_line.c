/* What a person sees on a terminal, of any width: a log, and below it a status line, which no other
 * line shares. */
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/screen.h"

#include "base/clock.h"

#include <signal.h>

#define TRAINING \
    program_mnist_ddp(), "train", "--model=mlp", "--threads=1", "--batch-size=4", "--run-dir=run"

/* In the second of two epochs: the line is drawn meanwhile, and says at least how the first
 * ended. */
#define SLOW_STEP "--inject=delay:rank=0,step=200,ms=300"

/* Of 150 in each epoch: a third of a second. */
#define SLOW_STEPS "--inject=delay:rank=0,ms=2"

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

/* Each line that is seen begins as one of these, or with a word that had no room in the line before
 * it; and holds no part of a status line. */
static void check_lines(const screen *s, const char *const *begins)
{
    char *copy = strdup(s->lines), *at = copy, *line;
    size_t before = 0; /* letters of the line before */
    while ((line = next_line(&at)) != NULL) {
        bool known =
            *line == '\0' || (before > 0 && before + 1 + strcspn(line, " ") > (size_t)s->columns);
        before = strlen(line);
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
        "results: ", "epoch 1/2: ", "epoch 2/2: ", "saved: ", "finished: ", "report: "

START_TEST(no_width_wrecks_the_log)
{
    screen s;
    screen_start(WIDTHS[_i], true, WORDS(TRAINING, "--epochs=2", SLOW_STEPS), &s);
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
        ASSERT_FACTS(s.bytes, "steps/s");
    screen_close(&s);
}
END_TEST

/* A byte for each column: of UTF-8, the first of each character. */
static void to_columns(char *line)
{
    char *to = line;
    for (const char *c = line; *c != '\0'; c++)
        if ((*c & 0xc0) != 0x80)
            *to++ = *c;
    *to = '\0';
}

/* A word that a row cuts is one that would fill half of the terminal. */
static void check_words(const screen *s)
{
    char *copy = strdup(s->lines), *at = copy, *line;
    size_t columns = (size_t)s->columns;
    while ((line = next_line(&at)) != NULL) {
        to_columns(line);
        for (size_t cut = columns; cut < strlen(line); cut += columns) {
            size_t begin = cut, end = cut + strcspn(line + cut, " ");
            while (begin > 0 && line[begin - 1] != ' ')
                begin--;
            ck_assert_msg(begin == cut || end == cut || end - begin > columns / 2, "'%s' in:\n%s",
                          line, s->lines);
        }
    }
    free(copy);
}

static void write_stroke(const char *path)
{
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs("P2 28 28 255\n", out);
    for (int i = 0; i < 28 * 28; i++)
        fprintf(out, "%d\n", i % 28 > 12 && i % 28 < 16 && i / 28 > 4 && i / 28 < 24 ? 255 : 0);
    ck_assert_int_eq(fclose(out), 0);
}

enum { FRAMES = 12 }; /* of a demo, at most: Enter shows the next one */

/* Also what goes to stdout: sentences, tables, bars. */
START_TEST(lines_break_between_words)
{
    const char *self = program_mnist_ddp();
    const char *const *const commands[] = {
        WORDS(TRAINING, "--epochs=1", "--limit=2000", "--nproc-per-node=2"),
        WORDS(self, "eval", "run"),
        WORDS(self, "predict", "run", "one.pgm"),
        WORDS(self, "doctor"),
        WORDS(self, "demo", "ring", "--nproc-per-node=2"),
        WORDS(self, "demo", "world-size"),
    };
    write_stroke("one.pgm");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        screen s;
        screen_start_typing(_i, commands[i], &s);
        for (int frame = 0; frame < FRAMES && strcmp(commands[i][1], "demo") == 0; frame++) {
            clock_sleep_ms(100);
            screen_type(&s, "\n");
        }
        screen_finish(&s);
        ASSERT_EXIT(s.program, 0);
        check_words(&s);
        screen_close(&s);
    }
}
END_TEST

/* Through the launcher: other ranks' lines, its own, and the report stand alone. */
START_TEST(other_lines_stand_apart_from_the_status_line)
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

/* What is to be typed on the other node can be copied from a terminal of any width. */
START_TEST(a_command_stays_one_line)
{
    screen s;
    screen_start(40, true,
                 WORDS(TRAINING, "--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1",
                       "--join-timeout=1", program_flag("--master-port=", port_find_free())),
                 &s);
    screen_finish(&s);
    ck_assert_msg(strstr(s.lines, "on node 1: ") != NULL, "%s", s.lines);
    char *line = strstr(s.lines, "on node 1: ");
    line[strcspn(line, "\n")] = '\0';
    ASSERT_FACTS(line, "train", "--batch-size=4", "--node-rank=1", "--master-port=");
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
    screen_await(&s, "injected");
    kill(s.program.pid, SIGTERM);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 75);
    check_lines(&s, WORDS(LOG, "warning: ", "[rank 0] warning: "));
    ASSERT_FACTS(s.lines, "warning", "stopped after", "epoch 1");
    screen_close(&s);
}
END_TEST

/* The second one ends it at once. */
START_TEST(a_run_that_is_killed_leaves_no_line)
{
    screen s;
    screen_start(60, true,
                 WORDS(TRAINING, "--epochs=1000", "--inject=delay:rank=0,step=20,ms=3000"), &s);
    screen_await(&s, "injected");
    screen_await(&s, " left");
    kill(s.program.pid, SIGINT);
    screen_await(&s, "stopping");
    clock_sleep_ms(300);
    kill(s.program.pid, SIGINT);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 128 + SIGINT);
    check_lines(&s, WORDS(LOG, "warning: "));
    screen_close(&s);
}
END_TEST

/* The benchmark's is the same. */
START_TEST(a_benchmark_draws_a_status_line)
{
    screen s;
    screen_start(40, true,
                 WORDS(program_mnist_ddp(), "bench", "dp-vs-ddp", "--modes=single", "--models=mlp",
                       "--world-sizes=1", "--batch-sizes=64", "--steps=1", "--repeats=2",
                       "--out=out"),
                 &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ASSERT_SAYS(s.bytes, "\rrun 1/2 ");
    ck_assert_ptr_null(strstr(s.lines, "run 1/2 "));
    ck_assert_ptr_null(strstr(s.lines, "run 2/2 "));
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
    screen_await(&s, "waiting for rank 1 (");
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

int main(void)
{
    program_clean_environment();
    test_folder_open();
    setenv("TERM", "xterm", 1);
    Suite *suite = suite_create("status_line");
    TCase *seen = suite_case(suite, "seen", RUN_S);
    tcase_add_checked_fixture(seen, test_folder_clean, NULL);
    tcase_add_loop_test(seen, no_width_wrecks_the_log, 0, N_WIDTHS);
    tcase_add_loop_test(seen, other_lines_stand_apart_from_the_status_line, 0, N_WIDTHS);
    tcase_add_test(seen, a_command_stays_one_line);
    tcase_add_loop_test(seen, a_signal_has_a_line_of_its_own, 0, 2);
    tcase_add_test(seen, a_run_that_is_killed_leaves_no_line);
    tcase_add_test(seen, a_benchmark_draws_a_status_line);
    tcase_add_test(seen, it_says_what_goes_on);
    tcase_add_test(seen, a_test_says_how_far_it_is);
    tcase_add_test(seen, another_width_counts_at_once);
    tcase_add_loop_test(seen, it_can_be_left_out, 0, N_WITHOUT);
    tcase_add_test(seen, a_log_in_a_file_has_no_part_of_it);
    TCase *words = suite_case(suite, "words", 4 * RUN_S);
    tcase_add_checked_fixture(words, test_folder_clean, NULL);
    tcase_add_loop_test(words, lines_break_between_words, 40, 41);
    tcase_add_loop_test(words, lines_break_between_words, 80, 81);
    return test_folder_close(suite_run(suite));
}
