/* --health-check-port: what a probe hears of an agent that lives, and of one that hangs. */
#include "app/launch/health_check.h"
#include "base/clock.h"
#include "base/module.h"
#include "dist/health/rank_status.h"
#include "dist/net/socket.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LATE_MS = 300, ANSWER_BYTES = 2048, WAIT_MS = 5000 };

static int port;

static health_check *open_check(void)
{
    health_check *check = NULL;
    port = port_find_free();
    ck_assert_int_eq(health_check_open("127.0.0.1", port, LATE_MS, &check), STATUS_OK);
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
        health_check_beat(
            check, &(health_facts){.state = state, .round = round, .world_size = world_size});
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

/* As a probe of a busy machine, or over a link that has lost a packet. Where the machine itself
 * takes longer it is done again. */
START_TEST(a_slow_probe_is_answered)
{
    char byte;
    health_check *check = open_check();
    status st = STATUS_PEER;
    for (int64_t end_ns = clock_deadline_ns(WAIT_MS); st != STATUS_OK && !clock_passed(end_ns);) {
        int fd;
        ck_assert_int_eq(socket_connect("127.0.0.1", port, end_ns, &fd), STATUS_OK);
        clock_sleep_ms(700);
        st = socket_send(fd, GET, sizeof GET - 1, end_ns);
        if (st == STATUS_OK)
            st = socket_receive(fd, &byte, 1, end_ns);
        close(fd);
    }
    ck_assert_int_eq(st, STATUS_OK);
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

/* The head and every line of a scrape of two ranks, one of which has told its loss. */
START_TEST(a_scrape_has_what_the_ranks_say)
{
    char answer[ANSWER_BYTES], folder[] = "/tmp/health_check_XXXXXX";
    rank_status *pages[2];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int r = 0; r < 2; r++) {
        const rank_status_options options = {.folder = folder, .rank = 4 + r, .world_size = 8};
        ck_assert_int_eq(rank_status_create(&options, &pages[r]), STATUS_OK);
        rank_status_step(pages[r], 1, 940 + r);
    }
    rank_status_pace(pages[0], 0.25, 12000);
    health_check *check = open_check();
    health_facts facts = {
        .state = "runs", .round = 2, .restarts = 1, .world_size = 8, .first_rank = 4, .nproc = 3};
    snprintf(facts.pages, sizeof facts.pages, "%s", folder);
    health_check_beat(check, &facts);
    ask("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", answer);
    ASSERT_FACTS(answer, "HTTP", "200");
    ASSERT_FACTS(answer, "text/plain; version=0.0.4");
    static const char *const lines[] = {
        "# TYPE mnist_ddp_restarts_total counter\nmnist_ddp_restarts_total 1\n",
        "\nmnist_ddp_world_size 8\n",
        "mnist_ddp_round 2\n",
        "mnist_ddp_epoch{rank=\"4\"} 2\nmnist_ddp_epoch{rank=\"5\"} 2\n#",
        "mnist_ddp_steps_total{rank=\"4\"} 940\nmnist_ddp_steps_total{rank=\"5\"} 941\n#",
        "# TYPE mnist_ddp_loss gauge\nmnist_ddp_loss 0.25\n#",
        "mnist_ddp_images_per_second 12000\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(strstr(answer, lines[i]) != NULL, "no '%s' in %s", lines[i], answer);
    ask("GET /other HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", answer);
    ASSERT_FACTS(answer, "HTTP", "404");
    health_check_close(check);
    for (int r = 0; r < 2; r++) {
        char path[64];
        snprintf(path, sizeof path, "%s/rank%d.page", folder, 4 + r);
        unlink(path);
        rank_status_destroy(pages[r]);
    }
    rmdir(folder);
}
END_TEST

/* Idle connections, more than it has room for, and then a probe. Returns whether one of them, which
 * would have kept the probe out, was still open when the probe was answered. */
static bool probe_among_idle(health_check *check)
{
    enum { IDLE = 40, YOUNG = 30 };
    char answer[ANSWER_BYTES], byte;
    int fds[IDLE];
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    for (int i = 0; i < IDLE; i++)
        ck_assert_int_eq(socket_connect("127.0.0.1", port, deadline_ns, &fds[i]), STATUS_OK);
    beat_and_ask(check, "runs", 1, 1, answer);
    ASSERT_FACTS(answer, "200");
    ck_assert_int_eq(recv(fds[0], &byte, 1, MSG_DONTWAIT), 0);
    bool open = recv(fds[YOUNG], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    for (int i = 0; i < IDLE; i++) { /* all are closed when they are late */
        struct pollfd ended = {.fd = fds[i], .events = POLLIN};
        ck_assert_int_eq(poll(&ended, 1, WAIT_MS), 1);
        close(fds[i]);
    }
    return open;
}

/* A slow machine may take longer than a connection's time: then it is done again. */
START_TEST(idle_connections_keep_no_probe_out)
{
    health_check *check = open_check();
    int64_t end_ns = clock_deadline_ns(WAIT_MS);
    bool answered = false;
    while (!answered && !clock_passed(end_ns))
        answered = probe_among_idle(check);
    ck_assert_msg(answered, "a probe is answered only when idle connections are late");
    health_check_close(check);
}
END_TEST

START_TEST(a_port_that_is_taken_is_said)
{
    health_check *check = NULL;
    int taken, fd = port_listen(&taken);
    ck_assert_int_eq(health_check_open("", taken, LATE_MS, &check), STATUS_IO);
    ck_assert_ptr_null(check);
    close(fd);
}
END_TEST

START_TEST(no_port_is_no_check)
{
    health_check *check = NULL;
    ck_assert_int_eq(health_check_open("", -1, LATE_MS, &check), STATUS_OK);
    ck_assert_ptr_null(check);
    health_check_beat(check, &(health_facts){.state = "runs"});
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
    suite_add(core, a_slow_probe_is_answered, 0, missing);
    suite_add(core, other_requests_are_refused_and_end, 0, missing);
    suite_add(core, a_scrape_has_what_the_ranks_say, 0, missing);
    suite_add(core, idle_connections_keep_no_probe_out, 0, missing);
    suite_add(core, a_port_that_is_taken_is_said, 0, missing);
    tcase_add_test(core, no_port_is_no_check);
    return suite_run(suite);
}
