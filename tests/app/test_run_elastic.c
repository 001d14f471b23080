/* Nodes that come and go, any program: several launchers on this machine, and the rounds that they
 * make. */
#include "base/clock.h"
#include "base/file.h"
#include "dist/store/store.h"
#include "model/checkpoint.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"
#include "tests/support/process.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>

#define TIMES "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=5,join_timeout=20 "
#define SHORT "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=1,join_timeout=20 "

/* A rank says its place, and runs until it is told. */
#define PLACE \
    "echo round $MNIST_DDP_ROUND rank $RANK of $WORLD_SIZE node $GROUP_RANK " \
    "restarts $TORCHELASTIC_RESTART_COUNT; touch up.$MNIST_DDP_ROUND.$RANK; "
#define RUN PLACE "while ! test -e go; do sleep .02; done"

static void await_rank(int round, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "up.%d.%d", round, rank);
    test_folder_await(name);
}

static void expect_ends(program *p, int n, const int *codes)
{
    nodes_wait(p, n);
    for (int i = 0; i < n; i++)
        ASSERT_EXIT(p[i], codes[i]);
}

/* One node, two, three; a launcher is killed, and its ranks with it; one is told to stop. */
START_TEST(nodes_come_and_go)
{
    int port = port_find_free();
    program p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = nodes_start_c10d(port, TIMES "--nnodes=1:3 --nproc-per-node=1", RUN);
        await_rank(i + 1, i);
    }
    int64_t start_ns = clock_now_ns();
    kill(p[1].pid, SIGKILL);
    await_rank(4, 1);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0); /* silence takes 15 s */
    kill(p[2].pid, SIGTERM);
    await_rank(5, 0);
    test_folder_write("go", "");
    expect_ends(p, 3, (const int[]){0, 137, 143});
    ASSERT_SAYS(p[0].out, "round 1 rank 0 of 1 node 0 restarts 0\n");
    ASSERT_SAYS(p[0].out, "round 2 rank 0 of 2 node 0 restarts 0\n");
    ASSERT_SAYS(p[0].out, "round 3 rank 0 of 3 node 0 restarts 0\n");
    ASSERT_SAYS(p[0].out, "round 4 rank 0 of 2 node 0 restarts 0\n");
    ASSERT_SAYS(p[0].out, "round 5 rank 0 of 1 node 0 restarts 0\n");
    ASSERT_SAYS(p[2].out, "round 4 rank 1 of 2 node 1 restarts 0\n");
    ASSERT_FACTS(p[0].err, "node 1", "gone");
    ASSERT_FACTS(p[0].err, "node 1", "SIGTERM");
    nodes_close(p, 3);
}
END_TEST

/* Also at a fixed size; the survivor says for whom it waits. */
START_TEST(a_dead_node_is_replaced)
{
    int port = port_find_free();
    program p[3];
    p[0] = nodes_start_c10d(port, TIMES "--nnodes=2", RUN);
    port_await_listener(port);
    p[1] = nodes_start_c10d(port, TIMES "--nnodes=2", "touch dies.$GROUP_RANK; " RUN);
    for (int rank = 0; rank < 4; rank++)
        await_rank(1, rank);
    kill(p[1].pid, SIGKILL); /* node 0 if it came to the rendezvous first */
    program_await(&p[0], file_exists("dies.0") ? "node 0" : "node 1", "gone");
    p[2] = nodes_start_c10d(port, TIMES "--nnodes=2", RUN);
    for (int rank = 0; rank < 4; rank++)
        await_rank(2, rank);
    test_folder_write("go", "");
    expect_ends(p, 3, (const int[]){0, 137, 0});
    ASSERT_SAYS(p[2].out, "round 2 rank 3 of 4 node 1 restarts 0\n");
    nodes_close(p, 3);
}
END_TEST

/* Whichever node it is on, for all nodes together. */
START_TEST(failed_ranks_count)
{
    int port = port_find_free(), failing = _i;
    char script[256];
    program p[2];
    snprintf(script, sizeof script,
             PLACE "test $RANK != $((%d * 2)) || { sleep .3; exit 7; }; sleep 30", failing);
    for (int i = 0; i < 2; i++) {
        p[i] = nodes_start_c10d(port, TIMES "--nnodes=2 --max-restarts=1", script);
        if (i == 0)
            port_await_listener(port);
    }
    expect_ends(p, 2, (const int[]){7, 7});
    for (int i = 0; i < 2; i++) {
        ASSERT_SAYS(p[i].out, "round 2 rank");
        ASSERT_SAYS(p[i].out, "restarts 1\n");
        ASSERT_SILENT(p[i].out, "round 3");
        ASSERT_FACTS(p[i].err, "restart 1 of 1");
    }
    nodes_close(p, 2);
}
END_TEST

START_TEST(nodes_may_have_unequally_many_ranks)
{
    static const char *const flags[] = {TIMES "--nnodes=2:2 --nproc-per-node=1",
                                        TIMES "--nnodes=2:2 --nproc-per-node=3"};
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = nodes_start_c10d(port, flags[i], RUN);
        if (i == 0)
            port_await_listener(port);
    }
    for (int rank = 0; rank < 4; rank++)
        await_rank(1, rank);
    test_folder_write("go", "");
    expect_ends(p, 2, (const int[]){0, 0});
    bool first = strstr(p[0].out, "node 0") != NULL; /* as they came */
    ASSERT_SAYS(p[0].out, first ? "rank 0 of 4 node 0 " : "rank 3 of 4 node 1 ");
    ASSERT_SAYS(p[1].out, first ? "rank 3 of 4 node 1 " : "rank 2 of 4 node 0 ");
    nodes_close(p, 2);
}
END_TEST

START_TEST(jobs_at_one_endpoint_do_not_merge)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start_c10d(port, TIMES "--nnodes=1:2 --nproc-per-node=1 --rdzv-id=ours", RUN);
    await_rank(1, 0);
    p[1] = nodes_start_c10d(port, TIMES "--nnodes=1:2 --nproc-per-node=1 --rdzv-id=theirs",
                            "touch theirs; " RUN);
    test_folder_await("theirs");
    test_folder_write("go", "");
    expect_ends(p, 2, (const int[]){0, 0});
    for (int i = 0; i < 2; i++) {
        ASSERT_SAYS(p[i].out, "round 1 rank 0 of 1 node 0 ");
        ASSERT_SILENT(p[i].out, "of 2");
    }
    nodes_close(p, 2);
}
END_TEST

START_TEST(nodes_of_unlike_settings_do_not_meet)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start_c10d(port, TIMES "--nnodes=1:2 --nproc-per-node=1 --max-restarts=3", RUN);
    await_rank(1, 0);
    p[1] = nodes_start_c10d(port, TIMES "--nnodes=1:2 --nproc-per-node=1", RUN);
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 64);
    ASSERT_FACTS(p[1].err, "error", "--max-restarts=0", "--max-restarts=3", "node 0");
    test_folder_write("go", "");
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 0);
    nodes_close(p, 2);
}
END_TEST

/* The host of the only store at which they meet dies, or answers no more: the others end, and say
 * why. */
START_TEST(without_the_rendezvous_all_end)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = nodes_start_c10d(port, SHORT "--nnodes=1:2 --nproc-per-node=1", RUN);
        await_rank(i + 1, 0);
    }
    await_rank(2, 1);
    int64_t start_ns = clock_now_ns();
    kill(p[0].pid, _i == 0 ? SIGKILL : SIGSTOP);
    program_wait(&p[1], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), _i == 0 ? 6.0 : 12.0);
    ASSERT_EXIT(p[1], 69);
    ASSERT_FACTS(p[1].err, "error", "store", "gone", program_flag(":", port));
    kill(p[0].pid, SIGKILL);
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 137);
    nodes_close(p, 2);
}
END_TEST

/* Its ranks take their time to end a round, as another node joins: the agent is told to stop, and
 * its exit code says that. */
START_TEST(a_stop_while_a_round_ends)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start_c10d(port, SHORT "--nnodes=1:2 --nproc-per-node=1",
                            "trap 'touch asked' TERM; " RUN);
    await_rank(1, 0);
    p[1] = nodes_start_c10d(port, SHORT "--nnodes=1:2 --nproc-per-node=1", RUN);
    test_folder_await("asked");
    kill(p[0].pid, SIGTERM);
    kill(p[1].pid, SIGKILL);
    process_await_taken(p[0].pid, SIGTERM);
    test_folder_write("go", "");
    expect_ends(p, 2, (const int[]){143, 137});
    nodes_close(p, 2);
}
END_TEST

static bool says(const program *p, const char *word)
{
    char *said = program_peek(p);
    bool has_it = strstr(said, word) != NULL;
    free(said);
    return has_it;
}

/* Both nodes of a training job are told to stop before any checkpoint: the work up to there is
 * saved. */
START_TEST(a_stop_of_all_loses_nothing)
{
    int port = port_find_free();
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=localhost:%d", port);
    const char *flags[] = {"train",
                           "--nnodes=1:2",
                           "--nproc-per-node=1",
                           "--rdzv-backend=c10d",
                           endpoint,
                           "--rdzv-conf=last_call_timeout=2",
                           "--run-dir=r",
                           "--model=mlp",
                           "--epochs=900",
                           "--threads=1",
                           "--batch-size=10",
                           "--eval-every=0",
                           "--inject=delay:rank=0,step=20,ms=100",
                           NULL};
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(NULL, flags);
    while (!says(&p[0], "injected") && !says(&p[1], "injected"))
        clock_sleep_ms(POLL_MS);
    for (int i = 0; i < 2; i++)
        kill(p[i].pid, SIGTERM);
    expect_ends(p, 2, (const int[]){143, 143});
    nodes_close(p, 2);
    checkpoint_state saved;
    char path[FILE_PATH_BYTES];
    bool found = false;
    ck_assert_int_eq(checkpoint_find("r", CHECKPOINT_NEWEST, &found, &saved, path), STATUS_OK);
    ck_assert(found);
    ck_assert_int_ge(saved.at.step, 20);
}
END_TEST

/* With the rank that writes to the run's folder: it keeps the lock. */
START_TEST(a_stopped_node_0_stops_nobody)
{
    char endpoint[64];
    store_server *server = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=127.0.0.1:%d", store_server_port(server));
    const char *flags[] = {"train",
                           "--nnodes=1:2",
                           "--nproc-per-node=1",
                           "--rdzv-backend=c10d",
                           endpoint,
                           "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1",
                           "--run-dir=r",
                           "--model=mlp",
                           "--epochs=2",
                           "--threads=1",
                           "--batch-size=10",
                           "--inject=stop:rank=0,step=20",
                           NULL};
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(NULL, flags);
    while (!says(&p[0], "SIGSTOP") && !says(&p[1], "SIGSTOP"))
        clock_sleep_ms(POLL_MS);
    int first = says(&p[0], "SIGSTOP") ? 0 : 1;
    kill(p[first].pid, SIGSTOP);
    program_wait(&p[1 - first], RUN_S);
    ASSERT_EXIT(p[1 - first], 0);
    ASSERT_FACTS(p[1 - first].err, "taken from rank 0 of round 1");
    kill(p[first].pid, SIGKILL);
    program_wait(&p[first], RUN_S);
    nodes_close(p, 2);
    store_server_destroy(server);
}
END_TEST

enum { MAX_EVENTS = 64 };

static int by_time(const void *a, const void *b)
{
    int64_t a_ns = json_integer_value(json_object_get(*(json_t *const *)a, "monotonic_ns"));
    int64_t b_ns = json_integer_value(json_object_get(*(json_t *const *)b, "monotonic_ns"));
    return (a_ns > b_ns) - (a_ns < b_ns);
}

/* --event-log, of both nodes: a line of JSON each. One process may write later than another what it
 * has noted before. Returns how many there are, by their time. */
static int read_events(const char *path, json_t *out[MAX_EVENTS])
{
    char line[2048];
    int n = 0;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    for (; fgets(line, sizeof line, file) != NULL; n++) {
        ck_assert_int_lt(n, MAX_EVENTS);
        out[n] = json_loads(line, 0, NULL);
        ck_assert_msg(out[n] != NULL, "no JSON: %s", line);
        ck_assert_int_gt(json_integer_value(json_object_get(out[n], "monotonic_ns")), 0);
    }
    fclose(file);
    qsort(out, (size_t)n, sizeof *out, by_time);
    return n;
}

/* What stands there of a job whose second node is killed in round 1, in words: the event, its round
 * and the seconds that it must have. */
START_TEST(the_event_log_tells_of_a_recovery)
{
    static const struct {
        const char *event;
        int round, times;
        const char *seconds[3];
    } WANT[] = {
        {"waits", 0, 2, {NULL}},
        {"round_begins", 1, 2, {"waited_s"}},
        {"workers", 1, 2, {NULL}},
        {"opens", 1, 2, {"opened_s"}},
        {"first_step", 1, 2, {"stepped_s"}},
        {"leaves", 1, 1, {NULL}},
        {"node_lost", 1, 1, {NULL}},
        {"waits", 1, 1, {"left_s"}},
        {"node_gone", 2, 1, {NULL}},
        {"round_begins", 2, 1, {"waited_s"}},
        {"workers", 2, 1, {NULL}},
        {"opens", 2, 1, {"left_s", "waited_s", "opened_s"}},
        {"first_step", 2, 1, {"stepped_s"}},
        {"closed", 2, 1, {NULL}},
        {"ends", 2, 1, {NULL}},
    };
    enum { N_WANT = sizeof WANT / sizeof WANT[0] };
    int times[N_WANT] = {0}, furthest = 0;
    json_t *events[MAX_EVENTS];
    char endpoint[64];
    store_server *server = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=127.0.0.1:%d", store_server_port(server));
    const char *flags[] = {"train",
                           "--nnodes=1:2",
                           "--nproc-per-node=1",
                           "--rdzv-backend=c10d",
                           endpoint,
                           "--rdzv-conf=last_call_timeout=2",
                           "--run-dir=r",
                           "--model=mlp",
                           "--epochs=2",
                           "--threads=1",
                           "--batch-size=10",
                           "--event-log=events",
                           "--inject=delay:rank=1,step=20,ms=60000",
                           NULL};
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(NULL, flags);
    while (!says(&p[0], "injected") && !says(&p[1], "injected"))
        clock_sleep_ms(POLL_MS);
    int lost = says(&p[0], "injected") ? 0 : 1;
    kill(p[lost].pid, SIGKILL);
    program_wait(&p[lost], RUN_S);
    program_wait(&p[1 - lost], RUN_S);
    ASSERT_EXIT(p[1 - lost], 0);
    int n = read_events("events", events);
    for (int k = 0; k < n; k++) {
        const json_t *event = events[k];
        const char *name = json_string_value(json_object_get(event, "event"));
        int64_t round = json_integer_value(json_object_get(event, "round"));
        int i = 0;
        while (i < N_WANT && (strcmp(WANT[i].event, name) != 0 || WANT[i].round != round))
            i++;
        ck_assert_msg(i < N_WANT, "unexpected: %s of round %lld", name, (long long)round);
        for (int j = 0; j < 3 && WANT[i].seconds[j] != NULL; j++) {
            double took_s = json_number_value(json_object_get(event, WANT[i].seconds[j]));
            ck_assert_msg(json_object_get(event, WANT[i].seconds[j]) != NULL && took_s >= 0 &&
                              took_s < RUN_S,
                          "%s of %s is %g", WANT[i].seconds[j], name, took_s);
        }
        times[i]++;
        if (round == 2 && strcmp(name, "workers") != 0) { /* the rank may open before that */
            ck_assert_int_ge(i, furthest);
            furthest = i;
        }
        json_decref(events[k]);
    }
    for (int i = 0; i < N_WANT; i++)
        ck_assert_msg(times[i] == WANT[i].times, "%s of round %d: %d times", WANT[i].event,
                      WANT[i].round, times[i]);
    nodes_close(p, 2);
    store_server_destroy(server);
}
END_TEST

/* A node of `train` whose rank 0 is stopped before its second step, which is an epoch's last. */
static program start_training(int port, const char *flag, const char *other)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=localhost:%d", port);
    return program_start_with(
        NULL, WORDS("train", "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint,
                    "--rdzv-conf=last_call_timeout=1", "--run-dir=r", "--model=mlp", "--threads=1",
                    "--batch-size=300", "--json", "--inject=stop:rank=0,step=2", flag, other));
}

/* Returns its rank once it is stopped. */
static pid_t await_stopped(const program *p)
{
    program_await(p, "injected");
    pid_t rank = process_of_rank(p->pid, 0);
    process_await_stopped(rank);
    return rank;
}

/* It is not taken in for a round that has nothing to do, and the result is not said again. */
START_TEST(who_comes_after_the_last_step_is_late)
{
    int port = port_find_free();
    program p[2];
    p[0] = start_training(port, "--epochs=1", "--seed=1");
    pid_t rank = await_stopped(&p[0]);
    p[1] = start_training(port, "--epochs=1", "--seed=1");
    program_await(&p[0], "round 1 ends"); /* it has been seen */
    kill(rank, SIGCONT);
    expect_ends(p, 2, (const int[]){0, 0});
    const char *first = strstr(p[0].out, "\"train_s\"");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "\"train_s\""));
    ck_assert_str_eq(p[1].out, "");
    ASSERT_FACTS(p[1].err, "has ended");
    nodes_close(p, 2);
}
END_TEST

/* The job goes on without it. */
START_TEST(a_newcomer_with_other_flags_ends_alone)
{
    static const char *const others[][3] = {
        {"--limit=300", "--limit=300", "no --limit"},
        {"--data-dir=other", "(MNIST from other)", "data"},
        {"--device=reference", "device reference on one", "device"},
        {"--debug=detail", "debug detail on one", "debug off on node 0"},
    };
    int port = port_find_free();
    program p[2];
    test_folder_shift_labels();
    p[0] = start_training(port, "--epochs=2", "--seed=1");
    pid_t rank = await_stopped(&p[0]);
    p[1] = start_training(port, "--epochs=2", others[_i][0]);
    program_await(&p[1], "error", "node 0");
    kill(rank, SIGCONT);
    expect_ends(p, 2, (const int[]){0, 64});
    ASSERT_FACTS(p[1].err, "error", "node 0", others[_i][1], others[_i][2]);
    ASSERT_SAYS(p[0].out, "\"train_s\"");
    nodes_close(p, 2);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_elastic");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, nodes_come_and_go);
    tcase_add_test(core, a_dead_node_is_replaced);
    tcase_add_loop_test(core, failed_ranks_count, 0, 2);
    tcase_add_test(core, nodes_may_have_unequally_many_ranks);
    tcase_add_test(core, jobs_at_one_endpoint_do_not_merge);
    tcase_add_test(core, nodes_of_unlike_settings_do_not_meet);
    tcase_add_loop_test(core, without_the_rendezvous_all_end, 0, 2);
    tcase_add_test(core, a_stop_while_a_round_ends);
    tcase_add_test(core, a_stop_of_all_loses_nothing);
    tcase_add_test(core, who_comes_after_the_last_step_is_late);
    tcase_add_loop_test(core, a_newcomer_with_other_flags_ends_alone, 0, 4);
    tcase_add_test(core, a_stopped_node_0_stops_nobody);
    tcase_add_test(core, the_event_log_tells_of_a_recovery);
    return test_folder_close(suite_run(suite));
}
