/* What launchers tell each other gets there: over connections that break at the worst moment, with
 * nonsense in the store, and from a launcher that leaves early. All on this machine. */
#include "base/clock.h"
#include "tests/app/support/launcher_keys.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { PUMP_BYTES = 65536 };

#define ALIVE "--rdzv-conf=keep_alive_interval=0.3,keep_alive_max_attempt=4"

static program start_at(const char *address, int port, int node, const char *flags,
                        const char *script)
{
    char all[FLAGS_BYTES];
    snprintf(all, sizeof all,
             "--nnodes=2 --nproc-per-node=1 --master-addr=%s --master-port=%d --node-rank=%d %s",
             address, port, node, flags);
    return run_command_start(all, script);
}

/* Between node 1 and the store: breaks the connection once, where `word` goes by, before or after
 * it. */
typedef struct breaker {
    int listener, port;
    const char *word;
    bool deliver; /* the word gets there, and its answer does not come back */
    atomic_bool done;
} breaker;

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool copy(int from, int to, breaker *b)
{
    static char data[PUMP_BYTES];
    ssize_t n = read(from, data, sizeof data);
    bool breaks =
        n > 0 && b != NULL && !b->done && memmem(data, (size_t)n, b->word, strlen(b->word)) != NULL;
    if (breaks)
        b->done = true;
    if (n > 0 && (!breaks || b->deliver) && write(to, data, (size_t)n) != n)
        return false;
    return n > 0 && !breaks;
}

/* One connection at a time: a launcher has no more. */
static void *pump(void *arg)
{
    breaker *b = arg;
    for (int client; (client = accept(b->listener, NULL, NULL)) >= 0;) {
        int server = connect_to(b->port);
        struct pollfd fds[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
        bool goes_on = server >= 0;
        while (goes_on && poll(fds, 2, -1) > 0)
            goes_on = (fds[0].revents == 0 || copy(client, server, b)) &&
                      (fds[1].revents == 0 || copy(server, client, NULL));
        close(client);
        if (server >= 0)
            close(server);
    }
    return NULL;
}

static const struct {
    const char *word;
    bool deliver;
} BREAKS[] = {
    {KEY_END_OF_NODE_1, false},
    {KEY_END_OF_NODE_1, true},
    {KEY_TROUBLE, false},
    {KEY_OUTCOME, false},
};

/* Node 1's rank fails, and the connection breaks when that is told. */
START_TEST(a_broken_connection_loses_nothing)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int port = port_find_free();
    breaker b = {.port = port, .word = BREAKS[_i].word, .deliver = BREAKS[_i].deliver};
    pthread_t thread;
    program p[2];
    /* The launcher that serves is on 127.0.0.1; another address, same port: the way there. */
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    address.sin_port = htons((uint16_t)port);
    b.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(b.listener, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(b.listener, 8), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, pump, &b), 0);
    p[0] = start_at("127.0.0.1", port, 0, ALIVE, "sleep 20");
    port_await_listener(port);
    p[1] = start_at("127.0.0.2", port, 1, ALIVE, "exit 9");
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < 2; i++)
        program_wait(&p[i], RUN_S);
    ck_assert(b.done);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 8.0);
    for (int i = 0; i < 2; i++) {
        ASSERT_EXIT(p[i], 9);
        program_close(&p[i]);
    }
    shutdown(b.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(b.listener);
}
END_TEST

#define NONSENSE_TEXT "gibberish" /* is quoted in what is said about it */

static const struct {
    const char *key;
    bool watched;
    int codes[2];
    const char *facts[2][4]; /* none, or a list that ends with NULL */
} NONSENSE[] = {
    {KEY_ALIVE_OF_NODE_1, false, {0, 0}, {{NULL}, {NULL}}},
    {KEY_ALIVE_OF_NODE_1,
     true,
     {72, 72},
     {{"error", "node 1"}, {"error", "node 1", NONSENSE_TEXT}}},
    {KEY_END_OF_NODE_1, false, {0, 0}, {{NULL}, {NULL}}},
    {KEY_OUTCOME, false, {0, 72}, {{NULL}, {"error", NONSENSE_TEXT}}},
};

/* The value is understood, or the job ends with a word about it; nobody spins. */
START_TEST(nonsense_in_the_store_ends)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = start_at("127.0.0.1", port, i, ALIVE,
                        "touch up.$RANK; while ! test -e go; do sleep .02; done; "
                        "test $RANK = 1 || sleep 1");
    test_folder_await("up.0");
    test_folder_await("up.1");
    (NONSENSE[_i].watched ? nodes_put_key : nodes_set_key)(port, NONSENSE[_i].key, NONSENSE_TEXT);
    clock_sleep_ms(400); /* node 0 looks every 100 ms */
    test_folder_write("go", "");
    int64_t start_ns = clock_now_ns();
    for (int i = 1; i >= 0; i--)
        program_wait(&p[i], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 12.0);
    for (int i = 0; i < 2; i++) {
        ASSERT_EXIT(p[i], NONSENSE[_i].codes[i]);
        if (NONSENSE[_i].facts[i][0] != NULL)
            ASSERT_FACTS_LISTED(p[i].err, NONSENSE[_i].facts[i]);
        program_close(&p[i]);
    }
}
END_TEST

/* Node 1's rank fails; node 0's takes its time to end, and meanwhile node 1 is told to stop: it
 * leaves, and node 0 neither starts again without it nor waits for it. */
START_TEST(who_leaves_says_so)
{
    int port = port_find_free();
    program p[2];
    p[0] = start_at("127.0.0.1", port, 0, "--max-restarts=1",
                    "trap 'touch told.0; sleep 4; exit 0' TERM; touch up.0; "
                    "echo attempt $TORCHELASTIC_RESTART_COUNT; while :; do sleep .02; done");
    p[1] = start_at("127.0.0.1", port, 1, "--max-restarts=1",
                    "while ! test -e up.0; do sleep .02; done; exit 3");
    test_folder_await("told.0");
    kill(p[1].pid, SIGTERM);
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < 2; i++)
        program_wait(&p[i], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 9.0);
    ASSERT_EXIT(p[0], 143);
    ASSERT_EXIT(p[1], 143);
    ASSERT_FACTS(p[0].err, "error", "restart", "node 1", "SIGTERM");
    ASSERT_SILENT(p[0].out, "attempt 1");
    program_close(&p[0]);
    program_close(&p[1]);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_link");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_loop_test(core, a_broken_connection_loses_nothing, 0, COUNT(BREAKS));
    tcase_add_loop_test(core, nonsense_in_the_store_ends, 0, COUNT(NONSENSE));
    tcase_add_test(core, who_leaves_says_so);
    return test_folder_close(suite_run(suite));
}
