/* --health-check-port: what a probe hears of an agent that lives, and of one that hangs. */
#include "app/launch/health_check.h"
#include "base/clock.h"
#include "base/module.h"
#include "dist/net/socket.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LATE_MS = 300, ANSWER_BYTES = 2048, WAIT_MS = 5000 };

static int port;

static health_check *open_check(void)
{
    health_check *check = NULL;
    port = port_find_free();
    ck_assert_int_eq(health_check_open(port, LATE_MS, &check), STATUS_OK);
    ck_assert_ptr_nonnull(check);
    return check;
}

/* What the port answers to a whole request, its head and body. */
static void ask(const char *request, char answer[ANSWER_BYTES])
{
    int fd;
    size_t size = 0, moved;
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    ck_assert_int_eq(socket_connect("127.0.0.1", port, deadline_ns, &fd), STATUS_OK);
    ck_assert_int_eq(socket_send(fd, request, strlen(request), deadline_ns), STATUS_OK);
    do {
        ck_assert_int_eq(socket_await(fd, 1, deadline_ns), STATUS_OK);
        if (socket_receive_some(fd, answer + size, ANSWER_BYTES - 1 - size, &moved) != STATUS_OK)
            break;
        size += moved;
    } while (size < ANSWER_BYTES - 1);
    answer[size] = '\0';
    close(fd);
}

static const char GET[] = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/* The same after a beat. Where LATE_MS pass between the two, it is done again. */
static void beat_and_ask(health_check *check, const char *state, int64_t round, int world_size,
                         char answer[ANSWER_BYTES])
{
    int64_t end_ns = clock_deadline_ns(WAIT_MS);
    do {
        health_check_beat(check, state, round, world_size);
        ask(GET, answer);
    } while (strstr(answer, " 503 ") != NULL && !clock_passed(end_ns));
}

START_TEST(a_living_agent_is_told_to_live_and_a_hung_one_is_not)
{
    char answer[ANSWER_BYTES];
    health_check *check = open_check();
    beat_and_ask(check, "runs", 3, 8, answer);
    ASSERT_FACTS(answer, "200");
    ck_assert_ptr_nonnull(
        strstr(answer, "{\"state\":\"runs\",\"round\":3,\"world_size\":8,\"age_s\":0."));
    clock_sleep_ms(LATE_MS + 50);
    ask(GET, answer);
    ASSERT_FACTS(answer, "503");
    beat_and_ask(check, "waits", 4, 0, answer);
    ASSERT_FACTS(answer, "200");
    ck_assert_ptr_nonnull(strstr(answer, "\"waits\",\"round\":4"));
    health_check_close(check);
}
END_TEST

START_TEST(other_requests_are_refused_and_end)
{
    char answer[ANSWER_BYTES];
    health_check *check = open_check();
    ask("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", answer);
    ASSERT_FACTS(answer, "405");
    ask("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n",
        answer);
    ASSERT_FACTS(answer, "413");
    ask("nonsense\r\n\r\n", answer);
    ck_assert_ptr_null(strstr(answer, "200"));
    health_check_close(check);
}
END_TEST

START_TEST(a_port_that_is_taken_is_said)
{
    health_check *check = NULL;
    int taken, fd = port_listen(&taken);
    ck_assert_int_eq(health_check_open(taken, LATE_MS, &check), STATUS_IO);
    ck_assert_ptr_null(check);
    close(fd);
}
END_TEST

START_TEST(no_port_is_no_check)
{
    health_check *check = NULL;
    ck_assert_int_eq(health_check_open(-1, LATE_MS, &check), STATUS_OK);
    ck_assert_ptr_null(check);
    health_check_beat(check, "runs", 1, 1);
    ck_assert_int_eq(health_check_wait_ms(check, -1), -1);
    health_check_close(check);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("health_check");
    TCase *core = suite_case(suite, "core", 20);
    const char *missing = module_exists("microhttpd") ? NULL : "libmicrohttpd is not in this build";
    suite_add(core, a_living_agent_is_told_to_live_and_a_hung_one_is_not, 0, missing);
    suite_add(core, other_requests_are_refused_and_end, 0, missing);
    suite_add(core, a_port_that_is_taken_is_said, 0, missing);
    tcase_add_test(core, no_port_is_no_check);
    return suite_run(suite);
}
