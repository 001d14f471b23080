/* mnist_ddp demo on a terminal: how long it waits for its reader, and what ends the wait. */
#include "base/clock.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"
#include "tests/support/screen.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { COLUMNS = 80, LINE_BYTES = 256, TREE_FRAMES = 9, FEW_S = 10, SOME_S = 4 };

/* Paced: 6 s, and a collective's deadline is 3 s. */
#define SAMPLER "demo", "sampler", "--no-shuffle", "--samples=3", "--timeout=3"

static double seconds_since(int64_t began_ns)
{
    return clock_seconds(clock_now_ns() - began_ns);
}

static struct termios state_of(const screen *s)
{
    struct termios state;
    ck_assert_int_eq(tcgetattr(s->into, &state), 0);
    return state;
}

/* Typed before they are asked for: on a terminal it takes 40 s without them. */
START_TEST(an_enter_ends_a_pause)
{
    screen s;
    int64_t began_ns = clock_now_ns();
    screen_start_typing(COLUMNS, WORDS(program_mnist_ddp(), "demo", "tree"), &s);
    struct termios before = state_of(&s);
    screen_await(&s, "Enter shows");
    for (int i = 0; i < TREE_FRAMES; i++)
        screen_type(&s, i % 2 == 0 ? "\n" : "words\n");
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ck_assert_double_lt(seconds_since(began_ns), FEW_S);
    ck_assert_int_eq(facts_count(s.lines, "Enter shows"), 1);
    struct termios after = state_of(&s);
    ck_assert_uint_eq(before.c_lflag, after.c_lflag);
    ck_assert_uint_eq(before.c_iflag, after.c_iflag);
    screen_close(&s);
}
END_TEST

START_TEST(lines_of_a_pipe_end_pauses)
{
    screen s;
    int64_t began_ns = clock_now_ns();
    screen_start(COLUMNS, true,
                 WORDS("sh", "-c", "yes '' | \"$0\" \"$@\"", program_mnist_ddp(), "demo", "tree"),
                 &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ck_assert_double_lt(seconds_since(began_ns), FEW_S);
    screen_close(&s);
}
END_TEST

/* No line comes: stdin is closed, empty, a pipe without a writer, a file of lines, or the terminal
 * of the job in the foreground. The reader's time is longer than a collective's. */
START_TEST(without_enter_a_reader_has_time)
{
    static const char *const ways[] = {
        "\"$@\" <&-",
        "\"$@\" </dev/null",
        ": | \"$@\"",
        "yes '' | head -99 >lines; \"$@\" <lines",
        "setsid --ctty --wait sh -mc '\"$@\" & wait $!' sh \"$@\"",
    };
    enum { WAYS = sizeof ways / sizeof ways[0] };
    screen screens[WAYS];
    for (int i = 0; i < WAYS; i++) {
        char line[LINE_BYTES];
        snprintf(line, sizeof line, "SECONDS=0; %s; code=$?; echo took $SECONDS s; exit $code",
                 ways[i]);
        screen_start_typing(
            COLUMNS, WORDS("bash", "-c", line, "bash", program_mnist_ddp(), SAMPLER), &screens[i]);
        screen_await(&screens[i], "---");
        screen_type(&screens[i], "\n\n\n\n\n\n\n\n\n\n");
    }
    for (int i = 0; i < WAYS; i++) {
        screen_finish(&screens[i]);
        ASSERT_EXIT(screens[i].program, 0);
        const char *took = strstr(screens[i].lines, "took ");
        ck_assert_msg(took != NULL && atoi(took + strlen("took ")) >= SOME_S, "%s: %s", ways[i],
                      screens[i].lines);
        ASSERT_NO_FACTS(screens[i].lines, "Enter shows");
        screen_close(&screens[i]);
    }
}
END_TEST

/* Ctrl-C while the reader reads: the page of an earlier run stays. A rank that waited on would be
 * killed after 5 s, and leave its folder. */
START_TEST(who_stops_it_reads_one_line)
{
    static const char *const names[] = {"ring", "world-size", "dp"};
    screen s;
    glob_t left;
    test_folder_write("page.html", "earlier");
    screen_start(COLUMNS, true, WORDS(program_mnist_ddp(), "demo", names[_i], "--html=page.html"),
                 &s);
    screen_await(&s, "---");
    int64_t told_ns = clock_now_ns();
    kill(-s.program.pid, SIGINT);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 130);
    ck_assert_double_lt(seconds_since(told_ns), 2);
    ck_assert_int_eq(facts_count(s.lines, "SIGINT"), 1);
    screen_close(&s);
    ck_assert_int_eq(glob("mnist_ddp_*", 0, NULL, &left), GLOB_NOMATCH);
    ck_assert_int_eq(glob("page.html*", 0, NULL, &left), 0);
    ck_assert_uint_eq(left.gl_pathc, 1);
    globfree(&left);
    char *page = test_folder_read("page.html");
    ck_assert_str_eq(page, "earlier");
    free(page);
}
END_TEST

/* demo | tail: on a terminal it takes 40 s. */
START_TEST(a_pipe_is_not_waited_for)
{
    int64_t began_ns = clock_now_ns();
    program p = program_run_line("demo tree");
    ASSERT_EXIT(p, 0);
    ck_assert_double_lt(seconds_since(began_ns), FEW_S);
    program_close(&p);
}
END_TEST

/* demo | head: that is no failure. */
START_TEST(a_reader_may_leave)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%.200s demo ring --fast | true", program_mnist_ddp());
    program p = program_start(WORDS("sh", "-c", line));
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

/* demo > FILE */
START_TEST(a_full_disk_is_a_failure)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%.200s demo ring --fast --html=ring.html >/dev/full",
             program_mnist_ddp());
    program p = program_start(WORDS("sh", "-c", line));
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "stdout", "No space left on device");
    ASSERT_NO_FACTS(p.err, "warning");
    ASSERT_NO_FACTS(p.err, "rank 1");
    program_close(&p);
    ck_assert_int_eq(access("ring.html", R_OK), 0); /* the page is there all the same */
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo_reader");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, an_enter_ends_a_pause);
    tcase_add_test(core, lines_of_a_pipe_end_pauses);
    tcase_add_test(core, without_enter_a_reader_has_time);
    tcase_add_loop_test(core, who_stops_it_reads_one_line, 0, 3);
    tcase_add_test(core, a_pipe_is_not_waited_for);
    tcase_add_test(core, a_reader_may_leave);
    tcase_add_test(core, a_full_disk_is_a_failure);
    return test_folder_close(suite_run(suite));
}
