/* What the store keeps when a launcher starts its ranks again: its own keys and connections. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 5000, SHORT_MS = 100 };

static store_server *server;

static void start_server(void)
{
    ck_assert_msg(store_server_create("127.0.0.1", 0, &server) == STATUS_OK, "%s", status_text());
}

static void stop_server(void)
{
    store_server_destroy(server);
    server = NULL;
}

static store *client_of(const char *prefix)
{
    store *client = NULL;
    store_options how = {.host = "127.0.0.1",
                         .port = store_server_port(server),
                         .prefix = prefix,
                         .timeout_ms = TIMEOUT_MS,
                         .connect_timeout_ms = TIMEOUT_MS};
    ck_assert_msg(store_create(&how, &client) == STATUS_OK, "%s", status_text());
    return client;
}

static bool holds(store *client, const char *key)
{
    bool there = false;
    ck_assert_msg(store_check(client, key, &there) == STATUS_OK, "%s", status_text());
    return there;
}

START_TEST(everything_goes_where_nothing_is_kept)
{
    store *old = client_of("job/0/");
    ck_assert(store_set(old, "address", "x", 1) == STATUS_OK);
    ck_assert(holds(old, "address"));
    store_server_forget(server);
    bool there = false;
    ck_assert(store_check(old, "address", &there) == STATUS_PEER);
    store *anew = client_of("job/0/");
    ck_assert(!holds(anew, "address"));
    ck_assert(store_set(anew, "address", "y", 1) == STATUS_OK);
    ck_assert(holds(anew, "address"));
    store_destroy(old);
    store_destroy(anew);
}
END_TEST

START_TEST(the_launchers_part_stays)
{
    ck_assert(store_server_keep(server, "launcher/") == STATUS_OK);
    store *launcher = client_of("launcher/"), *rank = client_of("");
    ck_assert(store_set(launcher, "node/1", "here", 4) == STATUS_OK);
    for (int i = 0; i < 300; i++) { /* more than the first buckets hold */
        char key[32];
        snprintf(key, sizeof key, i % 3 == 0 ? "launcher/k/%d" : "rank/%d", i);
        ck_assert(store_set(i % 3 == 0 ? launcher : rank, i % 3 == 0 ? key + 9 : key, "v", 1) ==
                  STATUS_OK);
    }
    ck_assert(holds(rank, "rank/1"));
    store_server_forget(server);
    ck_assert(holds(launcher, "node/1")); /* the same connection */
    store *look = client_of("");
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, i % 3 == 0 ? "launcher/k/%d" : "rank/%d", i);
        ck_assert_msg(holds(look, key) == (i % 3 == 0), "%s", key);
    }
    bool there = false;
    ck_assert(store_check(rank, "rank/1", &there) == STATUS_PEER);
    store_destroy(launcher);
    store_destroy(rank);
    store_destroy(look);
}
END_TEST

/* A connection that only reads, or sets others' keys, is a rank's. */
START_TEST(a_store_connection_that_only_reads_is_forgotten)
{
    ck_assert(store_server_keep(server, "launcher/") == STATUS_OK);
    store *reader = client_of("launcher/"), *almost = client_of("launche");
    ck_assert(!holds(reader, "x"));
    ck_assert(store_set(almost, "d", "1", 1) == STATUS_OK);
    ck_assert(holds(almost, "d"));
    store_server_forget(server);
    bool there = false;
    ck_assert(store_check(reader, "x", &there) == STATUS_PEER);
    ck_assert(store_check(almost, "d", &there) == STATUS_PEER);
    store_destroy(reader);
    store_destroy(almost);
}
END_TEST

/* A dead rank's last words, sent and not yet read, come to nobody. */
START_TEST(a_dead_ranks_unread_requests_are_dropped)
{
    uint8_t set[STORE_GREETING_BYTES + 1 + 8 + 4 + 8 + 1] = {STORE_VALIDATE};
    size_t at = 1;
    store_wire_put_u32(set + at, STORE_MAGIC);
    at += 4;
    set[at++] = STORE_SET;
    store_wire_put_u64(set + at, 4);
    memcpy(set + at + 8, "/key", 4);
    store_wire_put_u64(set + at + 12, 1);
    set[at + 20] = 'v';
    for (int i = 0; i < 50; i++) {
        int fd = -1;
        ck_assert(socket_connect("127.0.0.1", store_server_port(server),
                                 clock_deadline_ns(TIMEOUT_MS), &fd) == STATUS_OK);
        ck_assert(socket_send(fd, set, sizeof set, clock_deadline_ns(TIMEOUT_MS)) == STATUS_OK);
        close(fd);
        store_server_forget(server);
    }
    store *look = client_of("");
    ck_assert(!holds(look, "key"));
    store_destroy(look);
}
END_TEST

/* One of a rank that has ended is no rank's. */
START_TEST(a_dead_ranks_queues_are_dropped)
{
    uint8_t greeting[] = {0, 0xce, 0xf7, 0x85, 0x3c}, left[8];
    uint8_t push[19] = {STORE_QUEUE_PUSH, 1, [9] = 'q', 1, [18] = 'v'};
    uint8_t length[10] = {STORE_QUEUE_LEN, 1, [9] = 'q'};
    ck_assert(store_server_keep(server, "launcher/") == STATUS_OK);
    for (int i = 0; i < 2; i++) {
        int fd = -1;
        int64_t deadline_ns = clock_deadline_ns(TIMEOUT_MS);
        ck_assert(socket_connect("127.0.0.1", store_server_port(server), deadline_ns, &fd) ==
                  STATUS_OK);
        ck_assert(socket_send(fd, greeting, sizeof greeting, deadline_ns) == STATUS_OK);
        if (i == 0)
            ck_assert(socket_send(fd, push, sizeof push, deadline_ns) == STATUS_OK);
        ck_assert(socket_send(fd, length, sizeof length, deadline_ns) == STATUS_OK);
        ck_assert(socket_receive(fd, left, sizeof left, deadline_ns) == STATUS_OK);
        ck_assert_uint_eq(store_wire_u64(left), i == 0 ? 1 : 0);
        store_server_forget(server);
        close(fd);
    }
}
END_TEST

START_TEST(waiting_ends)
{
    ck_assert(store_server_keep(server, "launcher/") == STATUS_OK);
    store *launcher = client_of("launcher/");
    ck_assert(store_set(launcher, "a", "1", 1) == STATUS_OK);
    ck_assert(store_wait(launcher, "never", SHORT_MS) == STATUS_TIMEOUT);
    store_server_forget(server);
    ck_assert(store_wait(launcher, "never", SHORT_MS) == STATUS_TIMEOUT);
    ck_assert(holds(launcher, "a"));
    store_destroy(launcher);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_forget");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start_server, stop_server);
    tcase_add_test(core, everything_goes_where_nothing_is_kept);
    tcase_add_test(core, the_launchers_part_stays);
    tcase_add_test(core, a_store_connection_that_only_reads_is_forgotten);
    tcase_add_test(core, a_dead_ranks_unread_requests_are_dropped);
    tcase_add_test(core, a_dead_ranks_queues_are_dropped);
    tcase_add_test(core, waiting_ends);
    return suite_run(suite);
}
