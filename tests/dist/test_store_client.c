/* The store's client against servers that answer late, wrong or not at all. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a server does on its one connection after the greeting: takes so many bytes, then answers
 * with so many. It hangs up at the end, or holds on until the client has. */
typedef struct step {
    size_t take, give;
    const char *answer;
} step;

enum { MAX_STEPS = 12 };

typedef struct fake_server {
    int listen_fd, port;
    step steps[MAX_STEPS];       /* the first with take 0 ends them */
    const char *want[MAX_STEPS]; /* the bytes that each takes, it hangs up at others; NULL: any */
    bool holds_on;
    pthread_t thread;
} fake_server;

static void *play(void *arg)
{
    fake_server *fake = arg;
    int64_t deadline_ns = clock_deadline_ns(5000);
    uint8_t in[256];
    int fd = -1;
    if (socket_await(fake->listen_fd, POLLIN, deadline_ns) != STATUS_OK ||
        socket_accept(fake->listen_fd, &fd) != STATUS_OK || fd < 0)
        return NULL;
    /* VALIDATE and PING; the echo. */
    status st = socket_receive(fd, in, 10, deadline_ns);
    if (st == STATUS_OK)
        st = socket_send(fd, in + 6, 4, deadline_ns);
    for (const step *s = fake->steps; st == STATUS_OK && s->take > 0; s++) {
        st = socket_receive(fd, in, s->take, deadline_ns);
        const char *want = fake->want[s - fake->steps];
        if (st == STATUS_OK && want != NULL && memcmp(in, want, s->take) != 0)
            break;
        if (st == STATUS_OK)
            st = socket_send(fd, s->answer, s->give, deadline_ns);
    }
    while (fake->holds_on && socket_receive(fd, in, 1, deadline_ns) == STATUS_OK) {
    }
    close(fd);
    return NULL;
}

static store *start(fake_server *fake)
{
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &fake->listen_fd, &fake->port), STATUS_OK);
    ck_assert_int_eq(pthread_create(&fake->thread, NULL, play, fake), 0);
    store_options options = {
        .host = "127.0.0.1", .port = fake->port, .timeout_ms = 200, .connect_timeout_ms = 2000};
    store *client = NULL;
    ck_assert_msg(store_create(&options, &client) == STATUS_OK, "%s", status_text());
    return client;
}

static void stop(fake_server *fake, store *client)
{
    store_destroy(client);
    pthread_join(fake->thread, NULL);
    close(fake->listen_fd);
}

enum {
    WAIT_K = 1 + 8 + 8 + 2, /* WAIT for "/k" */
    GET_K = 1 + 8 + 2,
    CHECK_K = WAIT_K,
    ADD_K = GET_K + 8,
};

/* The key came just before the cancellation: both are answered, the wait ended well, and the next
 * answer is the next request's. */
START_TEST(a_wait_that_ends_while_it_is_canceled)
{
    fake_server fake = {.steps = {{WAIT_K, 0, ""}, {1, 2, "\0\1"}, {CHECK_K, 1, "\0"}}};
    store *client = start(&fake);
    bool there = false;
    status st = store_wait(client, "k", 50);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(store_check(client, "k", &there), STATUS_OK);
    ck_assert(there);
    stop(&fake, client);
}
END_TEST

START_TEST(a_wait_that_is_canceled)
{
    fake_server fake = {.steps = {{WAIT_K, 0, ""}, {1, 1, "\1"}, {CHECK_K, 1, "\1"}}};
    store *client = start(&fake);
    bool there = true;
    ck_assert_int_eq(store_wait(client, "k", 50), STATUS_TIMEOUT);
    ck_assert_int_eq(store_check(client, "k", &there), STATUS_OK);
    ck_assert(!there);
    stop(&fake, client);
}
END_TEST

/* Not even the cancellation is answered: the wait ends all the same. */
START_TEST(a_server_that_has_stopped)
{
    fake_server fake = {.holds_on = true};
    store *client = start(&fake);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(store_wait(client, "k", 50), STATUS_TIMEOUT);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 3500);
    bool there = true;
    ck_assert_int_eq(store_check(client, "k", &there), STATUS_PEER);
    ASSERT_FACTS(status_text(), "127.0.0.1:", "lost");
    stop(&fake, client);
}
END_TEST

/* An answer that came too late would be taken for the next one's. */
START_TEST(a_timeout_ends_the_connection)
{
    fake_server fake = {.holds_on = true};
    store *client = start(&fake);
    int64_t sum = 17, start_ns = clock_now_ns();
    ck_assert_int_eq(store_add(client, "k", 1, &sum), STATUS_TIMEOUT);
    ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 199);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1500);
    ck_assert_int_eq(store_add(client, "k", 1, &sum), STATUS_PEER);
    ck_assert_int_eq(sum, 17);
    stop(&fake, client);
}
END_TEST

START_TEST(a_value_that_is_too_long_is_refused)
{
    fake_server fake = {.steps = {{WAIT_K, 1, "\0"}, {GET_K, 8, "\0\0\0\0\0\1\0\0"}},
                        .holds_on = true};
    store *client = start(&fake);
    void *value = NULL;
    size_t size = 0;
    ck_assert_int_eq(store_get(client, "k", &value, &size), STATUS_PEER);
    ASSERT_FACTS(status_text(), "1099511627776 bytes");
    ck_assert_ptr_null(value);
    stop(&fake, client);
}
END_TEST

START_TEST(half_an_answer_is_the_peer)
{
    fake_server fake = {.steps = {{ADD_K, 3, "abc"}}};
    store *client = start(&fake);
    int64_t sum = 17;
    ck_assert_int_eq(store_add(client, "k", 1, &sum), STATUS_PEER);
    ASSERT_FACTS(status_text(), "3 of 8 bytes");
    ck_assert_int_eq(sum, 17);
    stop(&fake, client);
}
END_TEST

START_TEST(wrong_answers_are_the_peer)
{
    fake_server fake = {.steps = {{WAIT_K, 1, "\7"}}, .holds_on = true};
    store *client = start(&fake);
    ck_assert_int_eq(store_wait(client, "k", 1000), STATUS_PEER);
    ASSERT_FACTS(status_text(), "WAIT", "7");
    stop(&fake, client);
}
END_TEST

/* Somebody else's port: silent, or hanging up. Connecting goes on until its time is over. */
static void *hang_up(void *arg)
{
    const fake_server *fake = arg;
    int64_t deadline_ns = clock_deadline_ns(400);
    while (socket_await(fake->listen_fd, POLLIN, deadline_ns) == STATUS_OK) {
        int fd = -1;
        if (socket_accept(fake->listen_fd, &fd) == STATUS_OK && fd >= 0)
            close(fd);
    }
    return NULL;
}

START_TEST(what_is_no_store_is_not_connected_to)
{
    fake_server fake = {0};
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &fake.listen_fd, &fake.port), STATUS_OK);
    store_options options = {
        .host = "127.0.0.1", .port = fake.port, .timeout_ms = 200, .connect_timeout_ms = 300};
    store *client = NULL;
    char where[64];
    snprintf(where, sizeof where, "no store within 0.3 s: 127.0.0.1:%d: received 0 of 4",
             fake.port);
    for (int silent = 0; silent < 2; silent++) {
        if (!silent)
            ck_assert_int_eq(pthread_create(&fake.thread, NULL, hang_up, &fake), 0);
        int64_t start_ns = clock_now_ns();
        ck_assert_int_eq(store_create(&options, &client), STATUS_TIMEOUT);
        ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 299);
        ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1500);
        if (!silent)
            pthread_join(fake.thread, NULL);
        else
            ck_assert_msg(strstr(status_text(), where) != NULL, "%s", status_text());
        ck_assert_ptr_null(client);
    }
    close(fake.listen_fd);
}
END_TEST

#define LENGTH(c) c "\0\0\0\0\0\0\0" /* 64 bits, little endian */
#define KEY LENGTH("\x0a") "/first_key"
#define BYTES(text) sizeof(text) - 1

/* What torch 2.15's client sends for the same calls, recorded from it. */
START_TEST(requests_are_torchs)
{
    static const char set[] = "\x01" KEY LENGTH("\x0b") "first_value";
    static const char wait[] = "\x06" LENGTH("\x01") KEY;
    static const char get[] = "\x03" KEY;
    static const char add[] = "\x04" LENGTH("\x02") "/n\xf9\xff\xff\xff\xff\xff\xff\xff";
    static const char check[] = "\x05" LENGTH("\x01") KEY;
    static const char compare[] = "\x02" KEY LENGTH("\x0b") "first_value" LENGTH("\x01") "x";
    static const char delete[] = "\x08" KEY;
    static const char join[] = "\x04" LENGTH("\x05") "init/" LENGTH("\x01");
    fake_server fake = {.steps = {{BYTES(join), 8, LENGTH("\x02")},
                                  {BYTES(set), 0, ""},
                                  {BYTES(wait), 1, "\0"},
                                  {BYTES(get), 9, LENGTH("\x01") "v"},
                                  {BYTES(add), 8, LENGTH("\x03")},
                                  {BYTES(check), 1, "\0"},
                                  {BYTES(compare), 9, LENGTH("\x01") "x"},
                                  {BYTES(delete), 8, LENGTH("\x01")},
                                  {1, 8, LENGTH("\x02")}},
                        .want = {join, set, wait, get, add, check, compare, delete, "\x07"}};
    store *client = start(&fake);
    void *value = NULL;
    size_t size = 0;
    int64_t number = 0;
    bool yes = false;
    ck_assert_int_eq(store_join(client), STATUS_OK);
    ck_assert_int_eq(store_set(client, "first_key", "first_value", 11), STATUS_OK);
    ck_assert_int_eq(store_get(client, "first_key", &value, &size), STATUS_OK);
    ck_assert_str_eq(value, "v");
    free(value);
    ck_assert_int_eq(store_add(client, "n", -7, &number), STATUS_OK);
    ck_assert_int_eq(number, 3);
    ck_assert_int_eq(store_check(client, "first_key", &yes), STATUS_OK);
    ck_assert(yes);
    ck_assert_int_eq(store_compare_set(client, "first_key", "first_value", "x", &value, &size),
                     STATUS_OK);
    free(value);
    ck_assert_int_eq(store_delete(client, "first_key", &yes), STATUS_OK);
    ck_assert(yes);
    ck_assert_int_eq(store_num_keys(client, &number), STATUS_OK);
    ck_assert_int_eq(number, 2);
    stop(&fake, client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_client");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, a_wait_that_ends_while_it_is_canceled);
    tcase_add_test(core, a_wait_that_is_canceled);
    tcase_add_test(core, a_server_that_has_stopped);
    tcase_add_test(core, a_timeout_ends_the_connection);
    tcase_add_test(core, a_value_that_is_too_long_is_refused);
    tcase_add_test(core, half_an_answer_is_the_peer);
    tcase_add_test(core, wrong_answers_are_the_peer);
    tcase_add_test(core, what_is_no_store_is_not_connected_to);
    tcase_add_test(core, requests_are_torchs);
    return suite_run(suite);
}
