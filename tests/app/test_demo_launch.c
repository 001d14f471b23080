/* mnist_ddp demo: what it shows of a launch, against what is known of it here. */
#include "base/clock.h"
#include "tests/app/support/demo_run.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/program.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* 3 nodes x 8 ranks: the notes' quiz. */
START_TEST(three_nodes_of_eight_are_24_ranks)
{
    enum { NODES = 3, NPROC = 8 };
    json_t *document = demo_run("world-size");
    ck_assert_double_eq(demo_run_fact(document, "ranks"), NODES * NPROC);
    for (int node = 0; node < NODES; node++) {
        char ranks[32];
        snprintf(ranks, sizeof ranks, "%d to %d", node * NPROC, (node + 1) * NPROC - 1);
        ck_assert_int_eq(json_integer_value(demo_run_cell(document, 1, node, 0)), node);
        ck_assert_str_eq(json_string_value(demo_run_cell(document, 1, node, 1)), "0 to 7");
        ck_assert_str_eq(json_string_value(demo_run_cell(document, 1, node, 2)), ranks);
        ck_assert_int_eq(json_integer_value(demo_run_cell(document, 1, node, 3)), NODES * NPROC);
    }
    ck_assert_double_eq(demo_run_fact(document, "refused_with"), 64);
    char *said = demo_run_text(document, -1);
    ASSERT_FACTS(said, "--node-rank=5", "3 machines", "from 0 to 2");
    free(said);
    json_decref(document);
}
END_TEST

/* drop-conn breaks connections of its; else it says that it is not built. */
static bool has_gloo(void)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/mnist_ddp_gloo.so", getenv("BUILD_DIR"));
    return access(path, F_OK) == 0;
}

/* Of each fault: with what its training ends (docs/failures.md), and who is named. */
START_TEST(faults_are_injected_and_named)
{
    static const struct {
        const char *name;
        int code;
        const char *facts[3];
    } faults[] = {
        {"kill", 137, {"rank 1", "SIGKILL", NULL}},
        {"stop", 110, {"rank 1", "stopped", NULL}},
        {"delay", 0, {"waiting", NULL}},
        {"drop-conn", 72, {"[rank 0] error", NULL}},
        {"uneven", 70, {"all_reduce", "2 x f64", NULL}},
        {"forget-set-epoch", 0, {"epoch 2", "epoch 1", NULL}},
        {"port-busy", 69, {"port is taken", NULL}},
    };
    enum { FAULTS = sizeof faults / sizeof faults[0], DELAY = 2, PHASES = 6 };
    json_t *document = demo_run("failure");
    ck_assert_uint_eq(json_array_size(json_object_get(document, "frames")), 1 + 2 * FAULTS);
    for (int i = 0; i < FAULTS; i++) {
        char *said = demo_run_text(document, 2 + 2 * i);
        if (has_gloo() || strcmp(faults[i].name, "drop-conn") != 0) {
            ck_assert_double_eq(demo_run_fact(document, faults[i].name), faults[i].code);
            ASSERT_FACTS_LISTED(said, faults[i].facts);
        }
        free(said);
    }
    double all_s = 0; /* of rank 0: what it came late itself it has not waited */
    for (int phase = 0; phase < PHASES; phase++)
        all_s += json_number_value(demo_run_cell(document, 2 + 2 * DELAY, phase, 1));
    ck_assert_double_ge(all_s, 0.35);
    /* The delay is 0.4 s. On a loaded machine the other phases are long, too. */
    ck_assert_double_gt(demo_run_fact(document, "waiting_s"), all_s / 2 < 0.3 ? all_s / 2 : 0.3);
    json_decref(document);
}
END_TEST

START_TEST(one_fault_may_be_chosen)
{
    json_t *document = demo_run("failure --inject=kill:rank=2,step=1");
    char *said = demo_run_text(document, 2);
    ASSERT_FACTS(said, "rank 2 failed first", "SIGKILL");
    ASSERT_FACTS(said, "..."); /* for what is not quoted */
    free(said);
    json_decref(document);
    program p = program_run_line("demo failure --inject=kil");
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "kil", "kill");
    program_close(&p);
}
END_TEST

/* Ctrl-C while a training hangs in it: nothing of it is left. One of its ranks is stopped, or late
 * for long: a demo that waited for it would be killed after 5 s, and leave its folder. */
START_TEST(a_stop_ends_the_training_too)
{
    static const char *const hangs[][2] = {
        {"--inject=stop:rank=1,step=1", "rank hangs"},
        {"--inject=delay:rank=1,step=1,ms=100000", "rank is late"}};
    program p =
        program_start(WORDS(program_mnist_ddp(), "demo", "failure", "--fast", hangs[_i][0]));
    demo_run_await(&p, hangs[_i][1]);
    clock_sleep_ms(500);
    int64_t told_ns = clock_now_ns();
    kill(-p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - told_ns), 2);
    program_close(&p);
    glob_t left;
    ck_assert_int_eq(glob("mnist_ddp_*", 0, NULL, &left), GLOB_NOMATCH);
}
END_TEST

/* The ranks come at 0, 250 and 500 ms, and none leaves before the last has come. */
START_TEST(ranks_wait_for_the_last_one)
{
    enum { N = 3, MEETING = 2 };
    json_t *document = demo_run("rendezvous");
    for (int rank = 0; rank < N; rank++) {
        ck_assert_int_ge(atoi(json_string_value(demo_run_cell(document, MEETING, rank, 2))), 500);
        ck_assert_int_ge(atoi(json_string_value(demo_run_cell(document, MEETING, rank, 1))),
                         (rank + 1) % N * 250);
    }
    ck_assert_str_eq(json_string_value(demo_run_cell(document, MEETING, N - 1, 3)),
                     "connection refused");
    ASSERT_FACTS(json_string_value(demo_run_cell(document, MEETING, 1, 3)), "a store",
                 "ranks 0, 2");
    ck_assert_double_eq(demo_run_fact(document, "keys_shown"), 3 + 2 * N);
    ck_assert_double_eq(demo_run_fact(document, "keys_in_store"), 3 + 2 * N);
    ck_assert_double_eq(demo_run_fact(document, "missing_exit_code"), 69);
    char *said = demo_run_text(document, -1);
    ASSERT_FACTS(said, "1 of 2 ranks", "did not join", "within 1 s");
    free(said);
    json_decref(document);
}
END_TEST

/* Ranks that are started by hand show what they were given. */
START_TEST(variables_are_those_of_the_rank)
{
    char port[16], variable[32];
    program ranks[2];
    snprintf(port, sizeof port, "%d", port_find_free());
    snprintf(variable, sizeof variable, "MASTER_PORT=%s", port);
    for (int rank = 0; rank < 2; rank++)
        ranks[rank] = program_start_with(WORDS("env", rank == 0 ? "RANK=0" : "RANK=1",
                                               "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", variable),
                                         WORDS("demo", "rendezvous", "--fast"));
    for (int rank = 0; rank < 2; rank++) {
        program_wait(&ranks[rank], RUN_S);
        ASSERT_EXIT(ranks[rank], 0);
    }
    ASSERT_FACTS(ranks[0].out, "rank 1", "not set", "127.0.0.1", port);
    ck_assert_str_eq(ranks[1].out, "");
    for (int rank = 0; rank < 2; rank++)
        program_close(&ranks[rank]);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo_launch");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, three_nodes_of_eight_are_24_ranks);
    tcase_add_test(core, faults_are_injected_and_named);
    tcase_add_test(core, one_fault_may_be_chosen);
    tcase_add_loop_test(core, a_stop_ends_the_training_too, 0, 2);
    tcase_add_test(core, ranks_wait_for_the_last_one);
    tcase_add_test(core, variables_are_those_of_the_rank);
    return test_folder_close(suite_run(suite));
}
