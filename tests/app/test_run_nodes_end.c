/* How the nodes of a job start again and end together. */
#include "base/clock.h"
#include "tests/app/support/launcher_keys.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/port.h"

#include <signal.h>

/* Rank 3 fails twice: all ranks of both nodes start again, twice, with the ranks they had. */
START_TEST(all_nodes_start_again)
{
    int port = port_find_free();
    program p[2];
    char words[64];
    const char *script =
        "echo $RANK.$TORCHELASTIC_RESTART_COUNT.$MASTER_PORT; "
        "test $TORCHELASTIC_RESTART_COUNT = 2 || test $RANK != 3 || { echo oh >&2; exit 8; }; "
        "test $TORCHELASTIC_RESTART_COUNT = 2 || sleep 20";
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 --max-restarts=3", script);
    nodes_wait(p, 2);
    for (int i = 0; i < 2; i++) {
        ASSERT_EXIT(p[i], 0);
        for (int rank = 2 * i; rank < 2 * i + 2; rank++)
            for (int attempt = 0; attempt < 3; attempt++) {
                snprintf(words, sizeof words, "%d.%d.%d\n", rank, attempt, port);
                ASSERT_SAYS(p[i].out, words);
            }
        ASSERT_FACTS(p[i].err, "rank 3", "exit code 8", "1 of 3");
        ASSERT_FACTS(p[i].err, "rank 3", "exit code 8", "2 of 3");
        ASSERT_FACTS(p[i].err,
                     i == 0 ? "| oh" : "it says: oh"); /* node 0 has the whole report too */
    }
    nodes_close(p, 2);
}
END_TEST

/* The budget is the job's, whoever fails; then all exit with the first failing rank's code. */
START_TEST(the_budget_is_the_jobs)
{
    int port = port_find_free();
    program p[3];
    const char *script = "test $TORCHELASTIC_RESTART_COUNT != 0 || test $RANK != 0 || exit 3; "
                         "test $TORCHELASTIC_RESTART_COUNT != 1 || test $RANK != 5 || kill -9 $$; "
                         "sleep 20";
    for (int i = 0; i < 3; i++)
        p[i] = nodes_start(i, port, "--nnodes=3 --max-restarts=1", script);
    nodes_wait(p, 3);
    for (int i = 0; i < 3; i++) {
        ASSERT_EXIT(p[i], 137);
        ASSERT_FACTS(p[i].err, "rank 0", "exit code 3", "1 of 1");
    }
    ASSERT_FACTS(p[0].err, "error", "rank 5", "SIGKILL");
    ASSERT_FACTS(p[1].err, "error", "rank 5", "node 2", "SIGKILL");
    ASSERT_FACTS(p[2].err, "rank 5", "local rank 1", "node 2");
    nodes_close(p, 3);
}
END_TEST

/* A node that is done starts again with the others. */
START_TEST(who_ended_well_starts_again_too)
{
    int port = port_find_free();
    program p[2];
    const char *script = "echo $RANK.$TORCHELASTIC_RESTART_COUNT; test $RANK = 3 || exit 0; "
                         "test $TORCHELASTIC_RESTART_COUNT = 1 || { sleep .5; exit 1; }";
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 --max-restarts=1", script);
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    ASSERT_SAYS(p[0].out, "0.1\n");
    ASSERT_SAYS(p[1].out, "2.1\n");
    nodes_close(p, 2);
}
END_TEST

/* Its ranks were stopped for another node's sake; who tells it to stop, too, does not wait for that
 * node's. */
START_TEST(a_signal_is_why_it_ends_alone)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2",
                           "trap '' TERM; touch up.$RANK; while :; do sleep .1; done");
    for (int rank = 0; rank < 4; rank++) {
        char name[16];
        snprintf(name, sizeof name, "up.%d", rank);
        test_folder_await(name);
    }
    kill(p[0].pid, SIGTERM);
    for (int i = 0; i < 2; i++) {
        clock_sleep_ms(1000); /* node 1 kills its ranks only at the second signal */
        kill(p[1].pid, SIGTERM);
    }
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 143);
    kill(p[0].pid, SIGTERM);
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 143);
    nodes_close(p, 2);
}
END_TEST

START_TEST(a_signal_to_one_ends_all)
{
    int port = port_find_free(), victim = _i;
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 --max-restarts=5", "touch up.$RANK; sleep 30");
    test_folder_await("up.0");
    test_folder_await("up.3");
    kill(p[victim].pid, SIGINT);
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 130);
    ASSERT_EXIT(p[1], 130);
    ASSERT_FACTS(p[1 - victim].err, program_flag("node ", victim), "SIGINT");
    nodes_close(p, 2);
}
END_TEST

/* Node 0 is missed at its port, another one by its number. */
static void assert_lost(const program *other, int victim, int port)
{
    if (victim == 0)
        ASSERT_FACTS(other->err, "error", "node 0", program_flag("127.0.0.1:", port));
    else
        ASSERT_FACTS(other->err, "error", program_flag("node ", victim));
}

#define ALIVE "--rdzv-conf=keep_alive_interval=0.3,keep_alive_max_attempt=3"

/* No launcher, no workers; the others notice by its closed connection, or by the closed store, long
 * before its silence would tell. */
START_TEST(a_dead_launcher_ends_all)
{
    int port = port_find_free(), victim = _i, n = 0;
    pid_t pids[MAX_RANKS];
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 --max-restarts=5", "touch up.$RANK; sleep 30");
    test_folder_await("up.0");
    test_folder_await("up.1");
    test_folder_await("up.2");
    test_folder_await("up.3");
    n = process_children(p[victim].pid, pids);
    ck_assert_int_eq(n, 2);
    kill(p[victim].pid, SIGKILL);
    process_assert_gone(pids, n, 1000);
    int64_t start_ns = clock_now_ns();
    nodes_wait(p, 2);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 4.0);
    ASSERT_EXIT(p[1 - victim], 72);
    assert_lost(&p[1 - victim], victim, port);
    nodes_close(p, 2);
}
END_TEST

/* A node that has ended well waits for one that is dead, and does not say that it goes on. */
START_TEST(a_silent_node_does_not_go_on)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port,
                           "--nnodes=2 --rdzv-conf=keep_alive_interval=4,keep_alive_max_attempt=4",
                           "test $RANK -lt 2 || { touch up.$RANK; sleep 60; }");
    test_folder_await("up.2");
    test_folder_await("up.3");
    kill(p[1].pid, SIGSTOP);
    program_wait(&p[0], RUN_S);
    kill(p[1].pid, SIGKILL);
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[0], 72);
    ASSERT_FACTS(p[0].err, "1 of 2 nodes", "node 1", "not been heard of");
    const char *quiet = strstr(p[0].err, "heard of for ");
    ck_assert_double_lt(strtod(quiet + strlen("heard of for "), NULL), RUN_S);
    ASSERT_NO_FACTS(p[0].err, "node 1 goes on");
    nodes_close(p, 2);
}
END_TEST

/* A launcher that is stopped looks like a machine that is. */
START_TEST(a_silent_node_is_given_up)
{
    int port = port_find_free(), victim = _i;
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 " ALIVE, "touch up.$RANK; sleep 30");
    test_folder_await("up.0");
    test_folder_await("up.3");
    kill(p[victim].pid, SIGSTOP);
    program_wait(&p[1 - victim], RUN_S);
    ASSERT_EXIT(p[1 - victim], 72);
    assert_lost(&p[1 - victim], victim, port);
    kill(p[victim].pid, SIGKILL);
    program_wait(&p[victim], RUN_S);
    nodes_close(p, 2);
}
END_TEST

/* Whether an answer of the store at the port lies unread with who asked. */
static bool an_answer_waits(int port)
{
    char line[512];
    bool waits = false;
    FILE *sockets = fopen("/proc/net/tcp", "r");
    ck_assert_ptr_nonnull(sockets);
    while (fgets(line, sizeof line, sockets) != NULL) {
        unsigned peer = 0, unread_bytes = 0;
        int n = sscanf(line, " %*d: %*x:%*x %*x:%x %*x %*x:%x", &peer, &unread_bytes);
        waits = waits || (n == 2 && peer == (unsigned)port && unread_bytes > 0);
    }
    fclose(sockets);
    return waits;
}

/* Stops a launcher while it waits for its next turn: one that asks its store something then is told
 * of a connection that broke, and knows no more. */
static void stop_between_turns(pid_t launcher, int port)
{
    for (;;) {
        kill(launcher, SIGSTOP);
        clock_sleep_ms(50);
        if (!an_answer_waits(port))
            return;
        kill(launcher, SIGCONT);
        clock_sleep_ms(20);
    }
}

/* It goes on later: each node says what it knows of that. */
START_TEST(a_launcher_that_was_stopped_knows_why_it_is_lost)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 " ALIVE, "touch up.$RANK; sleep 30");
    test_folder_await("up.0");
    test_folder_await("up.3");
    stop_between_turns(p[1].pid, port);
    if (_i == 1)
        nodes_put_key(port, KEY_ALIVE_OF_NODE_1, "");
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 72);
    ASSERT_FACTS(p[0].err, "error", "node 1", "not been heard");
    ASSERT_SILENT(p[0].err, "()");
    clock_sleep_ms(500);
    kill(p[1].pid, SIGCONT);
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 72);
    ASSERT_FACTS(p[1].err, "error", "node 1", "did not run");
    ASSERT_NO_FACTS(p[1].err, "node 0", "gone");
    nodes_close(p, 2);
}
END_TEST

/* Node 1 has failed and is told to stop, and node 0 says nothing: node 1 ends alone, under its own
 * number. */
START_TEST(a_node_that_decides_alone_knows_its_number)
{
    int port = port_find_free();
    program p[2];
    const char *script = "trap 'touch told.$RANK; sleep 1; exit 0' TERM; touch up.$RANK; "
                         "while ! test -e go; do sleep .02; done; test $RANK != 3 || exit 3; "
                         "while :; do sleep .02; done";
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2 --max-restarts=1", script);
    for (int rank = 0; rank < 4; rank++)
        test_folder_await(program_flag("up.", rank));
    kill(p[0].pid, SIGSTOP);
    test_folder_write("go", "");
    test_folder_await("told.2");
    kill(p[1].pid, SIGTERM);
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 143);
    ASSERT_FACTS(p[1].err, "rank 3", "exit code 3");
    ASSERT_FACTS(p[1].err, "no restart", "node 1", "SIGTERM");
    ASSERT_SILENT(p[1].err, "node 0 was stopped");
    kill(p[0].pid, SIGKILL);
    program_wait(&p[0], RUN_S);
    nodes_close(p, 2);
}
END_TEST

/* Our own training: killed on one node, started again on both, the same bits in the end. */
START_TEST(train_goes_on_from_the_checkpoint)
{
    int port = port_find_free();
    program p[2];
    const char *const fault = "kill:rank=3,step=5";
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(NULL, WORDS(TRAINING_SMALL, "--epochs", "3", "--batch-size", "16",
                                              "--nnodes=2", program_flag("--node_rank=", i),
                                              "--nproc_per_node=2", "--master_addr=127.0.0.1",
                                              program_flag("--master_port=", port), "--run-dir",
                                              "killed", "--max-restarts", "1", "--inject", fault));
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    ASSERT_FACTS(p[0].err, "rank 3", "SIGKILL", "1 of 1");
    ASSERT_FACTS(p[0].err, "resuming", "epoch 1");
    program one =
        program_run_with(NULL, WORDS(TRAINING_SMALL, "--epochs", "3", "--batch-size", "16",
                                     "--nproc-per-node", "4", "--run-dir", "whole"));
    ASSERT_EXIT(one, 0);
    char *a = NULL, *b = NULL;
    size_t a_bytes, b_bytes;
    ck_assert(file_read("killed/model.safetensors", 64 << 20, &a, &a_bytes) == STATUS_OK);
    ck_assert(file_read("whole/model.safetensors", 64 << 20, &b, &b_bytes) == STATUS_OK);
    ck_assert(a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0);
    free(a);
    free(b);
    program_close(&one);
    nodes_close(p, 2);
}
END_TEST

/* A rank that hangs on one node is named on the other, whose ranks waited for it. */
START_TEST(a_stopped_rank_is_named_across_nodes)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(
            NULL, WORDS(TRAINING_SMALL, "--epochs", "100000", "--no-save-model", "--timeout", "2",
                        "--nnodes=2", program_flag("--node_rank=", i), "--nproc_per_node=2",
                        "--master_addr=127.0.0.1", program_flag("--master_port=", port), "--inject",
                        "stop:rank=3,step=4"));
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 110);
    ASSERT_EXIT(p[1], 110);
    const char *box = strstr(p[0].err, "exit code 110");
    ck_assert_msg(box != NULL, "no box in: %s", p[0].err);
    ASSERT_FACTS(box, "rank 3", "stopped", "all_reduce", "step 4");
    for (int i = 0; i < 2; i++)
        ASSERT_FACTS(p[i].err, "error", "rank 3 hangs (stopped)", "exit code 110");
    nodes_close(p, 2);
}
END_TEST

START_TEST(an_injected_busy_port_is_explained)
{
    program p = program_start_with(
        NULL, WORDS(TRAINING_SMALL, "--nproc_per_node=2", "--inject", "port-busy"));
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "port", program_flag("pid ", (int)p.pid));
    program_close(&p);
}
END_TEST

/* Both launchers report it, and the run can go on. */
START_TEST(one_preempted_node_preempts_all)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = program_start_with(NULL, WORDS(TRAINING_SMALL, "--epochs", "100000", "--nnodes=2",
                                              program_flag("--node_rank=", i), "--nproc_per_node=2",
                                              "--master_addr=127.0.0.1",
                                              program_flag("--master_port=", port), "--run-dir",
                                              "killed", "--max-restarts", "1"));
    training_await(&p[0]);
    kill(p[1].pid, SIGTERM);
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 75);
    ASSERT_EXIT(p[1], 75);
    ASSERT_FACTS(p[1].err, "SIGTERM", "2 ranks", "checkpoint");
    ASSERT_FACTS(p[0].err, "--run-dir killed", "--resume");
    nodes_close(p, 2);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_nodes_end");
    TCase *end = suite_case(suite, "end", 2.0 * RUN_S);
    tcase_add_checked_fixture(end, test_folder_clean, NULL);
    tcase_add_test(end, all_nodes_start_again);
    tcase_add_test(end, the_budget_is_the_jobs);
    tcase_add_test(end, who_ended_well_starts_again_too);
    tcase_add_test(end, a_signal_is_why_it_ends_alone);
    tcase_add_loop_test(end, a_signal_to_one_ends_all, 0, 2);
    tcase_add_loop_test(end, a_dead_launcher_ends_all, 0, 2);
    tcase_add_test(end, a_silent_node_does_not_go_on);
    tcase_add_loop_test(end, a_silent_node_is_given_up, 0, 2);
    tcase_add_loop_test(end, a_launcher_that_was_stopped_knows_why_it_is_lost, 0, 2);
    tcase_add_test(end, a_node_that_decides_alone_knows_its_number);
    tcase_add_test(end, train_goes_on_from_the_checkpoint);
    tcase_add_test(end, one_preempted_node_preempts_all);
    tcase_add_test(end, a_stopped_rank_is_named_across_nodes);
    tcase_add_test(end, an_injected_busy_port_is_explained);
    return test_folder_close(suite_run(suite));
}
