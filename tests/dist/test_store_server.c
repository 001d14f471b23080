/* The store's server against clients that are broken, hostile or dead: they are turned away, and
 * the others do not notice. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static store_server *server;

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

static int raw_connection(void)
{
    int fd = -1;
    status st =
        socket_connect("127.0.0.1", store_server_port(server), clock_deadline_ns(2000), &fd);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    return fd;
}

/* A failure to send is the server's answer to what came before. */
static void raw_send(int fd, const void *data, size_t size)
{
    (void)socket_send(fd, data, size, clock_deadline_ns(2000));
}

static const uint8_t GREETING[] = {0, 0xce, 0xf7, 0x85, 0x3c};

static int greeted_connection(void)
{
    int fd = raw_connection();
    raw_send(fd, GREETING, sizeof GREETING);
    return fd;
}

/* The server has closed the connection, and said nothing before. */
static void expect_closed(int fd, int64_t within_ms)
{
    char byte;
    status st = socket_receive(fd, &byte, 1, clock_deadline_ns(within_ms));
    ck_assert_msg(st == STATUS_PEER, "%s, not closed", status_name(st));
    close(fd);
}

/* A client of good manners is served, and at once. */
static void expect_service(void)
{
    store_options options = {.host = "127.0.0.1",
                             .port = store_server_port(server),
                             .prefix = "",
                             .timeout_ms = 2000,
                             .connect_timeout_ms = 2000};
    store *client = NULL;
    int64_t sum = 0, start_ns = clock_now_ns();
    status st = store_create(&options, &client);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(store_add(client, "service", 1, &sum), STATUS_OK);
    ck_assert_int_ge(sum, 1);
    store_destroy(client);
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1000);
}

START_TEST(other_protocols_are_closed_at_once)
{
    static const char *const texts[] = {"GET / HTTP/1.0\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n",
                                        "\x16\x03\x01\x02", "*1\r\n$4\r\nPING\r\n", "\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = raw_connection();
        raw_send(fd, texts[i], strlen(texts[i]));
        expect_closed(fd, 1000);
        expect_service();
    }
}
END_TEST

START_TEST(a_wrong_greeting_is_closed_at_its_first_wrong_byte)
{
    for (size_t i = 0; i < sizeof GREETING; i++) {
        uint8_t wrong[sizeof GREETING];
        memcpy(wrong, GREETING, sizeof wrong);
        wrong[i] ^= 0x40;
        int fd = raw_connection();
        raw_send(fd, wrong, i + 1);
        expect_closed(fd, 1000);
    }
    expect_service();
}
END_TEST

START_TEST(a_greeting_may_come_in_pieces)
{
    int fd = raw_connection();
    uint8_t ping[5] = {STORE_PING, 1, 2, 3, 4}, echo[4];
    for (size_t i = 0; i < sizeof GREETING; i++) {
        raw_send(fd, GREETING + i, 1);
        clock_sleep_ms(5);
    }
    for (size_t i = 0; i < sizeof ping; i++) {
        raw_send(fd, ping + i, 1);
        clock_sleep_ms(5);
    }
    ck_assert_int_eq(socket_receive(fd, echo, 4, clock_deadline_ns(1000)), STATUS_OK);
    ck_assert_int_eq(memcmp(echo, ping + 1, 4), 0);
    close(fd);
}
END_TEST

START_TEST(half_a_greeting_is_closed_after_five_seconds)
{
    int fd = raw_connection(), silent = raw_connection();
    int64_t start_ns = clock_now_ns();
    raw_send(fd, GREETING, 3);
    expect_service();
    expect_closed(fd, 7000);
    ck_assert_int_ge((clock_now_ns() - start_ns) / 1000000, 4500);
    expect_closed(silent, 1000);
    expect_service();
}
END_TEST

START_TEST(idle_connections_make_room)
{
    enum { IDLE = 200, KEPT = 64 };
    int fds[IDLE], closed = 0;
    for (int i = 0; i < IDLE; i++)
        fds[i] = raw_connection();
    expect_service();
    clock_sleep_ms(50);
    for (int i = 0; i < IDLE; i++) {
        char byte;
        status st = socket_receive(fds[i], &byte, 1, clock_deadline_ns(0));
        ck_assert_msg(st == STATUS_PEER || st == STATUS_TIMEOUT, "%s", status_text());
        if (st == STATUS_PEER)
            ck_assert_int_eq(closed++, i); /* the oldest ones go */
        close(fds[i]);
    }
    /* One more if the good client's greeting was a little behind its connection. */
    ck_assert_int_ge(closed, IDLE - KEPT);
    ck_assert_int_le(closed, IDLE - KEPT + 1);
}
END_TEST

/* Greeted connections are not limited like that. */
START_TEST(many_greeted_connections_are_kept)
{
    enum { GREETED = 150 };
    int fds[GREETED];
    uint8_t ping[5] = {STORE_PING, 9, 8, 7, 6}, echo[4];
    for (int i = 0; i < GREETED; i++)
        fds[i] = greeted_connection();
    for (int i = 0; i < GREETED; i++) {
        raw_send(fds[i], ping, sizeof ping);
        ck_assert_int_eq(socket_receive(fds[i], echo, 4, clock_deadline_ns(2000)), STATUS_OK);
        close(fds[i]);
    }
}
END_TEST

/* Three hundred that only greet, others that have sent half a request or wait for a key that never
 * comes: a set and a get take as long as without them. */
START_TEST(idle_and_half_sent_clients_delay_nobody)
{
    enum { IDLE = 300, OTHERS = 30, PAIRS = 200, LIMIT_MS = 1000 };
    static const char half[] = "\1\2\0\0\0\0\0\0\0/k\0\0\x10\0\0\0\0\0half"; /* of a MiB */
    static const char wait[] = "\6\1\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0/never";
    int fds[IDLE + 2 * OTHERS];
    for (int i = 0; i < IDLE + 2 * OTHERS; i++) {
        fds[i] = greeted_connection();
        if (i >= IDLE + OTHERS)
            raw_send(fds[i], wait, sizeof wait - 1);
        else if (i >= IDLE)
            raw_send(fds[i], half, sizeof half - 1);
    }
    store_options options = {.host = "127.0.0.1",
                             .port = store_server_port(server),
                             .timeout_ms = LIMIT_MS,
                             .connect_timeout_ms = LIMIT_MS};
    store *client = NULL;
    int64_t start_ns = clock_now_ns();
    ck_assert_msg(store_create(&options, &client) == STATUS_OK, "%s", status_text());
    for (int i = 0; i < PAIRS; i++) {
        void *value = NULL;
        size_t size = 0;
        ck_assert_int_eq(store_set(client, "k", &i, sizeof i), STATUS_OK);
        ck_assert_int_eq(store_get(client, "k", &value, &size), STATUS_OK);
        ck_assert_uint_eq(size, sizeof i);
        ck_assert_int_eq(memcmp(value, &i, size), 0);
        free(value);
    }
    ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, LIMIT_MS);
    store_destroy(client);
    /* None of them was closed. */
    for (int i = 0; i < IDLE + 2 * OTHERS; i++) {
        char byte;
        ck_assert_int_eq(recv(fds[i], &byte, 1, MSG_DONTWAIT), -1);
        ck_assert_int_eq(errno, EAGAIN);
        close(fds[i]);
    }
}
END_TEST

/* An opcode and one u64 after it. */
static void expect_refused(uint8_t opcode, uint64_t number)
{
    uint8_t request[9] = {opcode};
    store_wire_put_u64(request + 1, number);
    int fd = greeted_connection();
    raw_send(fd, request, sizeof request);
    expect_closed(fd, 1000);
    expect_service();
}

START_TEST(promised_lengths_are_limited)
{
    expect_refused(STORE_SET, (uint64_t)1 << 40);
    expect_refused(STORE_GET, UINT64_MAX);
    expect_refused(STORE_ADD, STORE_KEY_BYTES + 1);
    expect_refused(STORE_WAIT, STORE_REQUEST_KEYS + 1);
    expect_refused(STORE_MULTI_SET, (uint64_t)1 << 63);
    expect_refused(STORE_QUEUE_PUSH, STORE_KEY_BYTES + 1);
    expect_refused(STORE_BARRIER, UINT64_MAX);
    /* A value: after SET and a key of one byte. */
    uint8_t request[1 + 9 + 8] = {STORE_SET, 1, [9] = 'k'};
    store_wire_put_u64(request + 10, STORE_VALUE_BYTES + 1);
    int fd = greeted_connection();
    raw_send(fd, request, sizeof request);
    expect_closed(fd, 1000);
    expect_service();
}
END_TEST

START_TEST(unknown_requests_are_closed)
{
    static const uint8_t unknown[] = {19, 0, 20, 99, 255};
    char said[4096] = "", port[32];
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    for (size_t i = 0; i < sizeof unknown; i++) {
        int client = greeted_connection();
        raw_send(client, &unknown[i], 1);
        expect_closed(client, 1000);
    }
    expect_service();
    ck_assert_int_gt(pread(fd, said, sizeof said - 1, 0), 0);
    snprintf(port, sizeof port, "port %d", store_server_port(server));
    ASSERT_FACTS(said, port, "127.0.0.1:", "request number 19");
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    close(fd);
}
END_TEST

/* Two wait for a queue: each value that comes lets one of them go on. */
START_TEST(a_pushed_value_wakes_one)
{
    enum { KEY = 9, PUSH = 1 + 2 * KEY };
    uint8_t wait[] = {STORE_WAIT, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 'q'};
    uint8_t push[PUSH] = {STORE_QUEUE_PUSH, 1, [KEY] = 'q', 1, [PUSH - 1] = 'v'};
    uint8_t pop[1 + KEY] = {STORE_QUEUE_POP, 1, [KEY] = 'q'};
    uint8_t want[8 + KEY] = {1, [8] = 1, [16] = 'v'}, got[sizeof want], byte;
    int waits[2], other = greeted_connection(), n = 0;
    for (int i = 0; i < 2; i++) {
        waits[i] = greeted_connection();
        raw_send(waits[i], wait, sizeof wait);
    }
    expect_service();
    for (int turn = 0; turn < 2; turn++) {
        raw_send(other, push, sizeof push);
        struct pollfd both[2] = {{waits[0], POLLIN, 0}, {waits[1], POLLIN, 0}};
        ck_assert_int_gt(poll(both, 2, 5000), 0);
        expect_service();
        expect_service(); /* a second one would have gone on by now */
        for (int i = 0; i < 2; i++) {
            if (recv(waits[i], &byte, 1, MSG_DONTWAIT) != 1)
                continue;
            n++;
            raw_send(waits[i], pop, sizeof pop);
            ck_assert_int_eq(socket_receive(waits[i], got, sizeof got, clock_deadline_ns(5000)),
                             STATUS_OK);
            ck_assert_int_eq(memcmp(got, want, sizeof want), 0);
        }
        ck_assert_int_eq(n, turn + 1);
    }
    for (int i = 0; i < 2; i++)
        close(waits[i]);
    close(other);
}
END_TEST

/* A GET alone, as no client of torch sends it, is answered when the key comes; what was sent after
 * it waits its turn. */
START_TEST(get_alone_waits)
{
    uint8_t requests[] = {STORE_GET, 1, 0, 0, 0, 0, 0, 0, 0, 'g', STORE_PING, 1, 1, 1, 1};
    uint8_t set[] = {STORE_SET, 1, 0, 0, 0, 0, 0, 0, 0, 'g', 2, 0, 0, 0, 0, 0, 0, 0, 'o', 'k'};
    uint8_t want[] = {2, 0, 0, 0, 0, 0, 0, 0, 'o', 'k', 1, 1, 1, 1}, got[sizeof want];
    int fd = greeted_connection(), other = greeted_connection();
    raw_send(fd, requests, sizeof requests);
    ck_assert_int_eq(socket_receive(fd, got, 1, clock_deadline_ns(50)), STATUS_TIMEOUT);
    raw_send(other, set, sizeof set);
    ck_assert_int_eq(socket_receive(fd, got, sizeof got, clock_deadline_ns(1000)), STATUS_OK);
    ck_assert_int_eq(memcmp(got, want, sizeof want), 0);
    close(fd);
    close(other);
}
END_TEST

START_TEST(a_client_killed_while_it_waits_is_forgotten)
{
    int port = store_server_port(server), ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        store_options options = {
            .host = "127.0.0.1", .port = port, .timeout_ms = 5000, .connect_timeout_ms = 2000};
        store *client;
        if (store_create(&options, &client) != STATUS_OK || write(ready[1], "r", 1) != 1)
            _exit(1);
        (void)store_wait(client, "never", 5000);
        _exit(2);
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    clock_sleep_ms(50);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int code;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert(WIFSIGNALED(code));
    expect_service();
    /* Setting its key must not stumble over it. */
    uint8_t set[] = {STORE_SET, 6,   0,   0,   0, 0, 0, 0, 0, '/', 'n',
                     'e',       'v', 'e', 'r', 0, 0, 0, 0, 0, 0,   0};
    int fd = greeted_connection();
    raw_send(fd, set, sizeof set);
    expect_service();
    close(fd);
    close(ready[0]);
    close(ready[1]);
}
END_TEST

/* Answers that nobody reads are kept up to a limit only. */
START_TEST(a_client_that_does_not_read_is_closed)
{
    enum { VALUE = 4 << 20 };
    uint8_t *set = calloc(1, 18 + VALUE), get[10] = {STORE_GET, 1, [9] = 'b'};
    set[0] = STORE_SET;
    set[1] = 1;
    set[9] = 'b';
    store_wire_put_u64(set + 10, VALUE);
    int fd = greeted_connection();
    raw_send(fd, set, 18 + VALUE);
    free(set);
    status st = STATUS_OK;
    int64_t deadline_ns = clock_deadline_ns(10000); /* at most 4 MiB a request: soon over */
    while (st == STATUS_OK && !clock_passed(deadline_ns)) {
        st = socket_send(fd, get, sizeof get, clock_deadline_ns(1000));
        clock_sleep_ms(1);
    }
    ck_assert_int_eq(st, STATUS_PEER);
    close(fd);
    expect_service();
}
END_TEST

/* What random bytes look like to the server after a right greeting: mostly short requests, whose
 * lengths are small often enough to get somewhere. */
static size_t random_request(unsigned *seed, uint8_t *out, size_t size_bytes)
{
    size_t size = (size_t)rand_r(seed) % size_bytes;
    for (size_t i = 0; i < size; i++) {
        int dice = rand_r(seed) % 8;
        out[i] = (uint8_t)(dice < 5 ? 0 : dice < 7 ? rand_r(seed) % 16 : rand_r(seed) % 256);
    }
    return size;
}

START_TEST(random_requests_do_no_harm)
{
    enum { ROUNDS = 2000 };
    unsigned seed = 1;
    uint8_t request[200];
    for (int i = 0; i < ROUNDS; i++) {
        int fd = i % 4 == 0 ? raw_connection() : greeted_connection();
        raw_send(fd, request, random_request(&seed, request, sizeof request));
        close(fd);
        if (i % 200 == 0)
            expect_service();
    }
    expect_service();
}
END_TEST

START_TEST(a_stopped_server_frees_its_port)
{
    int port = store_server_port(server);
    int fd = greeted_connection();
    char where[32], holder[32];
    stop_server();
    expect_closed(fd, 1000);
    ck_assert_int_eq(store_server_create("127.0.0.1", port, &server), STATUS_OK);
    ck_assert_int_eq(store_server_port(server), port);
    expect_service();
    store_server *second = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", port, &second), STATUS_IO);
    snprintf(where, sizeof where, "127.0.0.1:%d", port);
    snprintf(holder, sizeof holder, "pid %d", (int)getpid());
    ASSERT_FACTS(status_text(), where, holder);
    ck_assert_ptr_null(second);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_server");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, start_server, stop_server);
    tcase_add_test(core, other_protocols_are_closed_at_once);
    tcase_add_test(core, a_wrong_greeting_is_closed_at_its_first_wrong_byte);
    tcase_add_test(core, a_greeting_may_come_in_pieces);
    tcase_add_test(core, half_a_greeting_is_closed_after_five_seconds);
    tcase_add_test(core, idle_connections_make_room);
    tcase_add_test(core, many_greeted_connections_are_kept);
    tcase_add_test(core, idle_and_half_sent_clients_delay_nobody);
    tcase_add_test(core, promised_lengths_are_limited);
    tcase_add_test(core, unknown_requests_are_closed);
    tcase_add_test(core, a_pushed_value_wakes_one);
    tcase_add_test(core, get_alone_waits);
    tcase_add_test(core, a_client_killed_while_it_waits_is_forgotten);
    tcase_add_test(core, a_client_that_does_not_read_is_closed);
    tcase_add_test(core, random_requests_do_no_harm);
    tcase_add_test(core, a_stopped_server_frees_its_port);
    return suite_run(suite);
}
