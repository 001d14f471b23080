/* How ranks come together without one launcher for all: started by hand, and by several launchers
 * as on several machines. */
#include "base/clock.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <signal.h>

enum { FIRST_WAITING_S = 3, SHORT_JOIN_S = 6 };

#define DIGITS "cache/mnist_ddp/digits-v2" /* where they would be drawn */
#define ADDRESS "MASTER_ADDR=127.0.0.1"

/* Rank `rank` of `world_size`, by hand. */
static program start_rank(int rank, int world_size, int port, const char *const *flags)
{
    return program_start_with(
        WORDS("env", program_flag("RANK=", rank), program_flag("LOCAL_RANK=", rank),
              program_flag("WORLD_SIZE=", world_size), ADDRESS, program_flag("MASTER_PORT=", port)),
        flags);
}

static void assert_world(const char *json_line, int world_size)
{
    json_error_t error;
    json_t *object = json_loads(json_line, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, json_line);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "world")), world_size);
    json_decref(object);
}

static void assert_same_model(const char *run_a, const char *run_b)
{
    const char *runs[] = {run_a, run_b};
    char path[FILE_PATH_BYTES], *data[2] = {NULL};
    size_t sizes[2] = {0};
    for (int i = 0; i < 2; i++) {
        ck_assert(file_join(runs[i], "model.safetensors", path) == STATUS_OK);
        ck_assert_msg(file_read(path, 64 << 20, &data[i], &sizes[i]) == STATUS_OK, "%s",
                      status_text());
    }
    ck_assert_msg(sizes[0] == sizes[1] && memcmp(data[0], data[1], sizes[0]) == 0,
                  "%s and %s hold different weights", run_a, run_b);
    free(data[0]);
    free(data[1]);
}

/* In either order: rank 0 serves the store, so rank 1 first has nothing to connect to. */
START_TEST(ranks_started_by_hand_join)
{
    int port = port_find_free(), first = _i;
    program ranks[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        int rank = i == 0 ? first : 1 - first;
        ranks[rank] = start_rank(rank, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "hand"));
        clock_sleep_ms(300);
    }
    for (int rank = 0; rank < 2; rank++)
        program_wait(&ranks[rank], RUN_S);
    ASSERT_EXIT(ranks[0], 0);
    ASSERT_EXIT(ranks[1], 0);
    assert_world(ranks[0].out, 2);
    ck_assert_str_eq(ranks[1].out, "");
    program launched = program_run_with(
        NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "2", "--run-dir", "launched"));
    ASSERT_EXIT(launched, 0);
    assert_same_model("hand", "launched");
    program_close(&ranks[0]);
    program_close(&ranks[1]);
    program_close(&launched);
}
END_TEST

/* In a line while it waits, and in the error. */
START_TEST(missing_rank_is_named)
{
    char address[32];
    int port = port_find_free();
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    int64_t start_ns = clock_now_ns();
    program p = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--join-timeout", "6"));
    program_await(&p, "1 of 2 ranks (1)");
    double said_s = clock_seconds(clock_now_ns() - start_ns);
    program_wait(&p, RUN_S);
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "error", "1 of 2 ranks (1)", address, "6 s");
    ck_assert(strstr(p.err, "1 of 2 ranks (1)") < strstr(p.err, "error"));
    ck_assert_msg(said_s > FIRST_WAITING_S - 0.1 && said_s < FIRST_WAITING_S + 2,
                  "the first line about waiting came after %g s", said_s);
    ck_assert_msg(took_s > SHORT_JOIN_S - 0.1 && took_s < SHORT_JOIN_S + 3, "gave up after %g s",
                  took_s);
    program_close(&p);
}
END_TEST

START_TEST(missing_rank_0_is_told)
{
    int port = port_find_free();
    program p = start_rank(1, 2, port, WORDS(TRAINING_SMALL, "--join-timeout", "1"));
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "error", program_flag("127.0.0.1:", port), "refused");
    program_close(&p);
}
END_TEST

START_TEST(one_rank_twice_is_refused)
{
    int port = port_find_free(), ranks[] = {0, 1, 1};
    program p[3];
    for (int i = 0; i < 3; i++)
        p[i] = start_rank(ranks[i], 3, port, WORDS(TRAINING_SMALL, "--run-dir", "twice"));
    for (int i = 0; i < 3; i++)
        program_wait(&p[i], RUN_S);
    for (int i = 0; i < 3; i++) {
        ASSERT_EXIT(p[i], 69);
        ASSERT_FACTS(p[i].err, "error", "rank 1", "twice", program_flag("127.0.0.1:", port));
        program_close(&p[i]);
    }
}
END_TEST

static program start_node(int node_rank, int port, const char *run_dir)
{
    return program_start_with(NULL,
                              WORDS(TRAINING_SMALL, "--nnodes=2",
                                    program_flag("--node_rank=", node_rank), "--nproc_per_node=2",
                                    "--master_addr=127.0.0.1", program_flag("--master_port=", port),
                                    "--backend", training_backend, "--run-dir", run_dir));
}

/* Trained together they would wait for each other's missing batches, or sum unlike models. */
START_TEST(other_settings_are_refused)
{
    static const char *const others[][3] = {{"batch-size", "--batch-size", "32"},
                                            {"seed", "--seed", "5"},
                                            {"cuda-graph", "--no-cuda-graph"},
                                            {"nccl-nvls", "--nccl-nvls"},
                                            {"device reference", "--device", "reference"},
                                            {"debug detail", "--debug", "detail"},
                                            {"(MNIST from other)", "--data-dir", "other"}};
    int port = port_find_free();
    program p[2];
    test_folder_shift_labels();
    p[0] = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "unlike"));
    p[1] = start_rank(1, 2, port,
                      WORDS(TRAINING_SMALL, "--run-dir", "unlike", others[_i][1], others[_i][2]));
    for (int i = 0; i < 2; i++)
        program_wait(&p[i], RUN_S);
    for (int i = 0; i < 2; i++) {
        ASSERT_EXIT(p[i], 64);
        ASSERT_FACTS(p[i].err, "error", "rank 0", "rank 1", others[_i][0]);
        program_close(&p[i]);
    }
}
END_TEST

/* What --isa says has the same bits, and so have the same files elsewhere. */
START_TEST(what_changes_no_bit_may_differ)
{
    int port = port_find_free();
    program p[2];
    ck_assert_int_eq(system("cp -r data elsewhere"), 0);
    p[0] = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "alike"));
    p[1] =
        start_rank(1, 2, port, WORDS(TRAINING_SMALL, "--device", "cpu", "--data-dir", "elsewhere"));
    for (int i = 0; i < 2; i++) {
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 0);
        program_close(&p[i]);
    }
}
END_TEST

/* One node has no data set, and would make digits of its own: it does not even begin to. */
START_TEST(a_node_without_the_data_is_refused)
{
    int port = port_find_free();
    program p[2];
    p[0] = start_node(0, port, "zero");
    p[1] = program_start_with(WORDS("env", "-u", "MNIST_DDP_DATA", "HOME=/nonexistent"),
                              WORDS(TRAINING_SMALL, "--nnodes=2", "--node_rank=1",
                                    "--nproc_per_node=2", "--master_addr=127.0.0.1",
                                    program_flag("--master_port=", port)));
    for (int i = 0; i < 2; i++) {
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 69);
        ASSERT_FACTS(p[i].err, "error", "generated digits", "MNIST", "data", "node 0");
        program_close(&p[i]);
    }
    ck_assert(!file_exists(DIGITS));
}
END_TEST

/* Nor does a rank that was started by hand, be it rank 0. */
START_TEST(a_rank_without_the_data_is_refused)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] =
            program_start_with(WORDS("env", "-u", i == _i ? "MNIST_DDP_DATA" : "PWD",
                                     "HOME=/nonexistent", program_flag("RANK=", i), "WORLD_SIZE=2",
                                     ADDRESS, program_flag("MASTER_PORT=", port)),
                               WORDS(TRAINING_SMALL));
    for (int i = 0; i < 2; i++) {
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 64);
        ASSERT_FACTS(p[i].err, "error", "rank 0", "rank 1", "generated digits", "(MNIST from ");
        program_close(&p[i]);
    }
    ck_assert(!file_exists(DIGITS));
}
END_TEST

/* Digits without ink; the first label is `label`. */
static void place_digits(const char *folder, const char *split, uint32_t count, char label)
{
    const uint32_t images[] = {htonl(2051), htonl(count), htonl(28), htonl(28)};
    const uint32_t labels[] = {htonl(2049), htonl(count)};
    const file_part parts[] = {{images, sizeof images}, {labels, sizeof labels}, {&label, 1}};
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%.200s/%s-images-idx3-ubyte", folder, split);
    ck_assert(file_write(path, parts, 1) == STATUS_OK);
    ck_assert_int_eq(truncate(path, (off_t)sizeof images + 784 * (off_t)count), 0);
    snprintf(path, sizeof path, "%.200s/%s-labels-idx1-ubyte", folder, split);
    ck_assert(file_write(path, parts + 1, 2) == STATUS_OK);
    ck_assert_int_eq(truncate(path, (off_t)(sizeof labels + count)), 0);
}

/* A rank that has no data set, and digits in a cache of its own. */
static program start_on_digits(int rank, int port)
{
    char folder[FILE_PATH_BYTES], cache[FILE_PATH_BYTES];
    snprintf(folder, sizeof folder, "own.%d/mnist_ddp/digits-v2", rank);
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s/own.%d", test_folder, rank);
    ck_assert(file_make_folders(folder) == STATUS_OK);
    place_digits(folder, "train", 60000, (char)rank);
    place_digits(folder, "t10k", 10000, 0);
    return program_start_with(WORDS("env", "-u", "MNIST_DDP_DATA", cache,
                                    program_flag("RANK=", rank), "WORLD_SIZE=2", ADDRESS,
                                    program_flag("MASTER_PORT=", port)),
                              WORDS(TRAINING_SMALL, "--timeout", "10"));
}

/* They agree that there is no MNIST, and have other digits all the same. */
START_TEST(ranks_begin_with_the_same_state)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = start_on_digits(i, port);
    for (int i = 0; i < 2; i++)
        program_wait(&p[i], RUN_S);
    ASSERT_EXIT(p[0], 72);
    ASSERT_EXIT(p[1], 70);
    ASSERT_FACTS(p[1].err, "error", "rank 1", "rank 0's", "data");
    for (int i = 0; i < 2; i++)
        program_close(&p[i]);
}
END_TEST

START_TEST(all_settings_that_differ_are_named)
{
    int port = port_find_free();
    program p[2];
    p[0] = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "unlike"));
    p[1] = start_rank(1, 2, port,
                      WORDS(TRAINING_SMALL, "--run-dir", "unlike", "--lr", "0.5", "--seed", "5"));
    for (int i = 0; i < 2; i++) {
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 64);
        ASSERT_FACTS(p[i].err, "error", "rank 0", "rank 1", "--lr=0.5", "--seed=5");
        program_close(&p[i]);
    }
}
END_TEST

START_TEST(second_rank_0_is_refused)
{
    int port = port_find_free();
    program first = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "zero"));
    port_await_listener(port);
    program second = start_rank(0, 2, port, WORDS(TRAINING_SMALL, "--run-dir", "zero"));
    program_wait(&second, RUN_S);
    ASSERT_EXIT(second, 69);
    ASSERT_FACTS(second.err, "error", "another rank 0", program_flag("127.0.0.1:", port),
                 program_flag("pid ", (int)first.pid));
    program other = start_rank(1, 2, port, WORDS(TRAINING_SMALL)); /* the first is none the worse */
    program_wait(&other, RUN_S);
    program_wait(&first, RUN_S);
    ASSERT_EXIT(other, 0);
    ASSERT_EXIT(first, 0);
    program_close(&first);
    program_close(&second);
    program_close(&other);
}
END_TEST

static const struct {
    const char *variables[5], *facts[3];
} places[] = {
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29500"}, {"MASTER_ADDR", "not set"}},
    {{"RANK=0", "WORLD_SIZE=2", ADDRESS}, {"MASTER_PORT", "not set"}},
    {{"RANK=0", ADDRESS, "MASTER_PORT=29500"}, {"WORLD_SIZE", "not set"}},
    {{"WORLD_SIZE=2", ADDRESS, "MASTER_PORT=29500"}, {"RANK", "not set"}},
    {{"RANK=2", "WORLD_SIZE=2", ADDRESS, "MASTER_PORT=29500"}, {"RANK 2", "0..1"}},
    {{"RANK=one", "WORLD_SIZE=2", ADDRESS, "MASTER_PORT=29500"}, {"RANK=one", "number"}},
    {{"RANK=0", "WORLD_SIZE=2", ADDRESS, "MASTER_PORT=99999"}, {"MASTER_PORT=99999", "65535"}},
    {{"LOCAL_RANK=2", "RANK=0", "WORLD_SIZE=2", ADDRESS, "MASTER_PORT=29500"}, {"LOCAL_RANK 2"}},
};
enum { N_PLACES = sizeof places / sizeof places[0] };

START_TEST(impossible_places_are_refused)
{
    const char *const *v = places[_i].variables;
    const char *const env[] = {"env", v[0], v[1], v[2], v[3], v[4], NULL};
    program p = program_run_with(env, WORDS(TRAINING_SMALL));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS_LISTED(p.err, places[_i].facts);
    program_close(&p);
}
END_TEST

START_TEST(two_nodes_train_as_one)
{
    int port = port_find_free(), first = _i;
    const char *run_dirs[] = {"node0", "node1"};
    program nodes[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        int node = i == 0 ? first : 1 - first;
        nodes[node] = start_node(node, port, run_dirs[node]);
        clock_sleep_ms(100);
    }
    for (int i = 0; i < 2; i++)
        program_wait(&nodes[i], RUN_S);
    ASSERT_EXIT(nodes[0], 0);
    ASSERT_EXIT(nodes[1], 0);
    assert_world(nodes[0].out, 4);
    ck_assert_str_eq(nodes[1].out, "");
    program one = program_run_with(NULL, WORDS(TRAINING_SMALL, "--nproc-per-node", "4", "--backend",
                                               training_backend, "--run-dir", "one"));
    ASSERT_EXIT(one, 0);
    assert_same_model("node0", "one");
    for (int i = 0; i < 2; i++)
        program_close(&nodes[i]);
    program_close(&one);
}
END_TEST

/* A rank that dies on one machine ends the run on both. */
START_TEST(death_on_one_node_ends_both)
{
    int port = port_find_free(), n[2];
    pid_t pids[2][MAX_RANKS];
    program nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = program_start_with(NULL, WORDS(TRAINING_SMALL, "--epochs", "100000",
                                                  "--nnodes=2", program_flag("--node_rank=", i),
                                                  "--nproc_per_node=2", "--master_addr=127.0.0.1",
                                                  program_flag("--master_port=", port), "--backend",
                                                  training_backend, "--run-dir", "node0"));
    training_await(&nodes[0]);
    for (int i = 0; i < 2; i++)
        n[i] = process_children(nodes[i].pid, pids[i]);
    kill(process_of_rank(nodes[1].pid, 3), SIGKILL);
    for (int i = 0; i < 2; i++)
        program_wait(&nodes[i], RUN_S);
    ASSERT_EXIT(nodes[1], 128 + SIGKILL);
    ASSERT_FACTS(nodes[1].err, "error", "rank 3", "SIGKILL");
    ASSERT_EXIT(nodes[0], 128 + SIGKILL); /* its own ranks only lost a peer */
    ASSERT_FACTS(nodes[0].err, "error", "rank 3", "SIGKILL");
    ASSERT_FACTS(nodes[0].err, "rank 3", "node 1");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(n[i], 2);
        process_assert_gone(pids[i], n[i], 1000);
        program_close(&nodes[i]);
    }
}
END_TEST

START_TEST(world_size_alone_trains_all_here)
{
    program p = program_run_with(
        NULL, WORDS(TRAINING_SMALL, "--world_size=4", "--node_rank=0", "--run-dir", "card"));
    ASSERT_EXIT(p, 0);
    assert_world(p.out, 4);
    program_close(&p);
}
END_TEST

/* And not waited for: --join-timeout is 600 s. */
START_TEST(taken_port_is_explained)
{
    int port = 0, fd = port_listen(&port);
    const char *flag = program_flag("--master_port=", port);
    int64_t start_ns = clock_now_ns();
    program p =
        _i == 0 ? program_run_with(NULL, WORDS(TRAINING_SMALL, "--nproc_per_node=2", flag))
        : _i == 1
            ? program_run_with(NULL, WORDS(TRAINING_SMALL, "--nnodes=2", "--node_rank=0",
                                           "--nproc_per_node=2", "--master_addr=127.0.0.1", flag))
            : start_rank(0, 2, port, WORDS(TRAINING_SMALL));
    if (_i == 2)
        program_wait(&p, RUN_S);
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "error", program_flag("127.0.0.1:", port),
                 program_flag("pid ", (int)getpid()), "free");
    ck_assert_msg(took_s < 2, "it took %g s", took_s);
    close(fd);
    program_close(&p);
}
END_TEST

/* Something else listens at MASTER_PORT, and never answers. */
START_TEST(foreign_server_is_no_store)
{
    int port = 0, fd = port_listen(&port);
    program p = start_rank(1, 2, port, WORDS(TRAINING_SMALL, "--join-timeout", "1"));
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "error", program_flag("127.0.0.1:", port));
    close(fd);
    program_close(&p);
}
END_TEST

static void add_tests_by_hand(Suite *suite)
{
    TCase *hand = suite_case(suite, "by hand", 2.5 * RUN_S);
    tcase_add_checked_fixture(hand, test_folder_clean, NULL);
    tcase_add_loop_test(hand, ranks_started_by_hand_join, 0, 2);
    tcase_add_test(hand, missing_rank_is_named);
    tcase_add_test(hand, missing_rank_0_is_told);
    tcase_add_test(hand, one_rank_twice_is_refused);
    tcase_add_loop_test(hand, other_settings_are_refused, 0, 7);
    tcase_add_test(hand, what_changes_no_bit_may_differ);
    tcase_add_test(hand, a_node_without_the_data_is_refused);
    tcase_add_loop_test(hand, a_rank_without_the_data_is_refused, 0, 2);
    tcase_add_test(hand, ranks_begin_with_the_same_state);
    tcase_add_test(hand, all_settings_that_differ_are_named);
    tcase_add_test(hand, second_rank_0_is_refused);
    tcase_add_loop_test(hand, impossible_places_are_refused, 0, N_PLACES);
    tcase_add_test(hand, foreign_server_is_no_store);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("join");
    TCase *nodes = suite_case(suite, "launchers", 2.5 * RUN_S);
    tcase_add_checked_fixture(nodes, test_folder_clean, NULL);
    tcase_add_loop_test(nodes, two_nodes_train_as_one, 0, 2);
    tcase_add_test(nodes, death_on_one_node_ends_both);
    if (!training_is_on_gloo()) {
        add_tests_by_hand(suite);
        tcase_add_test(nodes, world_size_alone_trains_all_here);
        tcase_add_loop_test(nodes, taken_port_is_explained, 0, 3);
    }
    return test_folder_close(suite_run(suite));
}
