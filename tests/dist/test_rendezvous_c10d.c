/* The rendezvous service on our store: what nodes see of each other, and what is no such store. */
#include "base/clock.h"
#include "dist/elastic/rdzv_ops.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "tests/support/facts.h"
#include "tests/support/liar.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 3000, TTL_MS = 10000 };

static const rdzv_ops *const ops = &rdzv_c10d;
static store_server *server;
static char endpoint[64];

static void start(void)
{
    ck_assert_msg(store_server_create("127.0.0.1", 0, &server) == STATUS_OK, "%s", status_text());
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", store_server_port(server));
}

static void stop(void)
{
    store_server_destroy(server);
}

static status try_open(const char *where, const char *run_id, const char *id, void **node)
{
    rdzv_service_options options = {.endpoints = where,
                                    .run_id = run_id,
                                    .node_id = id,
                                    .ttl_ms = TTL_MS,
                                    .timeout_ms = TIMEOUT_MS};
    return ops->open(&options, node);
}

static void *node_of(const char *where, const char *id)
{
    void *node = NULL;
    ck_assert_msg(try_open(where, "job", id, &node) == STATUS_OK, "%s", status_text());
    return node;
}

static void put(void *node, const char *value, bool runs_nothing)
{
    ck_assert_msg(ops->put_node(node, value, runs_nothing) == STATUS_OK, "%s", status_text());
}

static rdzv_view look(void *node, rdzv_scope scope, int64_t after, int64_t wait_ms)
{
    rdzv_view view;
    ck_assert_msg(ops->look(node, scope, after, wait_ms, &view) == STATUS_OK, "%s", status_text());
    return view;
}

static int nodes_seen(void *node)
{
    rdzv_view view = look(node, RDZV_ALL, -1, 0);
    int n = view.n;
    rdzv_view_free(&view);
    return n;
}

static bool set(void *node, int64_t revision, const char *state)
{
    bool done = false;
    ck_assert_msg(ops->set_state(node, revision, state, &done) == STATUS_OK, "%s", status_text());
    return done;
}

START_TEST(nodes_see_each_other_and_one_sets_the_state)
{
    void *a = node_of(endpoint, "a"), *b = node_of(endpoint, "b");
    put(b, "{\"of\":\"b\"}", true);
    put(a, "{\"of\":\"a\"}", true);
    rdzv_view view = look(a, RDZV_ALL, -1, 0);
    ck_assert_int_eq(view.n, 2);
    ck_assert_ptr_null(view.state);
    ck_assert_int_eq(view.state_revision, 0);
    ck_assert_str_eq(view.nodes[0].id, "a");
    ck_assert_str_eq(view.nodes[0].value, "{\"of\":\"a\"}");
    ck_assert_int_lt(view.nodes[1].order, view.nodes[0].order); /* b was first */
    int64_t order = view.nodes[0].order, before = view.revision;
    rdzv_view_free(&view);
    ck_assert(set(a, 0, "{\"round\":1}"));
    ck_assert(!set(b, 0, "{\"round\":1}"));
    put(a, "more", false);
    put(a, "again", false);
    view = look(b, RDZV_ALL, before, 1000);
    ck_assert_str_eq(view.state, "{\"round\":1}");
    ck_assert_int_eq(view.nodes[0].order, order);
    ck_assert_str_eq(view.nodes[0].value, "again");
    ck_assert(set(b, view.state_revision, "{\"round\":2}"));
    ck_assert(!set(a, view.state_revision, "{\"round\":2}"));
    rdzv_view_free(&view);
    view = look(a, RDZV_STATE, -1, 0);
    ck_assert_int_eq(view.n, 0);
    ck_assert_str_eq(view.state, "{\"round\":2}");
    int64_t revision = view.revision;
    rdzv_view_free(&view);
    put(b, "other", true); /* no change of the state */
    view = look(a, RDZV_STATE, revision, 100);
    ck_assert_int_eq(view.revision, 0);
    ck_assert_ptr_null(view.state);
    view = look(b, RDZV_STATE, -1, 0); /* the key's second revision, not the one that made it */
    ck_assert(set(b, view.state_revision, "{\"round\":3}"));
    rdzv_view_free(&view);
    ops->close(a);
    ops->close(b);
}
END_TEST

START_TEST(a_node_that_runs_nothing_goes_with_its_connection)
{
    void *a = node_of(endpoint, "a"), *b = node_of(endpoint, "b");
    void *c = node_of(endpoint, "c");
    put(a, "", true);
    put(b, "", false);
    put(c, "", true);
    ck_assert(ops->keep_alive(a) == STATUS_OK);
    ops->close(a);
    ops->close(b);
    int64_t until_ns = clock_deadline_ns(1000);
    while (nodes_seen(c) != 2 && !clock_passed(until_ns))
        clock_sleep_ms(5);
    ck_assert_int_eq(nodes_seen(c), 2);
    ck_assert(ops->remove_node(c) == STATUS_OK);
    ck_assert_int_eq(nodes_seen(c), 1);
    ck_assert(ops->keep_alive(c) == STATUS_INVALID);
    ops->close(c);
}
END_TEST

START_TEST(jobs_are_apart_whatever_their_ids)
{
    static const char *const ids[] = {"a", "a/nodes", "a/b", "a%2Fb", "ab"};
    enum { N = sizeof ids / sizeof ids[0] };
    void *nodes[N];
    for (int i = 0; i < N; i++) {
        ck_assert(try_open(endpoint, ids[i], "n", &nodes[i]) == STATUS_OK);
        put(nodes[i], ids[i], true);
        ck_assert(set(nodes[i], 0, ids[i]));
    }
    for (int i = 0; i < N; i++) {
        rdzv_view view = look(nodes[i], RDZV_ALL, -1, 0);
        ck_assert_int_eq(view.n, 1);
        ck_assert_str_eq(view.nodes[0].value, ids[i]);
        ck_assert_str_eq(view.state, ids[i]);
        rdzv_view_free(&view);
        ops->close(nodes[i]);
    }
}
END_TEST

START_TEST(endpoints_are_checked)
{
    static const char *const bad[] = {"", ":1", "h:x", "h:70000"};
    void *node = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(try_open(bad[i], "job", "n", &node) == STATUS_INVALID, "\"%s\"", bad[i]);
    ck_assert(try_open("h:1", "job", "n/m", &node) == STATUS_INVALID);
    char name[32];
    snprintf(name, sizeof name, "127.0.0.1:%d", port_find_free());
    node = node_of(name, "n");
    ck_assert_int_eq(ops->put_node(node, "", true), STATUS_REFUSED);
    ASSERT_FACTS(status_text(), name);
    ops->close(node);
    node = node_of("no.such.host.invalid:1", "n");
    ck_assert_int_eq(ops->keep_alive(node), STATUS_UNKNOWN_HOST);
    ops->close(node);
}
END_TEST

/* It has no record of who was at the one before, nor the state. */
START_TEST(a_store_that_is_started_anew_is_another_one)
{
    int port = store_server_port(server);
    void *a = node_of(endpoint, "a");
    put(a, "", false);
    ck_assert(set(a, 0, "{\"round\":3}"));
    rdzv_view view = look(a, RDZV_ALL, -1, 0);
    int64_t state_revision = view.state_revision;
    rdzv_view_free(&view);
    stop();
    server = NULL;
    ck_assert_int_eq(ops->look(a, RDZV_ALL, -1, 0, &view), STATUS_PEER);
    ck_assert_int_eq(ops->keep_alive(a), STATUS_REFUSED);
    ck_assert(store_server_create("127.0.0.1", port, &server) == STATUS_OK);
    ck_assert_int_eq(ops->keep_alive(a), STATUS_INVALID);
    ASSERT_FACTS(status_text(), endpoint);
    ck_assert(!set(a, state_revision, "{\"round\":4}"));
    put(a, "again", false);
    view = look(a, RDZV_ALL, -1, 0);
    ck_assert_int_eq(view.n, 1);
    ck_assert_ptr_null(view.state);
    rdzv_view_free(&view);
    ops->close(a);
}
END_TEST

/* As any store but ours: it answers the echo, and closes at a request that it does not know. */
static void *play_torch(void *arg)
{
    int64_t deadline_ns = clock_deadline_ns(5000);
    const int *listen_fd = arg;
    for (int i = 0; i < 2; i++) {
        uint8_t in[11];
        int fd = -1;
        if (socket_await(*listen_fd, POLLIN, deadline_ns) != STATUS_OK ||
            socket_accept(*listen_fd, &fd) != STATUS_OK || fd < 0)
            return NULL;
        if (socket_receive(fd, in, 10, deadline_ns) == STATUS_OK &&
            socket_send(fd, in + 6, 4, deadline_ns) == STATUS_OK)
            (void)socket_receive(fd, in, 1, deadline_ns);
        close(fd);
    }
    return NULL;
}

START_TEST(a_store_without_leases_is_named)
{
    int listen_fd, port;
    pthread_t thread;
    char name[32];
    ck_assert(socket_listen("127.0.0.1", 0, &listen_fd, &port) == STATUS_OK);
    ck_assert_int_eq(pthread_create(&thread, NULL, play_torch, &listen_fd), 0);
    snprintf(name, sizeof name, "127.0.0.1:%d", port);
    void *node = node_of(name, "n");
    ck_assert_int_eq(ops->put_node(node, "", true), STATUS_INVALID);
    ASSERT_FACTS(status_text(), name, "torchrun", "mnist_ddp");
    ops->close(node);
    pthread_join(thread, NULL);
    close(listen_fd);
}
END_TEST

START_TEST(what_is_no_store_is_named)
{
    static const char *const rows[][2] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "\"HTTP/1.1 400 Bad Request"},
        {"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH-2.0-OpenSSH_9.2p1"},
        {"\x15\x03\x01 of TLS", "\"\\x15\\x03"},
        {"no!\n", "\"no!\\n\""},
    };
    liar l;
    char name[32];
    liar_start(&l, rows[_i][0], NULL);
    snprintf(name, sizeof name, "127.0.0.1:%d", l.port);
    void *node = node_of(name, "n");
    ck_assert_int_eq(ops->put_node(node, "", true), STATUS_INVALID);
    ASSERT_FACTS(status_text(), name, "no store", rows[_i][1]);
    ops->close(node);
    liar_stop(&l);
}
END_TEST

START_TEST(who_closes_at_the_greeting_is_named)
{
    liar l;
    char name[32];
    liar_start(&l, "", NULL);
    snprintf(name, sizeof name, "127.0.0.1:%d", l.port);
    void *node = node_of(name, "n");
    ck_assert_int_eq(ops->put_node(node, "", true), STATUS_PEER);
    ASSERT_FACTS(status_text(), name, "store's greeting");
    ops->close(node);
    liar_stop(&l);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rendezvous_c10d");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start, stop);
    tcase_add_test(core, nodes_see_each_other_and_one_sets_the_state);
    tcase_add_test(core, a_node_that_runs_nothing_goes_with_its_connection);
    tcase_add_test(core, jobs_are_apart_whatever_their_ids);
    tcase_add_test(core, endpoints_are_checked);
    tcase_add_test(core, a_store_that_is_started_anew_is_another_one);
    tcase_add_test(core, a_store_without_leases_is_named);
    tcase_add_loop_test(core, what_is_no_store_is_named, 0, 4);
    tcase_add_test(core, who_closes_at_the_greeting_is_named);
    return suite_run(suite);
}
