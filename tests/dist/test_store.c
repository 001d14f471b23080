/* The store's client against its server.
 *
 * Also a peer for other implementations: --client HOST PORT checks a server that is not ours,
 * --server serves until its input ends. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static store_server *server;

static status connect_to(const char *host, int port, const char *prefix, store **out)
{
    store_options options = {.host = host,
                             .port = port,
                             .prefix = prefix,
                             .timeout_ms = 2000,
                             .connect_timeout_ms = 2000,
                             .describe = "test"};
    return store_create(&options, out);
}

static store *new_client(const char *prefix)
{
    store *client = NULL;
    status st = connect_to("127.0.0.1", store_server_port(server), prefix, &client);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    return client;
}

static void start_server(void)
{
    status st = store_server_create("127.0.0.1", 0, &server);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static void stop_server(void)
{
    store_server_destroy(server);
    server = NULL;
}

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            return FAIL(STATUS_INVALID, "%s is false", #condition); \
    } while (0)

static status expect(store *client, const char *key, const char *want)
{
    void *value = NULL;
    size_t size = 0;
    TRY(store_get(client, key, &value, &size));
    bool same = size == strlen(want) && memcmp(value, want, size + 1) == 0;
    status st =
        same ? STATUS_OK
             : FAIL(STATUS_INVALID, "%s holds \"%s\", not \"%s\"", key, (const char *)value, want);
    free(value);
    return st;
}

static status expect_compare_set(store *client, const char *key, const char *expected,
                                 const char *desired, const char *want)
{
    void *value = NULL;
    size_t size = 0;
    TRY(store_compare_set(client, key, expected, desired, &value, &size));
    bool same = size == strlen(want) && memcmp(value, want, size + 1) == 0;
    free(value);
    CHECK(same);
    return STATUS_OK;
}

/* Every call, as any server that speaks the wire must answer it. */
static status all_calls(store *client)
{
    bool yes = true;
    int64_t sum = 0;
    TRY(store_check(client, "a", &yes));
    CHECK(!yes);
    TRY(store_set(client, "a", "one", 3));
    TRY(store_check(client, "a", &yes));
    CHECK(yes);
    TRY(expect(client, "a", "one"));
    TRY(store_set(client, "a", "", 0));
    TRY(expect(client, "a", ""));
    TRY(store_add(client, "n", 40, &sum));
    CHECK(sum == 40);
    TRY(store_add(client, "n", -42, &sum));
    CHECK(sum == -2);
    TRY(expect(client, "n", "-2"));
    /* What is not there counts as empty; a mismatch answers what was expected, as torch does. */
    TRY(expect_compare_set(client, "c", "x", "y", "x"));
    TRY(store_check(client, "c", &yes));
    CHECK(!yes);
    TRY(expect_compare_set(client, "c", "", "y", "y"));
    TRY(expect_compare_set(client, "c", "x", "z", "y"));
    TRY(expect_compare_set(client, "c", "y", "z", "z"));
    TRY(expect(client, "c", "z"));
    TRY(store_delete(client, "c", &yes));
    CHECK(yes);
    TRY(store_delete(client, "c", &yes));
    CHECK(!yes);
    /* A wait that ended at its time leaves the connection in order. */
    for (int i = 0; i < 3; i++) {
        int64_t start_ns = clock_now_ns();
        CHECK(store_wait(client, "never", 50) == STATUS_TIMEOUT);
        int64_t took_ms = (clock_now_ns() - start_ns) / 1000000;
        CHECK(took_ms >= 49 && took_ms < 1000);
        CHECK(facts_in_a_line(status_text(), "never", "0.05 s", NULL));
        TRY(store_add(client, "n", 1, &sum));
        CHECK(sum == -1 + i);
    }
    return store_wait(client, "a", 1000);
}

START_TEST(answers_all_calls)
{
    store *client = new_client("job/");
    status st = all_calls(client);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    store_destroy(client);
}
END_TEST

START_TEST(prefixes_keep_keys_apart)
{
    bool there = true;
    store *a = new_client("a/"), *b = new_client("b/"), *plain = new_client("");
    ck_assert_int_eq(store_set(a, "k", "A", 1), STATUS_OK);
    ck_assert_int_eq(expect(a, "k", "A"), STATUS_OK); /* SET has no answer: now it is done */
    ck_assert_int_eq(store_check(b, "k", &there), STATUS_OK);
    ck_assert(!there);
    ck_assert_int_eq(expect(plain, "a/k", "A"), STATUS_OK);
    store_destroy(a);
    store_destroy(b);
    store_destroy(plain);
}
END_TEST

START_TEST(keeps_large_values)
{
    char *data = malloc(STORE_VALUE_BYTES + 1), key[STORE_KEY_BYTES + 2];
    void *value = NULL;
    size_t size = 0;
    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < STORE_VALUE_BYTES + 1; i++)
        data[i] = (char)(i * 2654435761u >> 24);
    memset(key, 'k', sizeof key);
    key[STORE_KEY_BYTES - 1] = '\0'; /* with the slash in front: the longest key */
    store *client = new_client(NULL);
    ck_assert_int_eq(store_set(client, key, data, STORE_VALUE_BYTES), STATUS_OK);
    ck_assert_int_eq(store_get(client, key, &value, &size), STATUS_OK);
    ck_assert_uint_eq(size, STORE_VALUE_BYTES);
    ck_assert_int_eq(memcmp(value, data, size), 0);
    free(value);
    /* One byte more is refused before anything is sent: the connection goes on. */
    ck_assert_int_eq(store_set(client, "k", data, STORE_VALUE_BYTES + 1), STATUS_INVALID);
    key[STORE_KEY_BYTES - 1] = 'k';
    key[STORE_KEY_BYTES] = '\0';
    ck_assert_int_eq(store_set(client, key, "", 0), STATUS_INVALID);
    ck_assert_int_eq(store_set(client, "k", "v", 1), STATUS_OK);
    ck_assert_int_eq(expect(client, "k", "v"), STATUS_OK);
    store_destroy(client);
    free(data);
}
END_TEST

typedef struct setter {
    store *client;
    const char *key;
    int64_t after_ms;
    status st;
} setter;

static void *set_later(void *arg)
{
    setter *s = arg;
    clock_sleep_ms(s->after_ms);
    s->st = store_set(s->client, s->key, "late", 4);
    return NULL;
}

START_TEST(get_waits_for_the_key)
{
    store *client = new_client(""), *other = new_client("");
    setter s = {.client = other, .key = "later", .after_ms = 100};
    pthread_t thread;
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(pthread_create(&thread, NULL, set_later, &s), 0);
    status st = expect(client, "later", "late");
    int64_t took_ms = (clock_now_ns() - start_ns) / 1000000;
    pthread_join(thread, NULL);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(s.st, STATUS_OK);
    ck_assert_int_ge(took_ms, 99);
    ck_assert_int_le(took_ms, 1000);
    store_destroy(client);
    store_destroy(other);
}
END_TEST

START_TEST(get_ends_at_the_timeout)
{
    store_options options = {
        .host = "localhost", .port = store_server_port(server), .timeout_ms = 150};
    options.connect_timeout_ms = 2000;
    store *client = NULL;
    void *value = NULL;
    size_t size;
    ck_assert_int_eq(store_create(&options, &client), STATUS_OK);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(store_get(client, "never", &value, &size), STATUS_TIMEOUT);
    ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 149);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1000);
    ck_assert_ptr_null(value);
    ck_assert_int_eq(store_set(client, "k", "v", 1), STATUS_OK);
    ck_assert_int_eq(expect(client, "k", "v"), STATUS_OK);
    store_destroy(client);
}
END_TEST

enum { CLIENTS = 64, ADDS = 50 };

static void *add_many(void *arg)
{
    setter *s = arg;
    int64_t sum;
    s->st = connect_to("127.0.0.1", store_server_port(server), "", &s->client);
    for (int i = 0; i < ADDS && s->st == STATUS_OK; i++)
        s->st = store_add(s->client, "counter", 1, &sum);
    if (s->st == STATUS_OK)
        s->st = store_add(s->client, "done", 1, &sum);
    if (s->st == STATUS_OK && sum == CLIENTS)
        s->st = store_set(s->client, "all", "1", 1);
    if (s->st == STATUS_OK)
        s->st = store_wait(s->client, "all", 10000);
    store_destroy(s->client);
    return NULL;
}

START_TEST(many_clients_count_exactly)
{
    static setter clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, add_many, &clients[i]), 0);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CLIENTS; i++)
        ck_assert_int_eq(clients[i].st, STATUS_OK);
    store *client = new_client("");
    int64_t sum = 0;
    ck_assert_int_eq(store_add(client, "counter", 0, &sum), STATUS_OK);
    ck_assert_int_eq(sum, CLIENTS * ADDS);
    store_destroy(client);
}
END_TEST

START_TEST(create_waits_for_the_server)
{
    int port = store_server_port(server);
    stop_server();
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        clock_sleep_ms(300);
        store_server *late;
        if (store_server_create("127.0.0.1", port, &late) != STATUS_OK)
            _exit(1);
        clock_sleep_ms(1000);
        store_server_destroy(late);
        _exit(0);
    }
    store *client = NULL;
    int64_t start_ns = clock_now_ns();
    status st = connect_to("127.0.0.1", port, "", &client);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 250);
    int64_t sum;
    ck_assert_int_eq(store_add(client, "n", 1, &sum), STATUS_OK);
    store_destroy(client);
    int code;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(code, 0);
}
END_TEST

START_TEST(create_ends_at_the_timeout)
{
    store_options options = {.host = "127.0.0.1",
                             .port = port_find_free(),
                             .connect_timeout_ms = 300,
                             .describe = "rank 7"};
    store *client = NULL;
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(store_create(&options, &client), STATUS_TIMEOUT);
    ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 299);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1500);
    char where[32];
    snprintf(where, sizeof where, "127.0.0.1:%d", options.port);
    ASSERT_FACTS(status_text(), "rank 7", "0.3 s", where, "refused");
    options.host = "no such host";
    ck_assert_int_eq(store_create(&options, &client), STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), "rank 7", "no such host");
    ck_assert_ptr_null(client);
}
END_TEST

static void *destroy_later(void *arg)
{
    (void)arg;
    clock_sleep_ms(100);
    stop_server();
    return NULL;
}

static void *break_soon(void *breaker)
{
    clock_sleep_ms(200);
    socket_breaker_break(breaker);
    return NULL;
}

/* Whoever listens never greets, as a host that has fallen silent. */
START_TEST(a_breaker_ends_the_greeting)
{
    int fd = -1, port = 0;
    pthread_t thread;
    socket_breaker breaker;
    store *client = NULL;
    socket_breaker_init(&breaker);
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &fd, &port), STATUS_OK);
    store_options options = {.host = "127.0.0.1",
                             .port = port,
                             .timeout_ms = 10000,
                             .connect_timeout_ms = 10000,
                             .breaker = &breaker};
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(pthread_create(&thread, NULL, break_soon, &breaker), 0);
    ck_assert_int_eq(store_create(&options, &client), STATUS_PEER);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 1.5);
    pthread_join(thread, NULL);
    socket_breaker_close(&breaker);
    close(fd);
}
END_TEST

START_TEST(a_lost_server_is_the_peer)
{
    store *client = new_client("");
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, destroy_later, NULL), 0);
    int64_t start_ns = clock_now_ns();
    status st = store_wait(client, "never", 5000);
    pthread_join(thread, NULL);
    ck_assert_int_eq(st, STATUS_PEER);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 2000);
    /* And stays lost. */
    int64_t sum = 17;
    ck_assert_int_eq(store_add(client, "n", 1, &sum), STATUS_PEER);
    ASSERT_FACTS(status_text(), "127.0.0.1:", "lost");
    ck_assert_int_eq(sum, 17);
    store_destroy(client);
}
END_TEST

START_TEST(accepts_null)
{
    store_destroy(NULL);
    store_server_destroy(NULL);
}
END_TEST

/* --client: the keys "given" and "absent" are the other side's; "taken" is for it. */
static int check_foreign_server(const char *host, int port)
{
    store *client = NULL;
    bool there = true;
    status st = connect_to(host, port, "", &client);
    if (st == STATUS_OK)
        st = all_calls(client);
    if (st == STATUS_OK)
        st = expect(client, "given", "from the server's side");
    if (st == STATUS_OK)
        st = store_check(client, "absent", &there);
    if (st == STATUS_OK && there)
        st = FAIL(STATUS_INVALID, "CHECK finds a key that is not there");
    if (st == STATUS_OK)
        st = store_set(client, "taken", "from the client's side", 22);
    if (st == STATUS_OK) /* SET has no answer; this has */
        st = store_check(client, "taken", &there);
    store_destroy(client);
    if (st != STATUS_OK)
        fprintf(stderr, "%s\n", status_text());
    return st == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* --server: prints its port, ends with its input or after a minute. */
static int serve_until_eof(void)
{
    alarm(60);
    if (store_server_create("127.0.0.1", 0, &server) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_text());
        return EXIT_FAILURE;
    }
    printf("%d\n", store_server_port(server));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    stop_server();
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--client") == 0)
        return check_foreign_server(argv[2], atoi(argv[3]));
    if (argc == 2 && strcmp(argv[1], "--server") == 0)
        return serve_until_eof();
    Suite *suite = suite_create("store");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start_server, stop_server);
    tcase_add_test(core, answers_all_calls);
    tcase_add_test(core, prefixes_keep_keys_apart);
    tcase_add_test(core, keeps_large_values);
    tcase_add_test(core, get_waits_for_the_key);
    tcase_add_test(core, get_ends_at_the_timeout);
    tcase_add_test(core, many_clients_count_exactly);
    tcase_add_test(core, create_waits_for_the_server);
    tcase_add_test(core, create_ends_at_the_timeout);
    tcase_add_test(core, a_breaker_ends_the_greeting);
    tcase_add_test(core, a_lost_server_is_the_peer);
    tcase_add_test(core, accepts_null);
    return suite_run(suite);
}
