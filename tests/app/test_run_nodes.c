/* How several launchers meet, and what they refuse. */
#include "tests/app/run_nodes.h"

#define PLACE \
    "echo $RANK $LOCAL_RANK $GROUP_RANK $NODE_RANK $WORLD_SIZE $GROUP_WORLD_SIZE $MASTER_PORT"

START_TEST(ranks_count_through)
{
    int port = underway_free_port();
    program p[3];
    char words[64];
    for (int i = 0; i < 3; i++)
        p[i] = start_node((i + 1) % 3, port, "--nnodes=3", PLACE);
    wait_all(p, 3);
    for (int i = 0; i < 3; i++) {
        int node = (i + 1) % 3;
        ASSERT_EXIT(p[i], 0);
        for (int l = 0; l < 2; l++) {
            snprintf(words, sizeof words, "%d %d %d %d 6 3 %d\n", node * 2 + l, l, node, node,
                     port);
            ASSERT_SAYS(p[i].out, words);
        }
    }
    close_all(p, 3);
}
END_TEST

START_TEST(comers_are_numbered)
{
    int port = underway_free_port();
    program p[3];
    bool seen[6] = {false};
    for (int i = 0; i < 3; i++)
        p[i] = start_comer(port, i == 2 ? "--nnodes=3 --node-rank=1" : "--nnodes=3:3",
                           "echo rank $RANK $NODE_RANK");
    wait_all(p, 3);
    for (int i = 0; i < 3; i++) {
        ASSERT_EXIT(p[i], 0);
        char *rest = p[i].out;
        for (char *line = strsep(&rest, "\n"); line != NULL && *line; line = strsep(&rest, "\n")) {
            int rank = -1, node = -1;
            ck_assert_int_eq(sscanf(line, "rank %d %d", &rank, &node), 2);
            ck_assert(rank >= 0 && rank < 6 && !seen[rank] && node == rank / 2);
            seen[rank] = true;
        }
    }
    for (int rank = 0; rank < 6; rank++)
        ck_assert(seen[rank]);
    ASSERT_SAYS(p[2].err, "--node-rank=1 is not used with --rdzv-backend=c10d");
    close_all(p, 3);
}
END_TEST

static const struct {
    const char *flags[2], *words;
} QUARRELS[] = {
    {{"--nnodes=2", "--nnodes=3"}, "--nnodes=3 on one|--nnodes=2 on node 0"},
    {{"--nnodes=2", "--nnodes=2 --nproc-per-node=3"},
     "--nproc-per-node=3 on one|--nproc-per-node=2 on node 0"},
    {{"--nnodes=2 --max-restarts=1", "--nnodes=2"}, "--max-restarts=0 on one"},
    {{"--nnodes=3", "--nnodes=3 --node-rank=0"}, "taken by pid"},
};

static void assert_words(const char *text, const char *words)
{
    char copy[FLAGS_BYTES];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, "|"); word != NULL; word = strtok(NULL, "|"))
        ASSERT_SAYS(text, word);
}

/* And nobody waits for what cannot come. */
START_TEST(nodes_that_disagree_are_told_at_once)
{
    int port = underway_free_port();
    program p[2];
    p[0] = start_node(0, port, QUARRELS[_i].flags[0], "true");
    underway_await_listener(port);
    int64_t start_ns = clock_now_ns();
    p[1] = start_node(1, port, QUARRELS[_i].flags[1], "true");
    program_wait(&p[1], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ASSERT_EXIT(p[1], 69);
    assert_words(p[1].err, QUARRELS[_i].words);
    if (strstr(QUARRELS[_i].words, "taken") != NULL) {
        kill(p[0].pid, SIGTERM); /* it waits for its own nodes still */
        program_wait(&p[0], RUN_S);
        ASSERT_EXIT(p[0], 143);
    } else {
        program_wait(&p[0], RUN_S);
        ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 3.0);
        ASSERT_EXIT(p[0], 69);
        ASSERT_SAYS(p[0].err, "the job cannot start: the nodes disagree");
        assert_words(p[0].err, QUARRELS[_i].words);
    }
    close_all(p, 2);
}
END_TEST

START_TEST(a_node_cannot_be_two)
{
    int port = underway_free_port();
    program p[3];
    p[0] = start_node(0, port, "--nnodes=3", "true");
    p[1] = start_node(1, port, "--nnodes=3", "true");
    p[2] = start_node(1, port, "--nnodes=3", "true");
    wait_all(p, 3);
    for (int i = 0; i < 3; i++) {
        ASSERT_EXIT(p[i], 69);
        ASSERT_SAYS(p[i].err, "node 1 is claimed twice");
    }
    close_all(p, 3);
}
END_TEST

START_TEST(jobs_do_not_merge)
{
    int port = underway_free_port();
    program p[3];
    p[0] = start_node(0, port, "--nnodes=2 --rdzv-id=ours", "true");
    underway_await_listener(port);
    p[1] = start_node(1, port, "--nnodes=2 --rdzv-id=theirs", "true");
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 69);
    ASSERT_SAYS(p[1].err, "belongs to the job 'ours', and this node to 'theirs'");
    p[2] = start_node(1, port, "--nnodes=2 --rdzv-id=ours", "true");
    program_wait(&p[2], RUN_S);
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[2], 0);
    close_all(p, 3);
}
END_TEST

/* A job that runs is not hurt by who comes late. */
START_TEST(late_comers_are_turned_away)
{
    static const char *const flags[] = {"--nnodes=2", "--nnodes=3"};
    int port = underway_free_port();
    program p[3];
    const char *script = "touch up.$RANK; while ! test -e go; do sleep .01; done";
    for (int i = 0; i < 2; i++)
        p[i] = start_node(i, port, "--nnodes=2", script);
    run_await_file("up.0");
    run_await_file("up.3");
    p[2] = start_node(1, port, flags[_i], script);
    program_wait(&p[2], RUN_S);
    ASSERT_EXIT(p[2], 69);
    ASSERT_SAYS(p[2].err, _i == 0 ? "node 1 is claimed twice" : "the nodes disagree: --nnodes=3");
    run_write("go", "");
    wait_all(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    close_all(p, 3);
}
END_TEST

START_TEST(a_full_job_is_full)
{
    int port = underway_free_port();
    program p[3];
    const char *script = "touch up.$RANK; while ! test -e go; do sleep .01; done";
    for (int i = 0; i < 2; i++)
        p[i] = start_comer(port, "--nnodes=2", script);
    run_await_file("up.0");
    run_await_file("up.3");
    p[2] = start_comer(port, "--nnodes=2", script);
    program_wait(&p[2], RUN_S);
    ASSERT_EXIT(p[2], 69);
    ASSERT_SAYS(p[2].err, "has its 2 nodes already");
    run_write("go", "");
    wait_all(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    close_all(p, 3);
}
END_TEST

START_TEST(waiting_says_who)
{
    int port = underway_free_port();
    program p[2];
    p[0] = start_node(0, port, "--nnodes=3 --rdzv-conf=join_timeout=3", "true");
    underway_await(&p[0], "missing: node 1 (ranks 2-3), node 2 (ranks 4-5)");
    p[1] = start_node(1, port, "--nnodes=3 --rdzv-conf=join_timeout=3", "true");
    wait_all(p, 2);
    ASSERT_EXIT(p[0], 69);
    ASSERT_SAYS(p[0].err, "1 of 3 nodes did not come to 127.0.0.1:");
    ASSERT_SAYS(p[0].err, "node 2 (ranks 4-5)");
    ASSERT_EXIT(p[1], 69);
    close_all(p, 2);
}
END_TEST

static const struct {
    const char *addr, *words;
} UNREACHED[] = {
    {"127.0.0.1", "connection refused|nobody listens: has node 0 been started"},
    {"no-such-host.invalid", "no such host|/etc/hosts"},
};

START_TEST(an_unreached_node_0_is_explained)
{
    char flags[FLAGS_BYTES];
    snprintf(flags, sizeof flags,
             "--nnodes=2 --node-rank=1 --master-addr=%s --master-port=%d --join-timeout=2",
             UNREACHED[_i].addr, underway_free_port());
    program p = run_script(flags, "true");
    ASSERT_EXIT(p, 69);
    ASSERT_SAYS(p.err, "node 1");
    ASSERT_SAYS(p.err, "waits for node 0");
    assert_words(p.err, UNREACHED[_i].words);
    program_close(&p);
}
END_TEST

/* The mistake of notes that are copied from machine to machine. */
START_TEST(an_own_address_is_not_node_0s)
{
    char own[64], flags[FLAGS_BYTES];
    FILE *pipe = popen("hostname -I", "r");
    ck_assert_ptr_nonnull(pipe);
    int n = fscanf(pipe, "%63s", own);
    pclose(pipe);
    if (n != 1 || strchr(own, ':') != NULL) {
        printf("SKIP: this machine has no address but loopback\n");
        return;
    }
    snprintf(flags, sizeof flags,
             "--nnodes=2 --node-rank=1 --master-addr=%s --master-port=%d --join-timeout=2", own,
             underway_free_port());
    program p = run_start(flags, "true");
    int64_t start_ns = clock_now_ns();
    underway_await(&p, "one of this machine's own addresses");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    program_close(&p);
}
END_TEST

START_TEST(a_stranger_at_the_port_is_no_node_0)
{
    char flags[FLAGS_BYTES];
    int port = 0, fd = underway_listen(&port);
    snprintf(flags, sizeof flags,
             "--nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=%d", port);
    int64_t start_ns = clock_now_ns();
    program p = run_script(flags, "true");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 12.0); /* not --join-timeout */
    ASSERT_EXIT(p, 69);
    ASSERT_SAYS(p.err, "something that is not mnist_ddp listens at 127.0.0.1:");
    ASSERT_SAYS(p.err, "another --master-port");
    ASSERT_SILENT(p.err, "firewall");
    close(fd);
    program_close(&p);
}
END_TEST

START_TEST(signals_end_the_wait)
{
    int port = underway_free_port();
    program p = start_node(0, port, "--nnodes=2", "true");
    underway_await(&p, "missing: node 1");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    program_close(&p);
}
END_TEST

static void start_clean(void)
{
    run_clean("up.* go");
}

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    underway_clean_environment();
    workbench_open();
    Suite *suite = suite_create("run_nodes");
    TCase *meet = suite_case(suite, "meet", 2.0 * RUN_S);
    tcase_add_checked_fixture(meet, start_clean, NULL);
    tcase_add_test(meet, ranks_count_through);
    tcase_add_test(meet, comers_are_numbered);
    tcase_add_loop_test(meet, nodes_that_disagree_are_told_at_once, 0, COUNT(QUARRELS));
    tcase_add_test(meet, a_node_cannot_be_two);
    tcase_add_test(meet, jobs_do_not_merge);
    tcase_add_loop_test(meet, late_comers_are_turned_away, 0, 2);
    tcase_add_test(meet, a_full_job_is_full);
    tcase_add_test(meet, waiting_says_who);
    tcase_add_loop_test(meet, an_unreached_node_0_is_explained, 0, COUNT(UNREACHED));
    tcase_add_test(meet, an_own_address_is_not_node_0s);
    tcase_add_test(meet, a_stranger_at_the_port_is_no_node_0);
    tcase_add_test(meet, signals_end_the_wait);
    return workbench_close(suite_run(suite));
}
