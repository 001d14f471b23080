/* The launcher: what it starts, how it ends, and whom it blames. */
#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "dist/store/store.h"
#include "tests/app/support/launched_worker.h"
#include "tests/app/support/launcher.h"
#include "tests/support/facts.h"

static const int COUNTS[] = {1, 2, 20};

START_TEST(all_succeed)
{
    ck_assert_int_eq(launcher_run("ok", COUNTS[_i]), 0);
    ck_assert_str_eq(launcher_output, "");
    launcher_check_gone(COUNTS[_i], 0);
}
END_TEST

START_TEST(environment_and_arguments_are_complete)
{
    setenv("TEST_KEPT", "as it was", 1);
    setenv("WORLD_SIZE", "77", 1);
    ck_assert_msg(launcher_run("environment", 3) == 0, "%s", launcher_output);
    setenv("OMP_NUM_THREADS", "3", 1);
    ck_assert_msg(launcher_run("omp3", 1) == 0, "%s", launcher_output);
    unsetenv("WORLD_SIZE");
}
END_TEST

START_TEST(workers_inherit_no_descriptors)
{
    ck_assert_msg(launcher_run("descriptors", 3) == 0, "%s", launcher_output);
}
END_TEST

START_TEST(the_store_answers_all_workers)
{
    ck_assert_msg(launcher_run("store", 3) == 0, "%s", launcher_output);
}
END_TEST

START_TEST(first_failure_is_reported_and_stops_the_rest)
{
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(launcher_run("rank1_exits_7", 3), 7);
    double elapsed_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "exit code 7");
    ASSERT_FACTS(launcher_output, "rank 1", "local rank 1", "node 0", "host");
    ASSERT_FACTS(launcher_output, "|", "the last words of rank 1");
    ASSERT_FACTS(launcher_output, "2", "ranks", "stopped");
    launcher_check_gone(3, 0);
    ck_assert_msg(elapsed_s < 2.0, "%g s: SIGTERM should have been enough", elapsed_s);
}
END_TEST

START_TEST(stubborn_ranks_are_killed)
{
    char pids[2][32];
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(launcher_run("rank1_exits_7_others_stay", 3), 7);
    ck_assert_double_gt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "exit code 7");
    ASSERT_FACTS(launcher_output, "2", "ranks", "stopped");
    for (int i = 0; i < 2; i++)
        snprintf(pids[i], sizeof pids[i], "pid %d", (int)launcher_rank(2 * i));
    ASSERT_FACTS(launcher_output, "rank 0", pids[0], "SIGTERM");
    ASSERT_FACTS(launcher_output, "rank 2", pids[1], "SIGTERM");
    launcher_check_gone(3, 0);
}
END_TEST

START_TEST(a_killed_rank_is_named)
{
    char pid[32];
    ck_assert_int_eq(launcher_run("rank1_is_killed", 2), 137);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "SIGKILL");
    snprintf(pid, sizeof pid, "pid %d", (int)launcher_rank(1));
    ASSERT_FACTS(launcher_output, "rank 1", pid);
    ASSERT_FACTS(launcher_output, "hint", "kill -9");
    launcher_check_gone(2, 0);
    ck_assert_int_eq(launcher_run("rank1_segfaults", 2), 139);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "SIGSEGV");
}
END_TEST

/* Ranks 0 and 2 leave at once because "a peer went away"; rank 1's own end is seen after theirs. */
START_TEST(ranks_that_lost_a_peer_are_not_blamed)
{
    ck_assert_int_eq(launcher_run("rank1_exits_65_late", 3), 65);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "exit code 65");
    ASSERT_FACTS(launcher_output, "rank 0: exit code 72");
    ASSERT_FACTS(launcher_output, "rank 2: exit code 110");
    ASSERT_FACTS(launcher_output, "hint", "--data-dir");
    ck_assert_int_eq(launcher_run("rank1_is_killed_late", 3), 137);
    ASSERT_FACTS(launcher_output, "error", "rank 1", "SIGKILL");
    ck_assert_int_eq(launcher_run("rank1_exits_110_late", 2), 110); /* it waited, rank 0 lost it */
    ASSERT_FACTS(launcher_output, "error", "rank 1", "exit code 110");
    ck_assert_int_eq(launcher_run("all_exit_72", 3), 72);
    ASSERT_FACTS(launcher_output, "hint", "connection");
}
END_TEST

START_TEST(the_report_has_the_last_twenty_lines)
{
    ck_assert_int_eq(launcher_run("many_lines", 1), 9);
    launcher_check_said("line 1\nline 2\n");
    ASSERT_NO_FACTS(launcher_output, "|", "line 11");
    ASSERT_FACTS(launcher_output, "|", "line 12");
    ASSERT_FACTS(launcher_output, "|", "line 30");
    ASSERT_FACTS(launcher_output, "|", "a line without an end");
    launcher_check_said("\na line without an end\nerror: ");
    ASSERT_FACTS(launcher_output, "error", "rank 0", "exit code 9");
}
END_TEST

START_TEST(stderr_comes_through_whole)
{
    enum { LINES = 2000 }; /* per rank; more than a pipe holds */
    ck_assert_int_eq(launcher_run("long_lines", 4), 0);
    int counts[4] = {0};
    char *rest = launcher_output;
    for (char *line = strsep(&rest, "\n"); line != NULL && *line; line = strsep(&rest, "\n")) {
        int rank = line[0] - '0', number = -1;
        ck_assert(rank >= 0 && rank < 4);
        ck_assert_int_eq(sscanf(line + 1, " %d", &number), 1);
        ck_assert_int_eq(number, counts[rank]++);
        ck_assert_uint_eq(strlen(line), 100);
    }
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_eq(counts[rank], LINES);
}
END_TEST

START_TEST(an_endless_line_and_a_bar_come_through)
{
    ck_assert_int_eq(launcher_run("endless_line", 1), 3);
    ck_assert_uint_gt(strspn(launcher_output, "x"), 99999);
    launcher_check_said("\r 50 %\r100 %\ndone\n");
    ASSERT_NO_FACTS(launcher_output, "|", "50 %");
    ASSERT_FACTS(launcher_output, "|", "100 %");
    ASSERT_FACTS(launcher_output, "|", "done");
}
END_TEST

/* Its workers end early and late; the store is there for the later node's until they are done. */
START_TEST(two_nodes_share_one_store)
{
    char address[32];
    store_server *probe = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &probe) == STATUS_OK);
    worker_spec first = launcher_plan(2), second;
    first.nnodes = 2;
    first.world_size = 4;
    first.master_port = store_server_port(probe);
    snprintf(address, sizeof address, "127.0.0.1:%d", first.master_port);
    store_server_destroy(probe);
    second = first;
    second.node_rank = 1;
    second.server = RDZV_HOST_ELSEWHERE;
    pid_t b = launcher_start("two_nodes", &second, "log.1", 0),
          a = launcher_start("two_nodes", &first, "log.0", 0);
    int code = launcher_finish(a, "log.0");
    ck_assert_msg(code == 0, "node 0: %d\n%s", code, launcher_output);
    ASSERT_FACTS(launcher_output, "node 0", "2", "ranks 0 to 1", "4", address);
    code = launcher_finish(b, "log.1");
    ck_assert_msg(code == 0, "node 1: %d\n%s", code, launcher_output);
    ASSERT_FACTS(launcher_output, "node 1", "2", "ranks 2 to 3", "4");
}
END_TEST

/* A process that knows nothing of attempts (torch's) must not meet the dead ones' addresses. */
START_TEST(a_restart_begins_with_an_empty_store)
{
    worker_spec plan = launcher_plan(3);
    plan.max_restarts = 1;
    int code = launcher_finish(launcher_start("leave_key", &plan, "log", 0), "log");
    ck_assert_msg(code == 0, "%d\n%s", code, launcher_output);
    ASSERT_FACTS(launcher_output, "warning", "exit code 3", "restart 1");
}
END_TEST

START_TEST(a_restart_of_two_nodes_begins_with_an_empty_store)
{
    store_server *probe = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &probe) == STATUS_OK);
    worker_spec first = launcher_plan(2), second;
    first.nnodes = 2;
    first.world_size = 4;
    first.max_restarts = 1;
    first.master_port = store_server_port(probe);
    store_server_destroy(probe);
    second = first;
    second.node_rank = 1;
    second.server = RDZV_HOST_ELSEWHERE;
    pid_t b = launcher_start("leave_key", &second, "log.1", 0),
          a = launcher_start("leave_key", &first, "log.0", 0);
    int code = launcher_finish(a, "log.0");
    ck_assert_msg(code == 0, "node 0: %d\n%s", code, launcher_output);
    code = launcher_finish(b, "log.1");
    ck_assert_msg(code == 0, "node 1: %d\n%s", code, launcher_output);
    ASSERT_FACTS(launcher_output, "warning", "exit code 3", "restart 1");
}
END_TEST

START_TEST(a_taken_port_is_an_error)
{
    char port[16];
    store_server *other = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &other) == STATUS_OK);
    worker_spec plan = launcher_plan(2);
    plan.master_port = store_server_port(other);
    ck_assert_int_eq(launcher_finish(launcher_start("ok", &plan, "log", 0), "log"),
                     EXIT_CODE_RENDEZVOUS);
    snprintf(port, sizeof port, "%d", plan.master_port);
    ASSERT_FACTS(launcher_output, "error", port);
    store_server_destroy(other);
}
END_TEST

START_TEST(what_was_started_is_stopped_if_the_rest_cannot_be)
{
    worker_spec plan = launcher_plan(40);
    int code = launcher_finish(launcher_start("sleep", &plan, "log", 32), "log");
    ck_assert_int_eq(code, EXIT_CODE_INTERNAL);
    ASSERT_FACTS(launcher_output, "error", "40", "ranks", "ulimit -n");
}
END_TEST

/* The end is noticed, not looked for: no share of a polling interval is lost per run. */
/* The best of at most 20: beside other work one may be late, but not all. */
START_TEST(ends_without_delay)
{
    char path[FILE_PATH_BYTES];
    double best_s = 1.0;
    for (int i = 0; i < 20 && best_s >= 0.05; i++) {
        worker_spec plan = launcher_plan(2);
        ck_assert_int_eq(launcher_finish(launcher_start("note_end", &plan, "log", 0), "log"), 0);
        double end_s = clock_seconds(clock_now_ns());
        long long last_ns = 0;
        launcher_path("end", path);
        FILE *file = fopen(path, "r");
        ck_assert(file != NULL && fscanf(file, "%lld", &last_ns) == 1);
        fclose(file);
        double took_s = end_s - clock_seconds(last_ns);
        best_s = took_s < best_s ? took_s : best_s;
    }
    ck_assert_msg(best_s < 0.05, "%g s from the last worker's end to the launcher's", best_s);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    if (getenv("TEST_WORKER") != NULL)
        return launched_worker_main();
    Suite *suite = suite_create("launch");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, launcher_setup, launcher_teardown);
    tcase_add_loop_test(core, all_succeed, 0, COUNT(COUNTS));
    tcase_add_test(core, environment_and_arguments_are_complete);
    tcase_add_test(core, workers_inherit_no_descriptors);
    tcase_add_test(core, the_store_answers_all_workers);
    tcase_add_test(core, first_failure_is_reported_and_stops_the_rest);
    tcase_add_test(core, stubborn_ranks_are_killed);
    tcase_add_test(core, a_killed_rank_is_named);
    tcase_add_test(core, ranks_that_lost_a_peer_are_not_blamed);
    tcase_add_test(core, the_report_has_the_last_twenty_lines);
    tcase_add_test(core, stderr_comes_through_whole);
    tcase_add_test(core, an_endless_line_and_a_bar_come_through);
    tcase_add_test(core, two_nodes_share_one_store);
    tcase_add_test(core, a_restart_begins_with_an_empty_store);
    tcase_add_test(core, a_restart_of_two_nodes_begins_with_an_empty_store);
    tcase_add_test(core, a_taken_port_is_an_error);
    tcase_add_test(core, what_was_started_is_stopped_if_the_rest_cannot_be);
    tcase_add_test(core, ends_without_delay);
    return suite_run(suite);
}
