/* What one client can cost the others of a store's server: time, memory, descriptors. Each test has
 * a process of its own. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The bounds in time are for a program at its own speed. */
#ifdef __SANITIZE_THREAD__
enum { SLOWER = 5 };
#else
enum { SLOWER = 1 };
#endif

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

static int64_t elapsed_ms(int64_t start_ns)
{
    return (clock_now_ns() - start_ns) / 1000000;
}

/* Of the server and the test: a machine that is busy with other things does not add to it. */
static int64_t cpu_ms(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 +
           (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000;
}

static store *client_of(int64_t timeout_ms)
{
    store_options options = {.host = "127.0.0.1",
                             .port = store_server_port(server),
                             .prefix = "",
                             .timeout_ms = timeout_ms,
                             .connect_timeout_ms = timeout_ms};
    store *client = NULL;
    ck_assert_msg(store_create(&options, &client) == STATUS_OK, "%s", status_text());
    return client;
}

static int64_t answer_ms(store *client)
{
    int64_t sum = 0, start_ns = clock_now_ns();
    ck_assert_msg(store_add(client, "service", 1, &sum) == STATUS_OK, "%s", status_text());
    return elapsed_ms(start_ns);
}

/* The client is answered, and within this time. */
static void expect_answer(store *client, int64_t within_ms)
{
    int64_t took_ms = answer_ms(client);
    ck_assert_msg(took_ms <= within_ms * SLOWER, "answered after %lld ms", (long long)took_ms);
}

/* Many answers, of which a few may be late: others use the processors too. */
static void expect_answers(store *client, int64_t within_ms)
{
    enum { ANSWERS = 20, MOST_LATE = 5 };
    int late = 0;
    for (int i = 0; i < ANSWERS; i++) {
        late += answer_ms(client) > within_ms * SLOWER;
        clock_sleep_ms(10);
    }
    ck_assert_msg(late <= MOST_LATE, "%d of %d answers took more than %lld ms", late, ANSWERS,
                  (long long)within_ms * SLOWER);
}

static int raw_connection(bool greets)
{
    static const uint8_t greeting[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    int fd = -1;
    status st =
        socket_connect("127.0.0.1", store_server_port(server), clock_deadline_ns(5000), &fd);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    if (greets)
        ck_assert_int_eq(socket_send(fd, greeting, sizeof greeting, clock_deadline_ns(1000)),
                         STATUS_OK);
    return fd;
}

/* Opcode, key "k", and a value's length. Returns its size. */
static size_t put_head(uint8_t *out, int opcode, uint64_t value_bytes)
{
    *out++ = (uint8_t)opcode;
    store_wire_put_u64(out, 1);
    out[8] = 'k';
    store_wire_put_u64(out + 9, value_bytes);
    return 18;
}

static bool is_open(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

enum { APPENDS = 2000, LARGE = STORE_VALUE_BYTES - APPENDS };

/* A large value under "k", and after it requests that append next to nothing. */
static void send_appends(int fd, int n, uint8_t more)
{
    uint8_t *bytes = calloc(1, 18 + LARGE + (size_t)n * 19), *at = bytes;
    ck_assert_ptr_nonnull(bytes);
    at += put_head(at, STORE_SET, LARGE);
    at += LARGE;
    for (int i = 0; i < n; i++) {
        at += put_head(at, STORE_APPEND, more);
        at += more;
    }
    status st = socket_send(fd, bytes, (size_t)(at - bytes), clock_deadline_ns(10000));
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    free(bytes);
}

/* More of them in one go than any loop over the value could hide. */
START_TEST(an_append_costs_what_it_appends)
{
    store *client = client_of(10000);
    int fd = raw_connection(true);
    uint8_t ping[5] = {STORE_PING, 1, 2, 3, 4}, echo[4];
    expect_answer(client, 1000);
    int64_t before_ms = cpu_ms();
    send_appends(fd, APPENDS, (uint8_t)_i);
    expect_answers(client, 200);
    ck_assert_int_eq(socket_send(fd, ping, sizeof ping, clock_deadline_ns(1000)), STATUS_OK);
    ck_assert_msg(socket_receive(fd, echo, sizeof echo, clock_deadline_ns(10000)) == STATUS_OK,
                  "%s", status_text());
    ck_assert_int_le(cpu_ms() - before_ms, 1000 * SLOWER);
    void *value = NULL;
    size_t size_bytes = 0;
    ck_assert_int_eq(store_get(client, "service", &value, &size_bytes), STATUS_OK);
    free(value);
    store_destroy(client);
    close(fd);
}
END_TEST

/* Each waits for a key of its own, and one request sets many others, and theirs at last. */
START_TEST(waiters_are_found_by_their_key)
{
    enum { WAITERS = 800, KEYS = 100000, KEY = 8 };
    static int fds[WAITERS];
    uint8_t *request = malloc(9 + (size_t)KEYS * (16 + KEY)), *at = request;
    for (int i = 0; i < WAITERS; i++) {
        uint8_t wait[17 + KEY + 1] = {STORE_WAIT, 1, [9] = KEY};
        snprintf((char *)wait + 17, KEY + 1, "%08d", KEYS - 1 - i);
        fds[i] = raw_connection(true);
        ck_assert_int_eq(socket_send(fds[i], wait, 17 + KEY, clock_deadline_ns(1000)), STATUS_OK);
    }
    *at++ = STORE_MULTI_SET;
    store_wire_put_u64(at, KEYS);
    at += 8;
    for (int i = 0; i < KEYS; i++, at += KEY + 16) {
        char key[KEY + 1];
        snprintf(key, sizeof key, "%08d", i);
        store_wire_put_u64(at, KEY);
        memcpy(at + 8, key, KEY);
        store_wire_put_u64(at + 8 + KEY, 0);
    }
    store *client = client_of(10000);
    expect_answer(client, 5000);
    int64_t before_ms = cpu_ms();
    int fd = raw_connection(true);
    ck_assert_int_eq(socket_send(fd, request, (size_t)(at - request), clock_deadline_ns(10000)),
                     STATUS_OK);
    for (int i = 0; i < WAITERS; i++) {
        uint8_t ended;
        ck_assert_msg(socket_receive(fds[i], &ended, 1, clock_deadline_ns(10000)) == STATUS_OK,
                      "waiter %d: %s", i, status_text());
        close(fds[i]);
    }
    ck_assert_int_le(cpu_ms() - before_ms, 800 * SLOWER);
    store_destroy(client);
    close(fd);
    free(request);
}
END_TEST

static atomic_bool over;

/* Requests that each ask for megabytes. */
static void *flood_of_gets(void *arg)
{
    int fd = *(int *)arg;
    uint8_t get[10] = {STORE_GET, 1, [9] = 'k'}, sink[1 << 16];
    size_t moved;
    while (!atomic_load(&over) && socket_send_some(fd, get, sizeof get, &moved) == STATUS_OK &&
           socket_receive_some(fd, sink, sizeof sink, &moved) == STATUS_OK)
        ;
    return NULL;
}

/* Bytes that never end. */
static void *flood_of_sets(void *arg)
{
    int fd = *(int *)arg;
    uint8_t *bytes = calloc(1, 18 + (1 << 20));
    size_t size = put_head(bytes, STORE_SET, 1 << 20) + (1 << 20);
    while (!atomic_load(&over) &&
           socket_send(fd, bytes, size, clock_deadline_ns(2000)) == STATUS_OK)
        ;
    free(bytes);
    return NULL;
}

/* The thread has more to do than it will ever finish: that keeps neither others waiting nor who
 * ends it. */
START_TEST(a_flood_delays_nobody)
{
    enum { FLOODS = 4 };
    int fds[FLOODS];
    pthread_t threads[FLOODS];
    store *client = client_of(10000);
    for (int i = 0; i < FLOODS; i++)
        fds[i] = raw_connection(true);
    send_appends(fds[0], APPENDS, 0);
    for (int i = 0; i < FLOODS; i++) {
        void *(*run)(void *) = i % 2 == 0 ? flood_of_gets : flood_of_sets;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &fds[i]), 0);
    }
    expect_answers(client, 200);
    int64_t start_ns = clock_now_ns();
    stop_server();
    int64_t took_ms = elapsed_ms(start_ns);
    atomic_store(&over, true);
    for (int i = 0; i < FLOODS; i++) {
        pthread_join(threads[i], NULL);
        close(fds[i]);
    }
    store_destroy(client);
    ck_assert_msg(took_ms <= 1000 * SLOWER, "ended after %lld ms", (long long)took_ms);
}
END_TEST

static void *keep_and_forget(void *arg)
{
    char address[400];
    (void)arg;
    for (int i = 0; i < 500; i++) {
        ck_assert_int_eq(store_server_keep(server, i % 2 == 0 ? "kept/" : ""), STATUS_OK);
        store_server_forget(server);
        store_server_author(server, "kept/x", address);
    }
    return NULL;
}

START_TEST(commands_of_several_threads_are_all_carried_out)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, keep_and_forget, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

START_TEST(a_kept_key_has_an_author)
{
    char address[400], there[40];
    ck_assert_int_eq(store_server_keep(server, "kept/"), STATUS_OK);
    store *client = client_of(2000);
    ck_assert_int_eq(store_set(client, "kept/x", "1", 1), STATUS_OK);
    expect_answer(client, 1000);
    store_server_author(server, "kept/x", address);
    ck_assert_int_eq(sscanf(address, "127.0.0.1:%39[0-9]", there), 1);
    store_server_author(server, "service", address);
    ck_assert_str_eq(address, "");
    store_destroy(client);
}
END_TEST

/* Half requests of many connections: together they get no more than one budget, and those that take
 * part in the job keep theirs. */
START_TEST(buffers_share_one_budget)
{
    enum { HOLDERS = 12, VALUES = 8, BUDGET_MIB = 256 };
    static uint8_t part[STORE_VALUE_BYTES - (1 << 20)];
    int fds[HOLDERS], open = 0;
    store *client = client_of(20000);
    expect_answer(client, 1000);
    for (int i = 0; i < HOLDERS; i++) {
        uint8_t head[9] = {STORE_MULTI_SET};
        store_wire_put_u64(head + 1, VALUES + 1);
        fds[i] = raw_connection(true);
        status st = socket_send(fds[i], head, sizeof head, clock_deadline_ns(1000));
        for (int k = 0; k < VALUES && st == STATUS_OK; k++) {
            uint8_t pair[18];
            size_t size = put_head(pair, STORE_SET, sizeof part);
            st = socket_send(fds[i], pair + 1, size - 1, clock_deadline_ns(5000));
            if (st == STATUS_OK)
                st = socket_send(fds[i], part, sizeof part, clock_deadline_ns(5000));
        }
    }
    expect_answer(client, 2000);
    for (int i = 0; i < HOLDERS; i++) {
        open += is_open(fds[i]);
        close(fds[i]);
    }
    ck_assert_int_ge(open, 1);
    ck_assert_int_le(open * VALUES * (int)(sizeof part >> 20), BUDGET_MIB);
    store_destroy(client);
}
END_TEST

/* The test's own descriptors are not the server's: another process connects. */
static pid_t idle_connections(int n, bool greet, bool write_a_key)
{
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        uint8_t set[18];
        size_t size = put_head(set, STORE_SET, 0);
        for (int i = 0; i < n; i++) {
            int fd = raw_connection(greet);
            if (write_a_key && socket_send(fd, set, size, clock_deadline_ns(1000)) != STATUS_OK)
                _exit(1);
            clock_sleep_ms(1);
        }
        if (write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    char byte;
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* What goes to stderr, from here on. */
static int catch_stderr(void)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    return fd;
}

static int count_in(int fd, const char *text)
{
    char all[8192];
    ssize_t n = pread(fd, all, sizeof all - 1, 0);
    all[n > 0 ? n : 0] = '\0';
    int found = 0;
    for (const char *at = strstr(all, text); at != NULL; at = strstr(at + 1, text))
        found++;
    return found;
}

enum { FEW = 64 };

static void start_small_server(void)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = FEW;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    start_server();
}

/* Greeted or not: who has never set a key makes room for one who comes to work. */
START_TEST(idle_connections_do_not_use_up_the_descriptors)
{
    start_small_server();
    store *member = client_of(2000);
    expect_answer(member, 1000);
    pid_t idle = idle_connections(2 * FEW, _i == 1, false);
    for (int i = 0; i < 3; i++) {
        store *client = client_of(2000);
        expect_answer(client, 1000);
        store_destroy(client);
    }
    expect_answer(member, 1000);
    end_process(idle);
    store_destroy(member);
    stop_server();
}
END_TEST

/* Where all take part, the last one has to wait, and it is said why. */
START_TEST(short_descriptors_are_told_as_what_they_are)
{
    start_small_server();
    store *member = client_of(2000);
    expect_answer(member, 1000);
    int said = catch_stderr();
    pid_t writers = idle_connections(2 * FEW, true, true);
    clock_sleep_ms(500);
    expect_answer(member, 1000);
    ck_assert_int_eq(count_in(said, "ulimit -n"), 1);
    end_process(writers);
    clock_sleep_ms(300); /* this process's descriptors are the server's too */
    store *late = client_of(2000);
    expect_answer(late, 1000);
    store_destroy(late);
    store_destroy(member);
    stop_server();
}
END_TEST

/* From here on this process cannot accept connections. */
static void forbid_accept(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_accept4, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_msg(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "%s", strerror(errno));
}

START_TEST(a_failure_to_accept_that_stays_is_looked_at_now_and_then)
{
    static const int errors[] = {EPERM, EACCES, EMFILE, ECONNABORTED, EBADF};
    int said = catch_stderr();
    forbid_accept(errors[_i]);
    start_server();
    int fd = raw_connection(true);
    int64_t before_ms = cpu_ms(), start_ns = clock_now_ns();
    clock_sleep_ms(500);
    ck_assert_int_le(cpu_ms() - before_ms, 100);
    ck_assert_int_eq(count_in(said, strerror(errors[_i])), 1);
    stop_server();
    ck_assert_int_le(elapsed_ms(start_ns), 1500);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_limits");
    TCase *core = suite_case(suite, "core", 60), *own = suite_case(suite, "own server", 60);
    tcase_add_checked_fixture(core, start_server, stop_server);
    tcase_add_loop_test(core, an_append_costs_what_it_appends, 0, 2);
    tcase_add_test(core, waiters_are_found_by_their_key);
    tcase_add_test(core, a_flood_delays_nobody);
    tcase_add_test(core, commands_of_several_threads_are_all_carried_out);
    tcase_add_test(core, a_kept_key_has_an_author);
    tcase_add_test(core, buffers_share_one_budget);
    tcase_add_loop_test(own, idle_connections_do_not_use_up_the_descriptors, 0, 2);
    tcase_add_test(own, short_descriptors_are_told_as_what_they_are);
    tcase_add_loop_test(own, a_failure_to_accept_that_stays_is_looked_at_now_and_then, 0, 5);
    return suite_run(suite);
}
