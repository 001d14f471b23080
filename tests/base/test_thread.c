/* Threads that take no signals. */
#include "base/thread.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <string.h>

static bool is_blocked(int signal)
{
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    return sigismember(&now, signal) == 1;
}

static void *look(void *arg)
{
    bool *blocked = arg;
    *blocked = is_blocked(SIGTERM) && is_blocked(SIGINT) && is_blocked(SIGUSR2);
    return arg;
}

START_TEST(a_thread_takes_no_signals)
{
    bool blocked = false;
    pthread_t thread;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &one, NULL);
    ck_assert_int_eq(thread_start(look, &blocked, "a test's", &thread), STATUS_OK);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(blocked);
    ck_assert(is_blocked(SIGUSR2));  /* what the caller had blocked, */
    ck_assert(!is_blocked(SIGTERM)); /* and nothing else */
}
END_TEST

START_TEST(a_library_s_threads_take_none)
{
    bool blocked = false;
    pthread_t thread;
    sigset_t before;
    thread_block_signals(&before);
    ck_assert_int_eq(pthread_create(&thread, NULL, look, &blocked), 0);
    thread_restore_signals(&before);
    pthread_join(thread, NULL);
    ck_assert(blocked);
    ck_assert(!is_blocked(SIGTERM));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("thread");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, a_thread_takes_no_signals);
    tcase_add_test(core, a_library_s_threads_take_none);
    return suite_run(suite);
}
