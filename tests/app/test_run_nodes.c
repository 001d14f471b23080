/* How several launchers meet, and what they refuse. */
#include "base/clock.h"
#include "base/file.h"
#include "base/module.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACE \
    "echo $RANK $LOCAL_RANK $GROUP_RANK $NODE_RANK $WORLD_SIZE $GROUP_WORLD_SIZE $MASTER_PORT"

START_TEST(ranks_count_through)
{
    int port = port_find_free();
    program p[3];
    char words[64];
    for (int i = 0; i < 3; i++)
        p[i] = nodes_start((i + 1) % 3, port, "--nnodes=3", PLACE);
    nodes_wait(p, 3);
    for (int i = 0; i < 3; i++) {
        int node = (i + 1) % 3;
        ASSERT_EXIT(p[i], 0);
        for (int l = 0; l < 2; l++) {
            snprintf(words, sizeof words, "%d %d %d %d 6 3 %d\n", node * 2 + l, l, node, node,
                     port);
            ASSERT_SAYS(p[i].out, words);
        }
    }
    nodes_close(p, 3);
}
END_TEST

START_TEST(comers_are_numbered)
{
    int port = port_find_free();
    program p[3];
    bool seen[6] = {false};
    for (int i = 0; i < 3; i++)
        p[i] = nodes_start_c10d(port, i == 2 ? "--nnodes=3 --node-rank=1" : "--nnodes=3:3",
                                "echo rank $RANK $NODE_RANK");
    nodes_wait(p, 3);
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
    ASSERT_FACTS(p[2].err, "warning", "--node-rank=1", "--rdzv-backend=c10d");
    nodes_close(p, 3);
}
END_TEST

/* What node 0 and node 1 are given, and what both are told. */
static const struct {
    const char *flags[2], *facts[4];
} QUARRELS[] = {
    {{"--nnodes=2", "--nnodes=3"}, {"--nnodes=3", "--nnodes=2", "node 0"}},
    {{"--nnodes=2", "--nnodes=2 --nproc-per-node=3"},
     {"--nproc-per-node=3", "--nproc-per-node=2", "node 0"}},
    {{"--nnodes=2 --max-restarts=1", "--nnodes=2"},
     {"--max-restarts=0", "--max-restarts=1", "node 0"}},
};

/* And nobody waits for what cannot come: --join-timeout would be 600 s. */
START_TEST(nodes_that_disagree_are_told_at_once)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start(0, port, QUARRELS[_i].flags[0], "true");
    port_await_listener(port);
    int64_t start_ns = clock_now_ns();
    p[1] = nodes_start(1, port, QUARRELS[_i].flags[1], "true");
    program_wait(&p[1], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ASSERT_EXIT(p[1], 69);
    ASSERT_FACTS_LISTED(p[1].err, QUARRELS[_i].facts);
    program_wait(&p[0], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 3.0);
    ASSERT_EXIT(p[0], 69);
    ASSERT_FACTS_LISTED(p[0].err, QUARRELS[_i].facts);
    nodes_close(p, 2);
}
END_TEST

/* While it waits for them. */
START_TEST(node_0_says_what_to_type_on_the_others)
{
    int port = port_find_free();
    program p = nodes_start(0, port, "--nnodes=2 --join-timeout=1", "true");
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "on node 1", "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1",
                 program_flag("--master-port=", port));
    nodes_close(&p, 1);
}
END_TEST

/* The first waits for its own nodes still, the second for nobody: --join-timeout is 600 s. */
START_TEST(a_second_node_0_is_told_who_has_the_port)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start(0, port, "--nnodes=3", "true");
    port_await_listener(port);
    int64_t start_ns = clock_now_ns();
    p[1] = nodes_start(0, port, "--nnodes=3", "true");
    program_wait(&p[1], RUN_S);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ASSERT_EXIT(p[1], 69);
    ASSERT_FACTS(p[1].err, "error", program_flag("127.0.0.1:", port),
                 program_flag("pid ", (int)p[0].pid));
    kill(p[0].pid, SIGTERM);
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 143);
    nodes_close(p, 2);
}
END_TEST

START_TEST(two_launchers_with_one_node_rank_are_refused)
{
    int port = port_find_free();
    program p[3];
    p[0] = nodes_start(0, port, "--nnodes=3", "true");
    p[1] = nodes_start(1, port, "--nnodes=3", "true");
    p[2] = nodes_start(1, port, "--nnodes=3", "true");
    nodes_wait(p, 3);
    for (int i = 0; i < 3; i++) {
        ASSERT_EXIT(p[i], 69);
        ASSERT_FACTS(p[i].err, "error", "node 1", "--node-rank");
    }
    nodes_close(p, 3);
}
END_TEST

/* Another one takes it, and it hears that when it goes on. */
START_TEST(a_silent_joiner_loses_its_number)
{
    int port = port_find_free();
    program p[3];
    p[0] = nodes_start(0, port, "--nnodes=3", "true");
    program silent = nodes_start(1, port, "--nnodes=3", "true");
    program_await(&silent, "2 of 3", "nodes");
    kill(silent.pid, SIGSTOP);
    int64_t start_ns = clock_now_ns();
    p[1] = nodes_start(1, port, "--nnodes=3", "true");
    program_await(&p[1], "2 of 3", "nodes");
    ck_assert_double_ge(clock_seconds(clock_now_ns() - start_ns), 3.0); /* ROSTER_SILENT_MS */
    kill(silent.pid, SIGCONT);
    program_wait(&silent, RUN_S);
    ASSERT_EXIT(silent, 69);
    ASSERT_FACTS(silent.err, "error", "silent", "node 1", program_flag("pid ", (int)p[1].pid));
    p[2] = nodes_start(2, port, "--nnodes=3", "true");
    nodes_wait(p, 3);
    for (int i = 0; i < 3; i++)
        ASSERT_EXIT(p[i], 0);
    nodes_close(p, 3);
    program_close(&silent);
}
END_TEST

START_TEST(jobs_do_not_merge)
{
    int port = port_find_free();
    program p[3];
    p[0] = nodes_start(0, port, "--nnodes=2 --rdzv-id=ours", "true");
    port_await_listener(port);
    p[1] = nodes_start(1, port, "--nnodes=2 --rdzv-id=theirs", "true");
    program_wait(&p[1], RUN_S);
    ASSERT_EXIT(p[1], 69);
    ASSERT_FACTS(p[1].err, program_flag("127.0.0.1:", port), "ours", "theirs", "--rdzv-id");
    p[2] = nodes_start(1, port, "--nnodes=2 --rdzv-id=ours", "true");
    program_wait(&p[2], RUN_S);
    program_wait(&p[0], RUN_S);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[2], 0);
    nodes_close(p, 3);
}
END_TEST

/* A job that runs is not hurt by who comes late. */
START_TEST(late_comers_are_turned_away)
{
    static const char *const flags[] = {"--nnodes=2", "--nnodes=3"};
    static const char *const facts[][3] = {{"node 1", "--node-rank"}, {"--nnodes=3", "--nnodes=2"}};
    int port = port_find_free();
    program p[3];
    const char *script = "touch up.$RANK; while ! test -e go; do sleep .01; done";
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=2", script);
    test_folder_await("up.0");
    test_folder_await("up.3");
    p[2] = nodes_start(1, port, flags[_i], script);
    program_wait(&p[2], RUN_S);
    ASSERT_EXIT(p[2], 69);
    ASSERT_FACTS_LISTED(p[2].err, facts[_i]);
    test_folder_write("go", "");
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    nodes_close(p, 3);
}
END_TEST

/* Another node waits, should one of them be lost; the job ends well without it. */
START_TEST(a_full_job_keeps_who_comes_late_for_a_replacement)
{
    int port = port_find_free();
    program p[3];
    const char *script = "touch up.$RANK; while ! test -e go; do sleep .01; done";
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start_c10d(port, "--nnodes=2", script);
    test_folder_await("up.0");
    test_folder_await("up.3");
    p[2] = nodes_start_c10d(port, "--nnodes=2", script);
    program_await(&p[2], "2 nodes", "waits");
    test_folder_write("go", "");
    nodes_wait(p, 3);
    for (int i = 0; i < 3; i++)
        ASSERT_EXIT(p[i], 0);
    ASSERT_FACTS(p[2].err, "has ended", "none", "well", "another --rdzv-id");
    ck_assert(!file_exists("up.4"));
    nodes_close(p, 3);
}
END_TEST

START_TEST(waiting_says_who)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start(0, port, "--nnodes=3 --rdzv-conf=join_timeout=10", "true");
    program_await(&p[0], "1 of 3", "node 1", "ranks 2-3", "node 2", "ranks 4-5");
    p[1] = nodes_start(1, port, "--nnodes=3", "true");
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 69);
    ASSERT_FACTS(p[0].err, "error", "1 of 3", program_flag("127.0.0.1:", port), "node 2",
                 "ranks 4-5");
    ASSERT_NO_FACTS(p[0].err, "error", "node 1");
    ASSERT_EXIT(p[1], 69);
    nodes_close(p, 2);
}
END_TEST

static const struct {
    const char *addr, *facts[4];
} UNREACHED[] = {
    {"127.0.0.1", {"node 1", "node 0", "refused"}},
    {"no-such-host.invalid", {"node 1", "node 0", "/etc/hosts"}},
};

START_TEST(an_unreached_node_0_is_explained)
{
    char flags[FLAGS_BYTES], where[64];
    int port = port_find_free();
    snprintf(flags, sizeof flags,
             "--nnodes=2 --node-rank=1 --master-addr=%s --master-port=%d --join-timeout=2",
             UNREACHED[_i].addr, port);
    snprintf(where, sizeof where, "%s:%d", UNREACHED[_i].addr, port);
    program p = run_command(flags, "true");
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS_LISTED(p.err, UNREACHED[_i].facts);
    ASSERT_FACTS(p.err, "error", where);
    ASSERT_SILENT(p.err, "firewall"); /* that is for an address where nothing answers */
    program_close(&p);
}
END_TEST

START_TEST(a_stranger_at_the_port_is_no_node_0)
{
    char flags[FLAGS_BYTES];
    int port = 0, fd = port_listen(&port);
    snprintf(flags, sizeof flags,
             "--nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=%d", port);
    int64_t start_ns = clock_now_ns();
    program p = run_command(flags, "true");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 12.0); /* not --join-timeout */
    ASSERT_EXIT(p, 69);
    ASSERT_FACTS(p.err, "not mnist_ddp", program_flag("127.0.0.1:", port));
    ASSERT_FACTS(p.err, "--master-port");
    ASSERT_SILENT(p.err, "firewall");
    close(fd);
    program_close(&p);
}
END_TEST

/* It would go on for 600 s. */
START_TEST(signals_end_the_wait)
{
    int port = port_find_free();
    program p = nodes_start(0, port, "--nnodes=2", "true");
    program_await(&p, "1 of 2", "node 1");
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    program_close(&p);
}
END_TEST

/* The folder was made before: all attempts have the same one. */
START_TEST(a_run_that_never_began_leaves_no_folder)
{
    char port[32];
    snprintf(port, sizeof port, "--master-port=%d", port_find_free());
    program p = program_start_with(WORDS("sh", "-c", "mkdir -p never; cd never; exec \"$@\"", "sh"),
                                   WORDS("--nnodes=2", "--node-rank=0", port, "--limit=64"));
    program_await(&p, "1 of 2", "node 1");
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 130);
    ASSERT_FACTS(p.err, "127.0.0.1 is known to this machine only");
    ck_assert_int_eq(access("never/runs", F_OK), 0);
    ck_assert_msg(rmdir("never/runs") == 0, "a run's folder is left: %s", strerror(errno));
    program_close(&p);
}
END_TEST

/* It takes the store with it: the others hear who has gone, and in no words of ours. They wait for
 * no lease. */
START_TEST(who_stops_node_0_stops_the_wait)
{
    int port = port_find_free();
    program p[2];
    for (int i = 0; i < 2; i++)
        p[i] = nodes_start(i, port, "--nnodes=3", "true");
    program_await(&p[1], "2 of 3", "node 2");
    int64_t start_ns = clock_now_ns();
    kill(p[0].pid, _i == 0 ? SIGTERM : SIGKILL);
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], _i == 0 ? 143 : 137);
    ASSERT_EXIT(p[1], 69);
    if (_i == 0)
        ASSERT_FACTS(p[1].err, "error", "node 0", program_flag("pid ", (int)p[0].pid),
                     "told to stop", "start all nodes again");
    else
        ASSERT_FACTS(p[1].err, "error", "node 0", program_flag("127.0.0.1:", port),
                     "start all nodes again");
    ASSERT_SILENT(p[1].err, "lease");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    nodes_close(p, 2);
}
END_TEST

/* SIGTERM is there before the agent, and waits for it. */
static int stop_in_advance(int fd)
{
    sigset_t stop;
    (void)fd;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    return sigprocmask(SIG_BLOCK, &stop, NULL) != 0 || raise(SIGTERM) != 0;
}

/* The nodes have met, and node 1 is told to stop before it knows of that: it tells the others. */
START_TEST(a_signal_as_the_nodes_meet_ends_all)
{
    int port = port_find_free();
    program p[2];
    p[0] = nodes_start(0, port, "--nnodes=2", "touch up.$RANK; sleep 30");
    port_await_listener(port);
    nodes_set_key(port, "outcome", "ok ");
    test_folder_await("up.0");
    int64_t start_ns = clock_now_ns();
    p[1] = program_start_after(WORDS(program_mnist_ddp(), "run", "--nnodes=2", "--node-rank=1",
                                     "--nproc-per-node=2", "--master-addr=127.0.0.1",
                                     program_flag("--master-port=", port), "touch", "up.2"),
                               stop_in_advance, -1);
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 143);
    ASSERT_EXIT(p[1], 143);
    ASSERT_FACTS(p[0].err, "error", "node 1", "SIGTERM");
    ck_assert(!file_exists("up.2"));
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    nodes_close(p, 2);
}
END_TEST

#define COMES "--nnodes=1:2 --nproc-per-node=1 --rdzv-conf=last_call_timeout=0.1"
#define UNTIL_GO "touch up.$MNIST_DDP_ROUND.$RANK; while ! test -e go; do sleep .02; done"

/* The system chooses it: another node is told. */
START_TEST(a_free_port_is_told)
{
    program p[2];
    p[0] = nodes_start_c10d(0, COMES, UNTIL_GO);
    test_folder_await("up.1.0");
    char *said = program_peek(&p[0]);
    const char *flag = strstr(said, "--rdzv-endpoint=localhost:");
    ck_assert_msg(flag != NULL, "%s", said);
    p[1] = nodes_start_c10d(atoi(strchr(flag, ':') + 1), COMES, UNTIL_GO);
    test_folder_await("up.2.1");
    test_folder_write("go", "");
    nodes_wait(p, 2);
    ASSERT_EXIT(p[0], 0);
    ASSERT_EXIT(p[1], 0);
    free(said);
    nodes_close(p, 2);
}
END_TEST

/* As it is to be typed. */
START_TEST(a_free_port_of_ipv6_is_told)
{
    program p = program_run_with(NULL, WORDS("run", "--nnodes=1:2", "--rdzv-backend=c10d",
                                             "--rdzv-endpoint=[::1]:0", "--no-python",
                                             "--rdzv-conf=last_call_timeout=0.1", "true"));
    if (p.exit_code != 0)
        printf("SKIP of IPv6: %s\n", p.err);
    else
        ASSERT_FACTS(p.err, "--rdzv-endpoint=[::1]:");
    program_close(&p);
}
END_TEST

/* 0: it has ended, or is amid exec. */
static size_t read_command_line(pid_t pid, char *out, size_t size_bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    FILE *file = fopen(path, "r");
    size_t size = file != NULL ? fread(out, 1, size_bytes, file) : 0;
    if (file != NULL)
        fclose(file);
    return size;
}

/* Also by one node; and who lists processes sees no password. */
START_TEST(the_rendezvous_named_is_asked)
{
    char endpoint[64], command[4096];
    bool is_etcd = _i == 0 && module_exists("curl");
    snprintf(endpoint, sizeof endpoint, "--rdzv-endpoint=%s127.0.0.1:%d",
             is_etcd ? "http://root:s3cret@" : "", port_find_free());
    program p = program_start_with(
        NULL,
        WORDS("run", "--nnodes=1", is_etcd ? "--rdzv-backend=etcd" : "--rdzv-backend=c10d",
              "--rdzv-conf=is_host=0,join_timeout=4", endpoint, "--no-python", "echo", "ran"));
    bool hidden = false; /* soon after its start, long before its end */
    int64_t deadline_ns = clock_deadline_ns(1000 * RUN_S);
    for (; !hidden && !clock_passed(deadline_ns); clock_sleep_ms(POLL_MS)) {
        size_t size = read_command_line(p.pid, command, sizeof command);
        hidden = memmem(command, size, "--rdzv-endpoint", 15) != NULL &&
                 memmem(command, size, "s3cret", 6) == NULL;
    }
    ck_assert(hidden);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 69);
    ck_assert_str_eq(p.out, "");
    ASSERT_SILENT(p.err, "s3cret");
    program_close(&p);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_nodes");
    TCase *meet = suite_case(suite, "meet", 2.0 * RUN_S);
    tcase_add_checked_fixture(meet, test_folder_clean, NULL);
    tcase_add_test(meet, ranks_count_through);
    tcase_add_test(meet, comers_are_numbered);
    tcase_add_loop_test(meet, nodes_that_disagree_are_told_at_once, 0, COUNT(QUARRELS));
    tcase_add_test(meet, node_0_says_what_to_type_on_the_others);
    tcase_add_test(meet, a_second_node_0_is_told_who_has_the_port);
    tcase_add_test(meet, two_launchers_with_one_node_rank_are_refused);
    tcase_add_test(meet, a_silent_joiner_loses_its_number);
    tcase_add_test(meet, jobs_do_not_merge);
    tcase_add_loop_test(meet, late_comers_are_turned_away, 0, 2);
    tcase_add_test(meet, a_full_job_keeps_who_comes_late_for_a_replacement);
    tcase_add_test(meet, waiting_says_who);
    tcase_add_loop_test(meet, an_unreached_node_0_is_explained, 0, COUNT(UNREACHED));
    tcase_add_test(meet, a_stranger_at_the_port_is_no_node_0);
    tcase_add_test(meet, signals_end_the_wait);
    tcase_add_test(meet, a_run_that_never_began_leaves_no_folder);
    tcase_add_loop_test(meet, who_stops_node_0_stops_the_wait, 0, 2);
    tcase_add_test(meet, a_signal_as_the_nodes_meet_ends_all);
    tcase_add_test(meet, a_free_port_is_told);
    tcase_add_test(meet, a_free_port_of_ipv6_is_told);
    tcase_add_loop_test(meet, the_rendezvous_named_is_asked, 0, 2);
    return test_folder_close(suite_run(suite));
}
