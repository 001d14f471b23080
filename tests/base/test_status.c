/* Code, text and location of a failure are apart; only the log's debug level brings them together.
 */
#include "base/log.h"
#include "base/status.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What `act` and its callers write to stderr; at most one pipe full. */
static void say(void (*act)(void), char *said, size_t size_bytes)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    act();
    LOG_E("%s", status_text());
    ssize_t n = read(ends[0], said, size_bytes - 1);
    ck_assert_int_gt(n, 0);
    said[n] = '\0';
    close(ends[0]);
    close(ends[1]);
}

static void fail_here(void)
{
    status st = status_fail(STATUS_IO, "/home/user/house/dist/net/socket.cu", 42, "port %d", 7);
    ck_assert_int_eq(st, STATUS_IO);
}

START_TEST(a_text_has_no_location)
{
    ck_assert_str_eq(status_text(), "");
    ck_assert_str_eq(status_location(), "");
    fail_here();
    ck_assert_str_eq(status_text(), "port 7");
    ck_assert_str_eq(status_location(), "net/socket.cu:42");
    ck_assert_int_eq(FAIL(STATUS_INVALID, "(not a.c:1)"), STATUS_INVALID);
    ck_assert_str_eq(status_text(), "(not a.c:1)");
    ck_assert_ptr_nonnull(strstr(status_location(), "base/test_status.c:"));
    ck_assert_int_eq(status_fail(STATUS_IO, "main.c", 3, "x"), STATUS_IO);
    ck_assert_str_eq(status_location(), "main.c:3");
}
END_TEST

/* The location stays the FAIL's. */
START_TEST(a_context_comes_before_the_text)
{
    fail_here();
    ck_assert_int_eq(status_context(STATUS_IO, "store at %s", "host:1"), STATUS_IO);
    ck_assert_str_eq(status_text(), "store at host:1: port 7");
    ck_assert_str_eq(status_location(), "net/socket.cu:42");
}
END_TEST

START_TEST(what_is_appended_comes_after_the_text)
{
    fail_here();
    status_append("; port %d", 8);
    ck_assert_str_eq(status_text(), "port 7; port 8");
    ck_assert_str_eq(status_location(), "net/socket.cu:42");
}
END_TEST

START_TEST(what_is_kept_comes_back)
{
    status_kept kept;
    fail_here();
    status_keep(&kept);
    FAIL(STATUS_INVALID, "another");
    ck_assert_str_eq(status_text(), "another");
    status_restore(&kept);
    ck_assert_str_eq(status_text(), "port 7");
    ck_assert_str_eq(status_location(), "net/socket.cu:42");
}
END_TEST

static void *fail_beside(void *arg)
{
    (void)arg;
    FAIL(STATUS_PEER, "of another thread");
    return NULL;
}

START_TEST(each_thread_has_its_own)
{
    pthread_t thread;
    fail_here();
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_beside, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_str_eq(status_text(), "port 7");
}
END_TEST

START_TEST(no_memory_by_errno_says_so)
{
    errno = ENOMEM;
    FAIL(STATUS_NO_MEMORY, "a page");
    ck_assert_str_eq(status_text(), "out of memory: a page");
    ck_assert_int_eq(errno, ENOMEM);
    errno = 0;
    FAIL(STATUS_NO_MEMORY, "8 GPUs");
    ck_assert_str_eq(status_text(), "8 GPUs");
}
END_TEST

/* A text longer than there is room for is cut, with a context as well. */
START_TEST(a_long_text_is_cut)
{
    char text[4096];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    FAIL(STATUS_IO, "%s", text);
    ck_assert_uint_eq(strlen(status_text()), sizeof((status_kept *)0)->text - 1);
    status_context(STATUS_IO, "before");
    ck_assert_uint_eq(strlen(status_text()), sizeof((status_kept *)0)->text - 1);
    ck_assert_int_eq(strncmp(status_text(), "before: xxx", 11), 0);
    status_append("after");
    ck_assert_uint_eq(strlen(status_text()), sizeof((status_kept *)0)->text - 1);
    ck_assert_int_eq(strncmp(status_text(), "before: xxx", 11), 0);
}
END_TEST

/* $TORCH_DISTRIBUTED_DEBUG, and whether the location is told. */
static const struct {
    const char *value;
    int told;
} LEVELS[] = {{NULL, 0}, {"", 0}, {"OFF", 0}, {"off", 0}, {"INFO", 1}, {"info", 1}, {"DETAIL", 1}};

START_TEST(the_debug_level_tells_the_location)
{
    char said[400];
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
    if (LEVELS[_i].value != NULL)
        setenv("TORCH_DISTRIBUTED_DEBUG", LEVELS[_i].value, 1);
    log_set_level_from_environment();
    say(fail_here, said, sizeof said);
    ASSERT_FACTS(said, "error: port 7");
    ck_assert_int_eq(strstr(said, "socket.cu:42") != NULL, LEVELS[_i].told);
    if (LEVELS[_i].told)
        ASSERT_FACTS(said, "debug:", "i/o", "port 7", "net/socket.cu:42");
}
END_TEST

START_TEST(another_level_is_warned_of)
{
    char said[400];
    setenv("TORCH_DISTRIBUTED_DEBUG", "VERBOSE", 1);
    say(log_set_level_from_environment, said, sizeof said);
    ASSERT_FACTS(said, "warning", "TORCH_DISTRIBUTED_DEBUG", "VERBOSE", "DETAIL");
}
END_TEST

static void say_levels(void)
{
    LOG_V("a fact");
    LOG_I("a place");
    LOG_D("a detail");
}

static void say_hushed(void)
{
    log_set_level(LOG_WARNING);
    say_levels();
}

static void keep(void *self, const char *line, size_t size_bytes)
{
    strncat(self, line, size_bytes);
}

/* --quiet hides the one, a launcher's the other too; the copy has both. */
START_TEST(the_log_copy_has_hidden_lines_too)
{
    char said[400], copy[400] = "";
    FAIL(STATUS_IO, "port 7");
    say(say_levels, said, sizeof said);
    ck_assert_str_eq(said, "a fact\na place\nerror: port 7\n");
    log_set_copy(keep, copy);
    log_set_quiet();
    say(say_levels, said, sizeof said);
    ck_assert_str_eq(said, "a place\nerror: port 7\n");
    say(say_hushed, said, sizeof said);
    ck_assert_str_eq(said, "error: port 7\n");
    ck_assert_str_eq(copy, "a fact\na place\nerror: port 7\na fact\na place\nerror: port 7\n");
    log_set_copy(NULL, NULL);
    log_set_level(LOG_DEBUG);
    log_set_quiet();
    say(say_levels, said, sizeof said);
    ck_assert_str_eq(said, "a fact\na place\ndebug: a detail\nerror: port 7\n");
}
END_TEST

START_TEST(every_code_has_a_name)
{
    for (int code = STATUS_OK; code <= STATUS_NO_MODULE; code++)
        ck_assert_str_ne(status_name((status)code), "unknown");
    ck_assert_str_eq(status_name((status)(STATUS_NO_MODULE + 1)), "unknown");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("status");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, a_text_has_no_location);
    tcase_add_test(core, a_context_comes_before_the_text);
    tcase_add_test(core, what_is_appended_comes_after_the_text);
    tcase_add_test(core, what_is_kept_comes_back);
    tcase_add_test(core, each_thread_has_its_own);
    tcase_add_test(core, no_memory_by_errno_says_so);
    tcase_add_test(core, a_long_text_is_cut);
    tcase_add_loop_test(core, the_debug_level_tells_the_location, 0,
                        sizeof LEVELS / sizeof LEVELS[0]);
    tcase_add_test(core, another_level_is_warned_of);
    tcase_add_test(core, the_log_copy_has_hidden_lines_too);
    tcase_add_test(core, every_code_has_a_name);
    return suite_run(suite);
}
