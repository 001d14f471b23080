/* The launcher: what it starts, how it ends, and whom it blames. */
#include "tests/app/launching.h"

static const int COUNTS[] = {1, 2, 20};

START_TEST(all_succeed)
{
    ck_assert_int_eq(launch("ok", COUNTS[_i]), 0);
    ck_assert_str_eq(output, "");
    check_gone(COUNTS[_i], 0);
}
END_TEST

START_TEST(environment_and_arguments_are_complete)
{
    setenv("TEST_KEPT", "as it was", 1);
    setenv("WORLD_SIZE", "77", 1);
    ck_assert_msg(launch("environment", 3) == 0, "%s", output);
    setenv("OMP_NUM_THREADS", "3", 1);
    ck_assert_msg(launch("omp3", 1) == 0, "%s", output);
    unsetenv("WORLD_SIZE");
}
END_TEST

START_TEST(workers_inherit_no_descriptors)
{
    ck_assert_msg(launch("descriptors", 3) == 0, "%s", output);
}
END_TEST

START_TEST(the_store_answers_all_workers)
{
    ck_assert_msg(launch("store", 3) == 0, "%s", output);
}
END_TEST

START_TEST(first_failure_is_reported_and_stops_the_rest)
{
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(launch("rank1_exits_7", 3), 7);
    double elapsed_s = clock_seconds(clock_now_ns() - start_ns);
    check_said("error: rank 1 failed first: exit code 7\n");
    check_said("rank 1, local rank 1, node 0, host ");
    check_said("    | the last words of rank 1\n");
    check_said("2 other ranks were stopped");
    check_gone(3, 0);
    ck_assert_msg(elapsed_s < 2.0, "%g s: SIGTERM should have been enough", elapsed_s);
}
END_TEST

START_TEST(stubborn_ranks_are_killed)
{
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(launch("rank1_exits_7_others_stay", 3), 7);
    ck_assert_double_gt(clock_seconds(clock_now_ns() - start_ns), 2.0);
    check_said("rank 1 failed first");
    check_said("  2 other ranks were stopped\n  rank 0 (pid ");
    check_said(") did not end on SIGTERM");
    check_gone(3, 0);
}
END_TEST

START_TEST(a_killed_rank_is_named)
{
    char words[64];
    ck_assert_int_eq(launch("rank1_is_killed", 2), 137);
    check_said("error: rank 1 failed first: SIGKILL (Killed)\n");
    snprintf(words, sizeof words, "pid %d,", (int)pid_of(1));
    check_said(words);
    check_said("somebody killed it");
    check_gone(2, 0);
    ck_assert_int_eq(launch("rank1_segfaults", 2), 139);
    check_said("rank 1 failed first: SIGSEGV");
}
END_TEST

/* Ranks 0 and 2 leave at once because "a peer went away"; rank 1's own end is seen after theirs. */
START_TEST(witnesses_are_not_blamed)
{
    ck_assert_int_eq(launch("rank1_exits_65_late", 3), 65);
    check_said("error: rank 1 failed first: exit code 65\n");
    check_said("also: rank 0: exit code 72, rank 2: exit code 110\n");
    check_said("--data-dir");
    ck_assert_int_eq(launch("rank1_is_killed_late", 3), 137);
    check_said("error: rank 1 failed first: SIGKILL");
    ck_assert_int_eq(launch("rank1_exits_110_late", 2), 110); /* it waited, rank 0 lost it */
    check_said("error: rank 1 failed first: exit code 110\n");
    ck_assert_int_eq(launch("all_exit_72", 3), 72);
    check_said("another machine");
}
END_TEST

START_TEST(the_report_has_the_last_twenty_lines)
{
    ck_assert_int_eq(launch("many_lines", 1), 9);
    check_said("line 1\nline 2\n");
    ck_assert_ptr_null(strstr(output, "    | line 10\n"));
    check_said("    | line 12\n");
    check_said("    | line 30\n    | a line without an end\n");
    check_said("\na line without an end\nerror: rank 0");
}
END_TEST

START_TEST(stderr_comes_through_whole)
{
    enum { LINES = 2000 }; /* per rank; more than a pipe holds */
    ck_assert_int_eq(launch("long_lines", 4), 0);
    int counts[4] = {0};
    char *rest = output;
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
    ck_assert_int_eq(launch("endless_line", 1), 3);
    ck_assert_uint_gt(strspn(output, "x"), 99999);
    check_said("\r 50 %\r100 %\ndone\n");
    check_said("    | 100 %\n    | done\n");
}
END_TEST

/* Its workers end early and late; the store is there for the later node's until they are done. */
START_TEST(two_nodes_share_one_store)
{
    store_server *probe = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &probe) == STATUS_OK);
    launch_plan first = plan_of(2), second;
    first.nnodes = 2;
    first.world_size = 4;
    first.master_port = store_server_port(probe);
    store_server_destroy(probe);
    second = first;
    second.node_rank = 1;
    second.server = LAUNCH_SERVED_ELSEWHERE;
    pid_t b = start("two_nodes", &second, "log.1", 0), a = start("two_nodes", &first, "log.0", 0);
    int code = finish(a, "log.0");
    ck_assert_msg(code == 0, "node 0: %d\n%s", code, output);
    check_said("node 0 of 2: ranks 0 to 1 of 4; the store is at 127.0.0.1:");
    code = finish(b, "log.1");
    ck_assert_msg(code == 0, "node 1: %d\n%s", code, output);
    check_said("node 1 of 2: ranks 2 to 3 of 4");
}
END_TEST

/* A process that knows nothing of generations (torch's) must not meet the dead ones' addresses. */
START_TEST(a_restart_begins_with_an_empty_store)
{
    launch_plan plan = plan_of(3);
    plan.max_restarts = 1;
    int code = finish(start("leave_key", &plan, "log", 0), "log");
    ck_assert_msg(code == 0, "%d\n%s", code, output);
    check_said("restart 1 of 1");
}
END_TEST

START_TEST(a_restart_of_two_nodes_begins_with_an_empty_store)
{
    store_server *probe = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &probe) == STATUS_OK);
    launch_plan first = plan_of(2), second;
    first.nnodes = 2;
    first.world_size = 4;
    first.max_restarts = 1;
    first.master_port = store_server_port(probe);
    store_server_destroy(probe);
    second = first;
    second.node_rank = 1;
    second.server = LAUNCH_SERVED_ELSEWHERE;
    pid_t b = start("leave_key", &second, "log.1", 0), a = start("leave_key", &first, "log.0", 0);
    int code = finish(a, "log.0");
    ck_assert_msg(code == 0, "node 0: %d\n%s", code, output);
    code = finish(b, "log.1");
    ck_assert_msg(code == 0, "node 1: %d\n%s", code, output);
    check_said("restart 1 of 1");
}
END_TEST

START_TEST(a_taken_port_is_an_error)
{
    store_server *other = NULL;
    ck_assert(store_server_create("127.0.0.1", 0, &other) == STATUS_OK);
    launch_plan plan = plan_of(2);
    plan.master_port = store_server_port(other);
    ck_assert_int_eq(finish(start("ok", &plan, "log", 0), "log"), EXIT_CODE_RENDEZVOUS);
    check_said("error: ");
    store_server_destroy(other);
}
END_TEST

START_TEST(what_was_started_is_stopped_if_the_rest_cannot_be)
{
    launch_plan plan = plan_of(40);
    int code = finish(start("sleep", &plan, "log", 32), "log");
    ck_assert_int_eq(code, EXIT_CODE_INTERNAL);
    check_said("of 40 ranks were started");
    check_said("ulimit -n");
}
END_TEST

/* The end is noticed, not looked for: no share of a polling interval is lost per run. */
START_TEST(ends_without_delay)
{
    char path[FILE_PATH_BYTES];
    double best_s = 1.0;
    for (int i = 0; i < 5; i++) {
        launch_plan plan = plan_of(2);
        ck_assert_int_eq(finish(start("note_end", &plan, "log", 0), "log"), 0);
        double end_s = clock_seconds(clock_now_ns());
        long long last_ns = 0;
        path_of("end", path);
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
        return launch_worker_main();
    Suite *suite = suite_create("launch");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, make_folder, remove_folder);
    tcase_add_loop_test(core, all_succeed, 0, COUNT(COUNTS));
    tcase_add_test(core, environment_and_arguments_are_complete);
    tcase_add_test(core, workers_inherit_no_descriptors);
    tcase_add_test(core, the_store_answers_all_workers);
    tcase_add_test(core, first_failure_is_reported_and_stops_the_rest);
    tcase_add_test(core, stubborn_ranks_are_killed);
    tcase_add_test(core, a_killed_rank_is_named);
    tcase_add_test(core, witnesses_are_not_blamed);
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
