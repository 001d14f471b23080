/* A round's nodes that cannot meet: one of them is the test, which takes part in the rendezvous and
 * does nothing else, as an agent that is stopped, or behind a firewall. */
#include "base/clock.h"
#include "base/file.h"
#include "dist/elastic/rdzv.h"
#include "dist/store/store.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <signal.h>

#define TIMES "last_call_timeout=0.1,keep_alive_interval=3,join_timeout=60"
#define RUN \
    "echo round $MNIST_DDP_ROUND rank $RANK of $WORLD_SIZE; touch up.$MNIST_DDP_ROUND; " \
    "while ! test -e go; do sleep .02; done"

/* Where all meet, and the node that does not come. */
typedef struct stage {
    store_server *server;
    int port;
    rdzv_handle *mute;
    int mute_port; /* where its store would listen, and nobody answers */
} stage;

static void open_stage(stage *s)
{
    *s = (stage){0};
    (void)port_listen(&s->mute_port);
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &s->server), STATUS_OK);
    s->port = store_server_port(s->server);
}

static void add_mute(stage *s, int min_nodes, int64_t keep_alive_ms)
{
    static char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", s->port);
    rdzv_options how = {
        .backend = &rdzv_c10d,
        .endpoints = endpoint,
        .run_id = "none",
        .self = {.id = "mute_1_1", .nproc = 1, .address = "127.0.0.1", .port = s->mute_port},
        .min_nodes = min_nodes,
        .max_nodes = 2,
        .join_ms = 60000,
        .last_call_ms = 100,
        .keep_alive_ms = keep_alive_ms,
        .keep_alive_misses = 3};
    ck_assert_int_eq(rdzv_open(&how, &s->mute), STATUS_OK);
}

static void close_stage(stage *s)
{
    rdzv_close(s->mute);
    store_server_destroy(s->server);
}

/* It runs for ever by its record, and its lease does not end. It is not waited for as long as a
 * lease of 9 s. */
START_TEST(a_node_that_never_comes_is_left_out)
{
    stage s;
    open_stage(&s);
    program p = nodes_start_c10d(s.port, "--nnodes=1:2 --nproc-per-node=1 --rdzv-conf=" TIMES, RUN);
    test_folder_await("up.1");
    add_mute(&s, 1, 5000);
    program_await(&p, "round 2", "mute");
    test_folder_await("up.3");
    test_folder_write("go", "");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "round 3 rank 0 of 1\n");
    ASSERT_FACTS(p.err, "round 2 does not begin", "did not come", "within 5 s", "node 1");
    program_close(&p);
    close_stage(&s);
}
END_TEST

/* Its store is connected to, and does not answer: that is no reason to end the job. */
START_TEST(node_0_that_is_stopped_is_left_out)
{
    stage s;
    open_stage(&s);
    add_mute(&s, 2, 5000);
    program p =
        nodes_start_c10d(s.port, "--nnodes=2 --nproc-per-node=1 --rdzv-conf=" TIMES "", RUN);
    program_await(&p, "round 1 does not begin", "node 0");
    rdzv_close(s.mute); /* its lease has ended */
    s.mute = NULL;
    program_await(&p, "waits for nodes", "1 of 2");
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    program_close(&p);
    close_stage(&s);
}
END_TEST

/* Nobody listens where its store has been: its lease is not waited for. */
START_TEST(node_0_that_is_gone_is_left_out)
{
    stage s;
    open_stage(&s);
    s.mute_port = port_find_free();
    add_mute(&s, 1, 5000);
    while (rdzv_take_news(s.mute).phase != RDZV_RUNS)
        clock_sleep_ms(5);
    program p = nodes_start_c10d(s.port, "--nnodes=1:2 --nproc-per-node=1 --rdzv-conf=" TIMES, RUN);
    while (rdzv_take_news(s.mute).phase != RDZV_LEAVES)
        clock_sleep_ms(5);
    int64_t start_ns = clock_now_ns();
    rdzv_leave(s.mute, &(round_departure){0});
    test_folder_await("up.3");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    test_folder_write("go", "");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "round 2 does not begin", "node 0");
    program_close(&p);
    close_stage(&s);
}
END_TEST

/* Each begins the next round with the other, and again they do not meet: --join-timeout is for all
 * of these rounds together. */
START_TEST(nodes_that_never_meet_end)
{
    stage s;
    open_stage(&s);
    add_mute(&s, 2, 1000);
    program p =
        nodes_start_c10d(s.port,
                         "--nnodes=2 --nproc-per-node=1 "
                         "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=1,join_timeout=5",
                         RUN);
    for (int64_t end_ns = clock_deadline_ns(9000); !clock_passed(end_ns); clock_sleep_ms(20))
        if (rdzv_take_news(s.mute).phase == RDZV_LEAVES)
            rdzv_leave(s.mute, &(round_departure){0});
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "round 1 does not begin", "node 0");
    ASSERT_FACTS(p.err, "round 2:", "mute");
    ASSERT_FACTS(p.err, "error", "no round has begun within 5 s", "--join-timeout", "node 0");
    program_close(&p);
    close_stage(&s);
}
END_TEST

/* The store at which they meet is stopped. A program that heeds no SIGTERM ends before the lease of
 * 3 s does; once the store answers, all goes on. */
START_TEST(a_silent_rendezvous_ends_the_round_in_time)
{
    int port = port_find_free();
    program service =
        program_start_with(NULL, WORDS("store", "serve", program_flag("--port=", port)));
    port_await_listener(port);
    program p =
        nodes_start_c10d(port,
                         "--nnodes=1:2 --nproc-per-node=1 "
                         "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=1,join_timeout=60",
                         "trap '' TERM; echo round $MNIST_DDP_ROUND; touch up.$MNIST_DDP_ROUND; "
                         "while ! test -e go; do touch beat; sleep .02; done");
    test_folder_await("up.1");
    kill(service.pid, SIGSTOP);
    clock_sleep_ms(3000);
    test_folder_remove("beat");
    clock_sleep_ms(300);
    ck_assert(!file_exists("beat"));
    kill(service.pid, SIGCONT);
    test_folder_await("up.2");
    test_folder_write("go", "");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "round 1 ends", "lease", "does not answer");
    program_close(&p);
    kill(service.pid, SIGTERM);
    program_wait(&service, RUN_S);
    program_close(&service);
}
END_TEST

/* With ranks that wait in their processes for the round that does not begin. */
START_TEST(a_stop_while_a_round_begins)
{
    stage s;
    char endpoint[64];
    open_stage(&s);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=localhost:%d", s.port);
    program p = program_start_with(
        NULL, WORDS("train", "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint,
                    "--rdzv-conf=" TIMES, "--run-dir=r", "--model=mlp", "--epochs=900",
                    "--save-every=50epochs", "--threads=1", "--eval-every=0"));
    test_folder_await("r/model.safetensors");
    add_mute(&s, 1, 5000);
    program_await(&p, "round 2:", "mute");
    clock_sleep_ms(300);
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    ASSERT_FACTS(p.err, "SIGTERM", "joining");
    program_close(&p);
    close_stage(&s);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("elastic_meeting");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, a_node_that_never_comes_is_left_out);
    tcase_add_test(core, node_0_that_is_stopped_is_left_out);
    tcase_add_test(core, node_0_that_is_gone_is_left_out);
    tcase_add_test(core, nodes_that_never_meet_end);
    tcase_add_test(core, a_silent_rendezvous_ends_the_round_in_time);
    tcase_add_test(core, a_stop_while_a_round_begins);
    return test_folder_close(suite_run(suite));
}
