/* The rendezvous by etcd: a real one, one that dies and comes back, three that lose one. */
#include "base/clock.h"
#include "dist/elastic/rdzv_ops.h"
#include "tests/support/etcd_server.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TTL_MS = 1000, TIMEOUT_MS = 1000, LONG_MS = 10000, NEWS_MS = 400 };

static const rdzv_ops *const ops = &rdzv_etcd;
static etcd_server etcd;

static void start_etcd(void)
{
    etcd_server_start(&etcd, 1);
}

static void start_cluster(void)
{
    etcd_server_start(&etcd, 3);
}

static void stop_etcd(void)
{
    etcd_server_stop(&etcd);
}

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s: %s", status_name(st), status_text());
}

static bool is_retryable(status st)
{
    return st == STATUS_REFUSED || st == STATUS_TIMEOUT || st == STATUS_PEER ||
           st == STATUS_UNKNOWN_HOST;
}

/* One that asks `endpoints`. */
static void *client_at(const char *endpoints, const char *run_id, const char *node_id, int wake_fd)
{
    const rdzv_service_options options = {.endpoints = endpoints,
                                          .run_id = run_id,
                                          .node_id = node_id,
                                          .ttl_ms = TTL_MS,
                                          .timeout_ms = TIMEOUT_MS,
                                          .wake_fd = wake_fd};
    void *self = NULL;
    ok(ops->open(&options, &self));
    return self;
}

static void *client(const char *run_id, const char *node_id)
{
    return client_at(etcd.endpoints, run_id, node_id, 0);
}

static rdzv_view look(void *self)
{
    rdzv_view view;
    ok(ops->look(self, RDZV_ALL, -1, 0, &view));
    return view;
}

/* The call succeeds within LONG_MS: an etcd that has just begun, or lost its leader, may not answer
 * at once. */
#define OK_IN_TIME(call) \
    do { \
        int64_t deadline_ns = clock_deadline_ns(LONG_MS); \
        status st_; \
        while (is_retryable(st_ = (call)) && !clock_passed(deadline_ns)) \
            clock_sleep_ms(20); \
        ok(st_); \
    } while (0)

static int64_t order_of(const rdzv_view *view, const char *id)
{
    for (int i = 0; i < view->n; i++)
        if (strcmp(view->nodes[i].id, id) == 0)
            return view->nodes[i].order;
    return 0;
}

START_TEST(a_job_is_what_its_nodes_put)
{
    void *b = client("job", "b"), *a = client("job", "a/1"), *other = client("job/node", "c");
    rdzv_view view = look(a);
    ck_assert_ptr_null(view.state);
    ck_assert_int_eq(view.state_revision, 0);
    ck_assert_int_eq(view.n, 0);
    int64_t before = view.revision;
    rdzv_view_free(&view);
    ok(ops->put_node(b, "{\"b\":1}", true));
    ok(ops->put_node(a, "", false));
    ok(ops->put_node(other, "{}", true));
    ok(ops->put_node(b, "{\"b\":\"\xc3\xa4\"}", false));
    view = look(a);
    ck_assert_int_eq(view.n, 2);
    ck_assert_int_gt(view.revision, before);
    ck_assert_int_gt(order_of(&view, "b"), 0);
    ck_assert_int_gt(order_of(&view, "a/1"), order_of(&view, "b"));
    ck_assert_str_eq(view.nodes[0].id, "a/1");
    ck_assert_str_eq(view.nodes[0].value, "");
    ck_assert_str_eq(view.nodes[1].value, "{\"b\":\"\xc3\xa4\"}");
    rdzv_view_free(&view);
    ok(ops->remove_node(b));
    ok(ops->remove_node(b));
    view = look(a);
    ck_assert_int_eq(view.n, 1);
    rdzv_view_free(&view);
    ck_assert_int_eq(ops->keep_alive(b), STATUS_INVALID);
    ops->close(a);
    ops->close(b);
    ops->close(other);
}
END_TEST

START_TEST(a_state_is_replaced_only_as_it_was_seen)
{
    void *a = client("state", "a"), *b = client("state", "b");
    bool set = false;
    ok(ops->set_state(a, 7, "none", &set));
    ck_assert(!set);
    ok(ops->set_state(a, 0, "first", &set));
    ck_assert(set);
    ok(ops->set_state(b, 0, "also first", &set));
    ck_assert(!set);
    rdzv_view view = look(b);
    ck_assert_str_eq(view.state, "first");
    ok(ops->set_state(b, view.state_revision, "second", &set));
    ck_assert(set);
    ok(ops->set_state(a, view.state_revision, "also second", &set));
    ck_assert(!set);
    rdzv_view_free(&view);
    view = look(a);
    ck_assert_str_eq(view.state, "second");
    rdzv_view_free(&view);
    ops->close(a);
    ops->close(b);
}
END_TEST

enum { RACERS = 4, WINS = 10 };

/* Counts up WINS times, whatever the others do. */
static void *race(void *arg)
{
    void *self = client("race", arg);
    for (int wins = 0; wins < WINS;) {
        rdzv_view view = look(self);
        char next[16];
        bool set = false;
        snprintf(next, sizeof next, "%d", view.state == NULL ? 1 : atoi(view.state) + 1);
        ok(ops->set_state(self, view.state_revision, next, &set));
        wins += set;
        rdzv_view_free(&view);
    }
    ops->close(self);
    return NULL;
}

START_TEST(of_many_that_race_one_wins_each_time)
{
    static char names[RACERS][2] = {"a", "b", "c", "d"};
    pthread_t threads[RACERS];
    char want[16];
    for (int i = 0; i < RACERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, race, names[i]), 0);
    for (int i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    void *self = client("race", "e");
    rdzv_view view = look(self);
    snprintf(want, sizeof want, "%d", RACERS * WINS);
    ck_assert_str_eq(view.state, want);
    rdzv_view_free(&view);
    ops->close(self);
}
END_TEST

/* Renewed for longer than it lasts, then not; the record that comes after is a new one. */
START_TEST(a_lease_ends_by_etcds_clock)
{
    void *a = client("lease", "a"), *b = client("lease", "b");
    int64_t began_ns = 0; /* the latest renewal */
    ok(ops->put_node(a, "1", false));
    for (int i = 0; i < 6; i++) {
        clock_sleep_ms(TTL_MS / 4);
        began_ns = clock_now_ns();
        ok(ops->keep_alive(a));
    }
    rdzv_view view = look(b);
    int64_t order = order_of(&view, "a"), revision = view.revision;
    ck_assert_int_gt(order, 0);
    rdzv_view_free(&view);
    ok(ops->look(b, RDZV_ALL, revision, LONG_MS, &view));
    double waited_s = clock_seconds(clock_now_ns() - began_ns);
    ck_assert_int_eq(view.n, 0);
    ck_assert_msg(waited_s > 0.5 && waited_s < 4, "the lease of 1 s ended after %g s", waited_s);
    rdzv_view_free(&view);
    ck_assert_int_eq(ops->keep_alive(a), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "etcd", "lease", "1 s");
    ok(ops->put_node(a, "2", false));
    view = look(b);
    ck_assert_int_gt(order_of(&view, "a"), order);
    rdzv_view_free(&view);
    ok(ops->keep_alive(a));
    ops->close(a);
    ops->close(b);
}
END_TEST

/* What another thread does while the test waits. */
typedef enum deed { PUT_NODE, SET_STATE, REMOVE_NODE, WAKE } deed;

typedef struct other {
    deed deed;
    void *self;
    int fd;
    pthread_t thread;
} other;

static void *act(void *arg)
{
    other *o = arg;
    bool set = false;
    clock_sleep_ms(100);
    switch (o->deed) {
    case PUT_NODE:
        ok(ops->put_node(o->self, "more", true));
        break;
    case SET_STATE:
        ok(ops->set_state(o->self, 0, "on", &set));
        break;
    case REMOVE_NODE:
        ok(ops->remove_node(o->self));
        break;
    case WAKE:
        ck_assert_int_eq(write(o->fd, "", 1), 1);
        break;
    }
    return NULL;
}

START_TEST(a_look_waits_for_news)
{
    static const struct {
        deed deed;
        rdzv_scope scope;
        bool ends; /* the wait, long before its time */
    } rows[] = {{PUT_NODE, RDZV_ALL, true},      {SET_STATE, RDZV_ALL, true},
                {REMOVE_NODE, RDZV_ALL, true},   {WAKE, RDZV_ALL, true},
                {PUT_NODE, RDZV_STATE, false},   {SET_STATE, RDZV_STATE, true},
                {REMOVE_NODE, RDZV_STATE, false}};
    int wake[2];
    char run_id[16];
    ck_assert_int_eq(pipe(wake), 0);
    snprintf(run_id, sizeof run_id, "news%d", _i);
    other o = {.deed = rows[_i].deed, .self = client(run_id, "b"), .fd = wake[1]};
    void *self = client_at(etcd.endpoints, run_id, "a", wake[0]);
    rdzv_view view;
    ok(ops->put_node(o.self, "one", true));
    ok(ops->look(self, rows[_i].scope, -1, LONG_MS, &view)); /* at once */
    int64_t revision = view.revision;
    rdzv_view_free(&view);
    int64_t began_ns = clock_now_ns();
    ck_assert_int_eq(pthread_create(&o.thread, NULL, act, &o), 0);
    ok(ops->look(self, rows[_i].scope, revision, rows[_i].ends ? LONG_MS : NEWS_MS, &view));
    int64_t waited_ms = (clock_now_ns() - began_ns) / 1000000;
    pthread_join(o.thread, NULL);
    ck_assert_msg(rows[_i].ends ? waited_ms >= 90 && waited_ms < LONG_MS / 2
                                : waited_ms >= NEWS_MS - 5,
                  "it waited %d ms", (int)waited_ms);
    ck_assert_int_eq(view.state != NULL, rows[_i].deed == SET_STATE);
    ck_assert_int_eq(view.n, rows[_i].scope == RDZV_STATE || rows[_i].deed == REMOVE_NODE ? 0 : 1);
    rdzv_view_free(&view);
    ops->close(self);
    ops->close(o.self);
    close(wake[0]);
    close(wake[1]);
}
END_TEST

/* Changes before the look that waits are news, too. */
START_TEST(no_change_is_missed_between_two_looks)
{
    void *a = client("between", "a"), *b = client("between", "b");
    rdzv_view view = look(a);
    int64_t revision = view.revision, began_ns = clock_now_ns();
    rdzv_view_free(&view);
    ok(ops->put_node(b, "one", true));
    ok(ops->remove_node(b));
    ok(ops->look(a, RDZV_ALL, revision, LONG_MS, &view));
    ck_assert_int_lt(clock_now_ns() - began_ns, (int64_t)LONG_MS * 1000000 / 2);
    ck_assert_int_eq(view.n, 0);
    ck_assert_int_gt(view.revision, revision);
    rdzv_view_free(&view);
    ops->close(a);
    ops->close(b);
}
END_TEST

/* Its records, state and leases are as they were. */
static void *kill_etcd(void *arg)
{
    (void)arg;
    clock_sleep_ms(200);
    etcd_server_kill(&etcd, 0);
    return NULL;
}

START_TEST(an_etcd_that_dies_and_comes_back_goes_on)
{
    void *self = client("restart", "a");
    pthread_t thread;
    bool set = false;
    rdzv_view view;
    OK_IN_TIME(ops->look(self, RDZV_ALL, -1, 0, &view));
    rdzv_view_free(&view);
    OK_IN_TIME(ops->put_node(self, "here", false));
    OK_IN_TIME(ops->set_state(self, 0, "round 1", &set));
    view = look(self);
    int64_t order = order_of(&view, "a"), revision = view.revision;
    int64_t state_revision = view.state_revision;
    rdzv_view_free(&view);

    int64_t began_ns = clock_now_ns();
    ck_assert_int_eq(pthread_create(&thread, NULL, kill_etcd, NULL), 0);
    status st = ops->look(self, RDZV_ALL, revision, LONG_MS, &view);
    ck_assert_msg(is_retryable(st), "%s: %s", status_name(st), status_text());
    ck_assert_int_lt(clock_now_ns() - began_ns, 1000 * 1000000LL);
    pthread_join(thread, NULL);
    ck_assert_int_eq(ops->keep_alive(self), STATUS_REFUSED);
    ASSERT_FACTS(status_text(), "etcd", etcd.endpoints);

    etcd_server_restart(&etcd, 0);
    OK_IN_TIME(ops->look(self, RDZV_ALL, -1, 0, &view));
    ck_assert_int_eq(order_of(&view, "a"), order);
    ck_assert_str_eq(view.state, "round 1");
    ck_assert_int_eq(view.state_revision, state_revision);
    rdzv_view_free(&view);
    OK_IN_TIME(ops->keep_alive(self));
    ok(ops->set_state(self, state_revision, "round 2", &set));
    ck_assert(set);
    ops->close(self);
}
END_TEST

/* The member that is asked dies: the next call that succeeds is another member's. */
START_TEST(one_member_of_three_may_die)
{
    void *self = client("members", "a"),
         *b = client_at(strchr(etcd.endpoints, ',') + 1, "members", "b", 0);
    rdzv_view view;
    bool set = false;
    OK_IN_TIME(ops->look(self, RDZV_ALL, -1, 0, &view));
    rdzv_view_free(&view);
    OK_IN_TIME(ops->put_node(self, "here", false));
    OK_IN_TIME(ops->set_state(self, 0, "round 1", &set));
    etcd_server_kill(&etcd, 0);
    void *late = client("members", "c");
    ck_assert_int_eq(ops->keep_alive(late), STATUS_INVALID); /* it has no lease */
    ck_assert_int_eq(ops->look(late, RDZV_ALL, -1, 0, &view), STATUS_REFUSED);
    OK_IN_TIME(ops->look(late, RDZV_ALL, -1, 0, &view));
    ck_assert_str_eq(view.state, "round 1");
    ck_assert_int_eq(view.n, 1);
    OK_IN_TIME(ops->keep_alive(self));
    OK_IN_TIME(ops->set_state(b, view.state_revision, "round 2", &set));
    rdzv_view_free(&view);
    OK_IN_TIME(ops->look(b, RDZV_STATE, -1, 0, &view));
    ck_assert_str_eq(view.state, "round 2"); /* `set` is that of the last try */
    rdzv_view_free(&view);
    ops->close(self);
    ops->close(b);
    ops->close(late);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rendezvous_etcd");
    const char *missing = etcd_server_missing();
    TCase *real = suite_case(suite, "a real etcd", 30), *restart = suite_case(suite, "restart", 30);
    TCase *members = suite_case(suite, "three members", 30);
    if (missing == NULL) {
        tcase_add_unchecked_fixture(real, start_etcd, stop_etcd);
        tcase_add_checked_fixture(restart, start_etcd, stop_etcd);
        tcase_add_checked_fixture(members, start_cluster, stop_etcd);
    }
    suite_add(real, a_job_is_what_its_nodes_put, 0, missing);
    suite_add(real, a_state_is_replaced_only_as_it_was_seen, 0, missing);
    suite_add(real, of_many_that_race_one_wins_each_time, 0, missing);
    suite_add(real, a_lease_ends_by_etcds_clock, 0, missing);
    suite_add_all(real, a_look_waits_for_news, 7, missing);
    suite_add(real, no_change_is_missed_between_two_looks, 0, missing);
    suite_add(restart, an_etcd_that_dies_and_comes_back_goes_on, 0, missing);
    suite_add(members, one_member_of_three_may_die, 0, missing);
    return suite_run(suite);
}
