/* Many nodes, each with the launcher's own client code and a connection of its own, form one round
 * at a store that serves them from another process. Prints what that took. More nodes:
 *
 *     MNIST_DDP_NODES=1000 build/test_dist many_nodes
 */
#include "base/clock.h"
#include "base/host.h"
#include "dist/elastic/rdzv.h"
#include "dist/store/store.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NODES = 200, LIMIT_MS = 5000, PATIENCE_MS = 60000 };

static pid_t store_pid;
static int store_port;

/* What all nodes have asked for. */
static atomic_llong looks, wakes, records, renewals, writes, bytes;

static status counted_open(const rdzv_service_options *options, void **out)
{
    return rdzv_c10d.open(options, out);
}

static void counted_close(void *self)
{
    rdzv_c10d.close(self);
}

static status counted_look(void *self, rdzv_scope scope, int64_t after, int64_t wait_ms,
                           rdzv_view *out)
{
    TRY(rdzv_c10d.look(self, scope, after, wait_ms, out));
    looks++;
    wakes += out->revision != 0;
    bytes += out->state != NULL ? (long long)strlen(out->state) : 0;
    for (int i = 0; i < out->n; i++)
        bytes += (long long)strlen(out->nodes[i].value);
    return STATUS_OK;
}

static status counted_set_state(void *self, int64_t revision, const char *state, bool *set)
{
    writes++;
    return rdzv_c10d.set_state(self, revision, state, set);
}

static status counted_put(void *self, const char *value, bool runs_nothing)
{
    records++;
    return rdzv_c10d.put_node(self, value, runs_nothing);
}

static status counted_keep_alive(void *self)
{
    renewals++;
    return rdzv_c10d.keep_alive(self);
}

static status counted_remove(void *self)
{
    return rdzv_c10d.remove_node(self);
}

static const rdzv_ops counted = {
    .name = "c10d",
    .open = counted_open,
    .close = counted_close,
    .look = counted_look,
    .set_state = counted_set_state,
    .put_node = counted_put,
    .keep_alive = counted_keep_alive,
    .remove_node = counted_remove,
};

static void serve(int port_fd)
{
    store_server *server = NULL;
    if (store_server_create("127.0.0.1", 0, &server) != STATUS_OK)
        _exit(1);
    int port = store_server_port(server);
    if (write(port_fd, &port, sizeof port) != (ssize_t)sizeof port)
        _exit(1);
    alarm(120);
    pause();
    _exit(1);
}

static void start(void)
{
    int fds[2];
    (void)file_limit_raise();
    ck_assert_int_eq(pipe(fds), 0);
    store_pid = fork();
    if (store_pid == 0)
        serve(fds[1]);
    ck_assert_int_eq(read(fds[0], &store_port, sizeof store_port), (ssize_t)sizeof store_port);
}

/* Ends the store; its processor time in seconds, and its memory in KiB. */
static void stop(double *cpu_s, long *memory_kib)
{
    int code;
    struct rusage used;
    kill(store_pid, SIGKILL);
    ck_assert_int_eq(wait4(store_pid, &code, 0, &used), store_pid);
    *cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
             (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    *memory_kib = used.ru_maxrss;
}

static rdzv_handle *join(int number, int n, const char *endpoint)
{
    rdzv_handle *node = NULL;
    rdzv_options options = {.backend = &counted,
                            .endpoints = endpoint,
                            .run_id = "many",
                            .min_nodes = n,
                            .max_nodes = n,
                            .join_ms = PATIENCE_MS,
                            .last_call_ms = 30000,
                            .keep_alive_ms = 5000,
                            .keep_alive_misses = 3};
    options.self.nproc = 8;
    options.self.port = 29500;
    snprintf(options.self.id, sizeof options.self.id, "host%04d_4711_1f3c", number);
    snprintf(options.self.address, sizeof options.self.address, "10.0.%d.%d", number / 256,
             number % 256);
    ck_assert_msg(rdzv_open(&options, &node) == STATUS_OK, "%s", status_text());
    return node;
}

/* Waits until the node is in the round of all. */
static void expect_round(rdzv_handle *node, int n, int64_t deadline_ns)
{
    struct pollfd fd = {.fd = rdzv_fd(node), .events = POLLIN};
    for (;;) {
        rdzv_news news = rdzv_take_news(node);
        if (news.phase == RDZV_RUNS) {
            ck_assert_int_eq(news.now->round, 1);
            ck_assert_int_eq(news.now->n, n);
            ck_assert_int_ge(news.node_rank, 0);
            return;
        }
        ck_assert_msg(news.phase == RDZV_WAITS, "%s", news.reason);
        ck_assert_int_eq(poll(&fd, 1, clock_remaining_ms(deadline_ns)), 1);
    }
}

START_TEST(all_join_one_round)
{
    const char *text = getenv("MNIST_DDP_NODES");
    int n = text != NULL ? atoi(text) : NODES;
    char endpoint[64];
    double cpu_s;
    long memory_kib;
    struct rusage before, after;
    rdzv_handle **nodes = calloc((size_t)n, sizeof *nodes);
    start();
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", store_port);
    getrusage(RUSAGE_SELF, &before);
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(PATIENCE_MS);
    for (int i = 0; i < n; i++)
        nodes[i] = join(i, n, endpoint);
    for (int i = 0; i < n; i++)
        expect_round(nodes[i], n, deadline_ns);
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    getrusage(RUSAGE_SELF, &after);
    long long messages = looks + records + renewals + writes, received = bytes;
    printf("{\"nodes\":%d,\"seconds\":%.2f,\"messages\":%lld,\"looks\":%lld,\"answered\":%lld,"
           "\"records\":%lld,\"renewals\":%lld,\"writes\":%lld,\"received_mb\":%.1f,",
           n, took_s, messages, (long long)looks, (long long)wakes, (long long)records,
           (long long)renewals, (long long)writes, (double)received * 1e-6);
    stop(&cpu_s, &memory_kib);
    printf("\"store_cpu_s\":%.2f,\"store_us_per_message\":%.1f,\"store_mib\":%ld,"
           "\"nodes_mib\":%ld}\n",
           cpu_s, cpu_s * 1e6 / (double)messages, memory_kib / 1024, after.ru_maxrss / 1024);
    fflush(stdout);
    ck_assert_double_le(took_s, LIMIT_MS * 1e-3);
    _exit(0); /* a farewell of each would have to wait for a store that is gone */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("many_nodes");
    TCase *core = suite_case(suite, "core", 90);
    tcase_add_test(core, all_join_one_round);
    return suite_run(suite);
}
