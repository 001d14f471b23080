/* The store's watched keys: revisions, leases by time and by connection, and who is woken. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 5000, TTL_MS = 200, LONG_MS = 60000 };

static store_server *server;
static store *one, *two;

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

static void start(void)
{
    ck_assert_msg(store_server_create("127.0.0.1", 0, &server) == STATUS_OK, "%s", status_text());
    one = client_of("job/");
    two = client_of("job/");
}

static void stop(void)
{
    store_destroy(one);
    store_destroy(two);
    store_server_destroy(server);
}

static int64_t put(store *client, const char *key, const char *value, int64_t expected)
{
    int64_t revision = -1;
    store_put_options how = {.value = value, .expected = expected};
    ck_assert_msg(store_put(client, key, &how, &revision) == STATUS_OK, "%s", status_text());
    return revision;
}

static void put_leased(store *client, const char *key, int64_t ttl_ms, bool goes_with_connection)
{
    int64_t revision = 0;
    store_put_options how = {.value = "v",
                             .expected = -1,
                             .ttl_ms = ttl_ms,
                             .goes_with_connection = goes_with_connection};
    ck_assert_msg(store_put(client, key, &how, &revision) == STATUS_OK, "%s", status_text());
    ck_assert_int_gt(revision, 0);
}

static store_watch_answer watch(store *client, const char *prefix, int64_t after, int64_t wait_ms)
{
    store_watch_answer answer;
    store_watch_options how = {.prefix = prefix, .after = after, .wait_ms = wait_ms};
    ck_assert_msg(store_watch(client, &how, &answer) == STATUS_OK, "%s", status_text());
    return answer;
}

static int64_t revision_now(store *client)
{
    store_watch_answer answer = watch(client, "", -1, 0);
    int64_t revision = answer.revision;
    store_watch_free(&answer);
    return revision;
}

static bool is_there(store *client, const char *key)
{
    store_watch_answer answer = watch(client, key, -1, 0);
    bool there = answer.n == 1;
    store_watch_free(&answer);
    return there;
}

static void expect_same(store *client, const char *prefix, int64_t after, int64_t wait_ms)
{
    store_watch_answer answer = watch(client, prefix, after, wait_ms);
    ck_assert_int_eq(answer.revision, 0);
    ck_assert_uint_eq(answer.n, 0);
    store_watch_free(&answer);
}

START_TEST(each_change_has_a_revision)
{
    int64_t start = revision_now(one);
    ck_assert_int_gt(start, 0);
    int64_t a = put(one, "a", "1", -1), b = put(two, "b", "2", 0), c = put(one, "a", "3", a);
    ck_assert_int_eq(a, start + 1);
    ck_assert_int_eq(b, start + 2);
    ck_assert_int_eq(c, start + 3);
    ck_assert_int_eq(put(one, "a", "4", a), 0); /* it was set since */
    ck_assert_int_eq(put(one, "a", "4", 0), 0);
    ck_assert_int_eq(put(one, "new", "4", 7), 0);
    store_watch_answer answer = watch(two, "", start, 0);
    ck_assert_int_eq(answer.revision, c);
    ck_assert_uint_eq(answer.n, 2);
    ck_assert_str_eq(answer.keys[0].key, "a");
    ck_assert_str_eq(answer.keys[0].value, "3");
    ck_assert_int_eq(answer.keys[0].created, a);
    ck_assert_int_eq(answer.keys[0].set, c);
    ck_assert_str_eq(answer.keys[1].key, "b");
    ck_assert_int_eq(answer.keys[1].created, b);
    store_watch_free(&answer);
    bool there = false;
    ck_assert(store_remove(one, "a", &there) == STATUS_OK && there);
    ck_assert(store_remove(one, "a", &there) == STATUS_OK && !there);
    ck_assert_int_eq(revision_now(one), c + 1);
    ck_assert_int_eq(put(one, "a", "5", 0), c + 2); /* it is a new one */
}
END_TEST

START_TEST(a_prefix_is_a_folder_or_one_key)
{
    put(one, "nodes/a", "", -1);
    put(one, "nodes/b", "", -1);
    put(one, "nodes", "", -1);
    put(one, "nodes2", "", -1);
    store_watch_answer folder = watch(one, "nodes/", -1, 0), key = watch(one, "nodes", -1, 0);
    ck_assert_uint_eq(folder.n, 2);
    ck_assert_uint_eq(key.n, 1);
    ck_assert_str_eq(key.keys[0].key, "nodes");
    store_watch_free(&folder);
    store_watch_free(&key);
    store *other = client_of("job2/");
    store_watch_answer none = watch(other, "", -1, 0);
    ck_assert_uint_eq(none.n, 0);
    store_watch_free(&none);
    store_destroy(other);
}
END_TEST

/* torch's requests do not see them, nor do ours see torch's. */
START_TEST(other_keys_are_apart)
{
    int64_t n = -1, revision = revision_now(one);
    ck_assert(store_set(one, "k", "x", 1) == STATUS_OK);
    expect_same(one, "", revision, 0);
    put(one, "k", "watched", -1);
    ck_assert(store_num_keys(one, &n) == STATUS_OK);
    ck_assert_int_eq(n, 1);
    char *text = NULL;
    ck_assert(store_try_get(two, "k", &text) == STATUS_OK);
    ck_assert_str_eq(text, "x");
    free(text);
}
END_TEST

START_TEST(a_lease_ends_in_time)
{
    int64_t start_ns = clock_now_ns();
    int64_t revision = revision_now(two);
    put_leased(one, "a", TTL_MS, false);
    store_watch_answer answer = watch(two, "", revision + 1, TIMEOUT_MS);
    double took_ms = clock_seconds(clock_now_ns() - start_ns) * 1e3;
    ck_assert_int_eq(answer.revision, revision + 2);
    ck_assert_uint_eq(answer.n, 0);
    ck_assert_double_ge(took_ms, TTL_MS);
    ck_assert_double_le(took_ms, TTL_MS + 1000);
    store_watch_free(&answer);
    bool there = true;
    ck_assert(store_renew(one, "a", &there) == STATUS_OK && !there);
}
END_TEST

START_TEST(a_renewed_lease_goes_on_and_is_no_change)
{
    enum { RENEWED_MS = 1000 }; /* a stall between two renewals is no end */
    bool there = false;
    put_leased(one, "a", RENEWED_MS, false);
    put_leased(one, "b", LONG_MS, false);
    int64_t revision = revision_now(two);
    for (int i = 0; i < 6; i++) {
        clock_sleep_ms(RENEWED_MS / 4);
        ck_assert(store_renew(one, "a", &there) == STATUS_OK && there);
    }
    expect_same(two, "", revision, 0);
    clock_sleep_ms(RENEWED_MS + 50);
    ck_assert(!is_there(two, "a"));
    ck_assert(is_there(two, "b"));
}
END_TEST

START_TEST(a_key_goes_with_its_connection_if_asked_to)
{
    store *third = client_of("job/");
    put_leased(third, "goes", LONG_MS, true);
    put_leased(third, "stays", LONG_MS, false);
    put_leased(third, "taken", LONG_MS, true);
    put_leased(third, "renewed", LONG_MS, true);
    put_leased(one, "taken", LONG_MS, true);
    bool there = false;
    ck_assert(store_renew(one, "renewed", &there) == STATUS_OK && there);
    int64_t revision = revision_now(two), start_ns = clock_now_ns();
    store_destroy(third);
    store_watch_answer answer = watch(two, "", revision, TIMEOUT_MS);
    ck_assert_int_lt((clock_now_ns() - start_ns) / 1000000, 1000);
    ck_assert_uint_eq(answer.n, 3);
    ck_assert_str_eq(answer.keys[0].key, "renewed");
    ck_assert_str_eq(answer.keys[1].key, "stays");
    ck_assert_str_eq(answer.keys[2].key, "taken");
    store_watch_free(&answer);
}
END_TEST

typedef struct watcher {
    pthread_t thread;
    store *client;
    const char *prefix;
    int64_t after;
    int wake_fd;
    store_watch_answer answer;
    int64_t took_ms;
} watcher;

static void *run_watcher(void *arg)
{
    watcher *w = arg;
    int64_t start_ns = clock_now_ns();
    store_watch_options how = {w->prefix, w->after, 3000, w->wake_fd};
    if (store_watch(w->client, &how, &w->answer) != STATUS_OK)
        w->answer = (store_watch_answer){.revision = -1};
    w->took_ms = (clock_now_ns() - start_ns) / 1000000;
    return NULL;
}

static watcher *begin(const char *prefix, int64_t after, int wake_fd)
{
    watcher *w = calloc(1, sizeof *w);
    *w = (watcher){
        .client = client_of("job/"), .prefix = prefix, .after = after, .wake_fd = wake_fd};
    ck_assert_int_eq(pthread_create(&w->thread, NULL, run_watcher, w), 0);
    return w;
}

static void end(watcher *w)
{
    store_watch_free(&w->answer);
    store_destroy(w->client);
    free(w);
}

START_TEST(a_store_change_wakes_only_its_watchers)
{
    int64_t revision = revision_now(one);
    watcher *all = begin("", revision, 0), *state = begin("state", revision, 0);
    watcher *nodes = begin("nodes/", revision, 0);
    clock_sleep_ms(100);
    put(one, "state", "S", 0);
    pthread_join(all->thread, NULL);
    pthread_join(state->thread, NULL);
    ck_assert_int_le(all->took_ms, 1000);
    ck_assert_uint_eq(all->answer.n, 1);
    ck_assert_int_le(state->took_ms, 1000);
    ck_assert_str_eq(state->answer.keys[0].value, "S");
    put(one, "nodes/x", "N", 0);
    pthread_join(nodes->thread, NULL);
    ck_assert_uint_eq(nodes->answer.n, 1); /* state's change had not ended the wait */
    ck_assert_str_eq(nodes->answer.keys[0].key, "nodes/x");
    end(all), end(state), end(nodes);
}
END_TEST

START_TEST(a_watch_ends_in_time_and_says_that_nothing_has_changed)
{
    int64_t revision = revision_now(one), start_ns = clock_now_ns();
    expect_same(one, "", revision, 200);
    int64_t took_ms = (clock_now_ns() - start_ns) / 1000000;
    ck_assert_int_ge(took_ms, 200);
    ck_assert_int_le(took_ms, 1200);
    ck_assert_int_gt(put(one, "a", "", 0), 0); /* the connection goes on */
    /* A revision of another server's is none of this one's. */
    store_watch_answer answer = watch(one, "", revision + 100, TIMEOUT_MS);
    ck_assert_int_eq(answer.revision, revision + 1);
    store_watch_free(&answer);
}
END_TEST

START_TEST(a_watch_can_be_woken)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    watcher *w = begin("", revision_now(one), fds[0]);
    clock_sleep_ms(100);
    ck_assert_int_eq(write(fds[1], "x", 1), 1);
    pthread_join(w->thread, NULL);
    ck_assert_int_le(w->took_ms, 1000);
    ck_assert_int_eq(w->answer.revision, 0);
    ck_assert_int_gt(put(w->client, "a", "", 0), 0); /* and the connection is usable */
    end(w);
}
END_TEST

/* A deleted key leaves nothing. Whoever looks after it is told all the same. */
START_TEST(an_end_between_two_looks_is_seen)
{
    put(one, "nodes/a", "", -1);
    put(one, "nodes/b", "", -1);
    int64_t revision = revision_now(two);
    bool there;
    ck_assert(store_remove(one, "nodes/a", &there) == STATUS_OK);
    store_watch_answer answer = watch(two, "nodes/", revision, TIMEOUT_MS);
    ck_assert_uint_eq(answer.n, 1);
    expect_same(two, "nodes/", answer.revision, 50);
    store_watch_free(&answer);
}
END_TEST

START_TEST(a_thousand_keys_come_whole)
{
    enum { N = 1000 };
    char key[32], value[512];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "nodes/%d", (i * 7) % N);
        put(one, key, value, 0);
    }
    store_watch_answer answer = watch(two, "nodes/", -1, 0);
    ck_assert_uint_eq(answer.n, N);
    for (size_t i = 0; i < N; i++) {
        ck_assert_str_eq(answer.keys[i].value, value);
        ck_assert(i == 0 || strcmp(answer.keys[i - 1].key, answer.keys[i].key) < 0);
    }
    store_watch_free(&answer);
}
END_TEST

/* A rank's restart takes its keys away, and no node's. */
START_TEST(watched_keys_outlive_a_restart_of_the_ranks)
{
    put_leased(one, "a", LONG_MS, true);
    store_server_forget(server);
    bool there = false;
    ck_assert_msg(store_renew(one, "a", &there) == STATUS_OK && there, "%s", status_text());
}
END_TEST

static void raw_request(const uint8_t *data, size_t size)
{
    uint8_t greeting[STORE_GREETING_BYTES] = {STORE_VALIDATE}, byte;
    int fd = -1;
    store_wire_put_u32(greeting + 1, STORE_MAGIC);
    int64_t deadline_ns = clock_deadline_ns(TIMEOUT_MS);
    ck_assert(socket_connect("127.0.0.1", store_server_port(server), deadline_ns, &fd) ==
              STATUS_OK);
    ck_assert(socket_send(fd, greeting, sizeof greeting, deadline_ns) == STATUS_OK);
    ck_assert(socket_send(fd, data, size, deadline_ns) == STATUS_OK);
    ck_assert_int_eq(socket_receive(fd, &byte, 1, deadline_ns), STATUS_PEER);
    close(fd);
}

/* An opcode, a key "k", perhaps a value "v", and numbers. */
static size_t write_request(uint8_t *out, const char *fields, const int64_t *numbers)
{
    size_t at = 0;
    for (const char *f = fields; *f != '\0'; f++) {
        if (*f == 'k' || *f == 'v') {
            store_wire_put_u64(out + at, 1);
            out[at + 8] = (uint8_t)*f;
            at += 9;
        } else {
            store_wire_put_u64(out + at, (uint64_t)*numbers++);
            at += 8;
        }
    }
    return at;
}

START_TEST(nonsense_is_closed)
{
    static const int64_t bad_ttl[] = {-1, -5}, long_ttl[] = {-1, INT64_MAX};
    static const int64_t bad_wait[] = {-1, -1}, long_wait[] = {-1, (int64_t)1 << 40};
    uint8_t r[64] = {STORE_PUT};
    raw_request(r, 1 + write_request(r + 1, "kv88", bad_ttl) + 4);
    raw_request(r, 1 + write_request(r + 1, "kv88", long_ttl) + 4);
    r[0] = STORE_WATCH;
    raw_request(r, 1 + write_request(r + 1, "k88", bad_wait));
    raw_request(r, 1 + write_request(r + 1, "k88", long_wait));
    r[0] = STORE_OWN_END;
    raw_request(r, 1);
    r[0] = STORE_RENEW;
    store_wire_put_u64(r + 1, STORE_KEY_BYTES + 1);
    raw_request(r, 9);
    ck_assert_int_gt(put(one, "a", "", -1), 0);
}
END_TEST

/* The client that wants more is closed; the others go on. */
START_TEST(the_table_has_a_limit)
{
    enum { VALUE = 4 << 20 };
    char *value = malloc(VALUE + 1), key[16];
    memset(value, 'x', VALUE);
    value[VALUE] = '\0';
    status st = STATUS_OK;
    int n = 0;
    for (; n < 20 && st == STATUS_OK; n++) {
        int64_t revision;
        store_put_options how = {.value = value, .expected = -1};
        snprintf(key, sizeof key, "%d", n);
        st = store_put(one, key, &how, &revision);
    }
    ck_assert_int_eq(st, STATUS_PEER);
    ck_assert_int_ge(n, 6);
    store_watch_answer answer = watch(two, "", -1, 0);
    ck_assert_uint_eq(answer.n, (size_t)n - 1);
    store_watch_free(&answer);
    put(two, "0", "", -1);
    ck_assert_int_gt(put(two, "more", "", -1), 0); /* there is room again */
    free(value);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_watch");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start, stop);
    tcase_add_test(core, each_change_has_a_revision);
    tcase_add_test(core, a_prefix_is_a_folder_or_one_key);
    tcase_add_test(core, other_keys_are_apart);
    tcase_add_test(core, a_lease_ends_in_time);
    tcase_add_test(core, a_renewed_lease_goes_on_and_is_no_change);
    tcase_add_test(core, a_key_goes_with_its_connection_if_asked_to);
    tcase_add_test(core, a_store_change_wakes_only_its_watchers);
    tcase_add_test(core, a_watch_ends_in_time_and_says_that_nothing_has_changed);
    tcase_add_test(core, a_watch_can_be_woken);
    tcase_add_test(core, an_end_between_two_looks_is_seen);
    tcase_add_test(core, a_thousand_keys_come_whole);
    tcase_add_test(core, watched_keys_outlive_a_restart_of_the_ranks);
    tcase_add_test(core, nonsense_is_closed);
    tcase_add_test(core, the_table_has_a_limit);
    return suite_run(suite);
}
