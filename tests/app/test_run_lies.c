/* Reports that are well formed and lie, set by somebody who reaches the store's port while a job of
 * two nodes runs. All on this machine. */
#include "base/clock.h"
#include "dist/elastic/rdzv_ops.h"
#include "tests/app/support/launcher_keys.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <jansson.h>
#include <signal.h>
#include <sys/stat.h>

#define TITLE "\x1b]0;owned\x07"

/* How a rank ended, with `folder` as the place for its error.json. */
static char *record_of(int node, int rank, const char *folder)
{
    json_t *cause = json_pack("{s:i s:i s:i s:i s:i s:i s:i s:f s:b s:s s:s s:s s:s s:s s:[s s]}",
                              "node", node, "rank", rank, "local_rank", 0, "pid", 1, "wait_status",
                              7 << 8, "start_errno", 0, "weight", 2, "after_s", 1.0,
                              "memory_killed", 0, "host", "h" TITLE, "says", "s" TITLE, "doing",
                              "d" TITLE, "folder", folder, "others", "o\nerror: forged" TITLE "\n",
                              "lines", "l" TITLE, "error: forged\nerror: forged");
    json_t *record = json_pack("{s:i s:i s:s s:o}", "result", 4, "signal", 0, "notes",
                               "n\nerror: forged" TITLE "\n", "cause", cause);
    char *whole = json_dumps(record, JSON_COMPACT);
    json_decref(record);
    return whole;
}

enum { NODES = 2 };

static program nodes[NODES];
static int port;

/* Both wait until told to go, and node 1's then ends with `code`. If that is a failure, node 0's
 * stays until all is over, though it is told to stop: until then node 0 has no outcome of its
 * own. */
static void start_job(int code)
{
    char script[300];
    port = port_find_free();
    snprintf(script, sizeof script,
             "test %d = 0 || trap '' TERM; touch up.$RANK; while ! test -e go; do sleep .02; done; "
             "test $RANK = 0 || exit %d; while ! test -e over; do sleep .02; done",
             code, code);
    for (int i = 0; i < NODES; i++) {
        nodes[i] = nodes_start(i, port, "--nnodes=2 --nproc-per-node=1", script);
        if (i == 0)
            port_await_listener(port);
    }
    test_folder_await("up.0");
    test_folder_await("up.1");
}

static void expect_no_forgery(void)
{
    for (int i = 0; i < NODES; i++) {
        ASSERT_SILENT(nodes[i].err, "\x1b");
        ASSERT_SILENT(nodes[i].err, "\x07");
        ASSERT_SILENT(nodes[i].err, "\nerror: forged");
    }
}

/* Node 1 speaks for itself only, wherever it says that it stands; and nothing that it says is a
 * path. */
START_TEST(a_record_chooses_no_path)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES + 16];
    snprintf(folder, sizeof folder, "%s/victim", test_folder);
    snprintf(path, sizeof path, "%s/error.json", folder);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    char *record = record_of(0, _i == 0 ? 1 : 0, folder);
    start_job(0);
    nodes_end_node_1(port, record);
    free(record);
    nodes_wait(nodes, NODES);
    ck_assert_msg(!file_exists(path), "%s was written", path);
    expect_no_forgery();
    ASSERT_EXIT(nodes[0], _i == 0 ? 7 : 72);
    if (_i == 0) {
        ASSERT_FACTS(nodes[0].err, "rank 1", "node 1", "\\x1b]0;owned\\x07");
    } else {
        ASSERT_FACTS(nodes[0].err, "error", "node 1", "rank 0");
    }
    nodes_close(nodes, NODES);
}
END_TEST

/* An order to stop without a reason: both nodes say from where it came. */
START_TEST(an_order_without_a_reason_has_a_sender)
{
    start_job(0);
    nodes_set_key(port, KEY_TROUBLE, "me" TITLE);
    nodes_wait(nodes, NODES);
    expect_no_forgery();
    for (int i = 0; i < NODES; i++) {
        ASSERT_EXIT(nodes[i], 70);
        ASSERT_FACTS(nodes[i].err, "127.0.0.1:", "me\\x1b]0;owned\\x07");
    }
    nodes_close(nodes, NODES);
}
END_TEST

/* The same by a record: its author is named, not node 0, which stopped all because of it. */
START_TEST(an_order_by_record_has_a_sender)
{
    start_job(0);
    nodes_end_node_1(port, ENDED(3, 0));
    nodes_wait(nodes, NODES);
    for (int i = 0; i < NODES; i++) {
        ASSERT_EXIT(nodes[i], 70);
        ASSERT_FACTS(nodes[i].err, "127.0.0.1:", "'node 1'");
        ASSERT_NO_FACTS(nodes[i].err, "127.0.0.1:", "'node 0'");
    }
    nodes_close(nodes, NODES);
}
END_TEST

/* A signal that has no name, and one that is none. */
START_TEST(a_record_has_a_signal)
{
    start_job(0);
    nodes_end_node_1(port, _i == 0 ? ENDED(2, 64) : ENDED(2, 0));
    nodes_wait(nodes, NODES);
    ASSERT_EXIT(nodes[0], _i == 0 ? 128 + 64 : 72);
    ASSERT_FACTS(nodes[0].err, "error", _i == 0 ? "node 1" : "launcher",
                 _i == 0 ? "signal 64" : "signal");
    ASSERT_SILENT(nodes[0].err, "(null)");
    nodes_close(nodes, NODES);
}
END_TEST

/* Read as JSON it would take hundreds of MiB. */
START_TEST(a_record_has_a_size)
{
    enum { EMPTIES = 700000 };
    const char begin[] = "{\"result\":0,\"signal\":0,\"notes\":\"\",\"a\":[", end[] = "0]}";
    char *record = malloc(sizeof begin + (size_t)3 * EMPTIES + sizeof end), *at = record;
    ck_assert_ptr_nonnull(record);
    at = stpcpy(at, begin);
    for (int i = 0; i < EMPTIES; i++)
        at = stpcpy(at, "{},");
    stpcpy(at, end);
    start_job(0);
    nodes_end_node_1(port, record);
    free(record);
    nodes_wait(nodes, NODES);
    ASSERT_EXIT(nodes[0], 72);
    ASSERT_FACTS(nodes[0].err, "error", "node 1", "1048576");
    nodes_close(nodes, NODES);
}
END_TEST

/* Both nodes stop with a checkpoint, and an outcome says that all is done. */
START_TEST(a_forged_outcome_hides_no_preemption)
{
    char flags[] = "--nnodes=2 --nproc-per-node=1";
    port = port_find_free();
    for (int i = 0; i < NODES; i++) {
        nodes[i] = nodes_start(i, port, flags,
                               "trap 'exit 75' TERM; touch up.$RANK; while :; do sleep .02; done");
        if (i == 0)
            port_await_listener(port);
    }
    test_folder_await("up.0");
    test_folder_await("up.1");
    nodes_set_key(port, KEY_OUTCOME, OUTCOME(false, 0, ""));
    for (int i = 0; i < NODES; i++)
        kill(nodes[i].pid, SIGTERM);
    nodes_wait(nodes, NODES);
    for (int i = 0; i < NODES; i++)
        ASSERT_EXIT(nodes[i], 75);
    ASSERT_NO_FACTS(nodes[0].err, "store", "exit code 0"); /* it has its own */
    nodes_close(nodes, NODES);
}
END_TEST

static const struct {
    const char *json, *code;
} OUTCOMES[] = {
    {OUTCOME(false, 0, "\\u001b]0;owned\\u0007"), "exit code 0"},
    {OUTCOME(true, 0, ""), "exit code 0"},
    {OUTCOME(false, 75, ""), "exit code 75"},
};

/* Node 1's rank fails with 7, and an outcome is there already: that all is well, or another one
 * that cannot be. */
START_TEST(a_forged_outcome_hides_no_failure)
{
    start_job(7);
    nodes_set_key(port, KEY_OUTCOME, OUTCOMES[_i].json);
    test_folder_write("go", "");
    program_wait(&nodes[1], RUN_S); /* it has heard the forged one, as there is no other */
    test_folder_write("over", "");
    program_wait(&nodes[0], RUN_S);
    expect_no_forgery();
    ASSERT_EXIT(nodes[1], 7);
    ASSERT_FACTS(nodes[1].err, "error", "rank 1", "exit code 7");
    ASSERT_FACTS(nodes[1].err, "error", "store", "node 1", OUTCOMES[_i].code);
    nodes_close(nodes, NODES);
}
END_TEST

/* A report that a node's launcher has not sent does not count: node _i's rank fails after it. */
START_TEST(a_strangers_report_hides_no_failure)
{
    char script[200];
    port = port_find_free();
    snprintf(script, sizeof script,
             "touch up.$RANK; while ! test -e go; do sleep .02; done; test $RANK != %d || exit 7",
             _i);
    for (int i = 0; i < NODES; i++) {
        nodes[i] = nodes_start(i, port, "--nnodes=2 --nproc-per-node=1", script);
        if (i == 0)
            port_await_listener(port);
    }
    test_folder_await("up.0");
    test_folder_await("up.1");
    nodes_set_key(port, _i == 0 ? KEY_END_OF_NODE_0 : KEY_END_OF_NODE_1, ENDED(0, 0));
    clock_sleep_ms(300); /* node 0 looks every 100 ms */
    test_folder_write("go", "");
    nodes_wait(nodes, NODES);
    for (int i = 0; i < NODES; i++)
        ASSERT_EXIT(nodes[i], 7);
    nodes_close(nodes, NODES);
}
END_TEST

static const rdzv_ops *const c10d = &rdzv_c10d;

/* Two nodes of an elastic job in their first round. Returns a stranger at their rendezvous. */
static void *start_elastic_job(const char *name)
{
    void *stranger = NULL;
    char where[32];
    port = port_find_free();
    for (int i = 0; i < NODES; i++) {
        nodes[i] = nodes_start_c10d(
            port,
            "--nnodes=1:4 --nproc-per-node=1 "
            "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=3",
            "touch up.$MNIST_DDP_ROUND.$RANK; while ! test -e go; do sleep .02; done");
        if (i == 0)
            test_folder_await("up.1.0");
    }
    test_folder_await("up.2.0");
    test_folder_await("up.2.1");
    snprintf(where, sizeof where, "localhost:%d", port);
    const rdzv_service_options how = {
        .endpoints = where, .run_id = "none", .node_id = name, .ttl_ms = 60000, .timeout_ms = 5000};
    ck_assert_int_eq(c10d->open(&how, &stranger), STATUS_OK);
    return stranger;
}

static void end_elastic_job(void *stranger, int code)
{
    test_folder_write("go", "");
    nodes_wait(nodes, NODES);
    for (int i = 0; i < NODES; i++)
        ASSERT_EXIT(nodes[i], code);
    c10d->close(stranger);
}

/* The state of the job says that all is done, while ranks run. */
START_TEST(a_stranger_closes_no_job_well)
{
    bool set = false;
    rdzv_view view;
    void *stranger = start_elastic_job("x_1_1");
    ck_assert_int_eq(c10d->look(stranger, RDZV_ALL, -1, 0, &view), STATUS_OK);
    json_t *state = json_loads(view.state, 0, NULL);
    json_object_set_new(state, "closed", json_true());
    json_object_set_new(state, "over", json_true());
    json_object_set_new(state, "well", json_true());
    json_object_set_new(state, "reason", json_string("all ranks have ended well" TITLE));
    char *text = json_dumps(state, JSON_COMPACT);
    ck_assert_int_eq(c10d->set_state(stranger, view.state_revision, text, &set), STATUS_OK);
    ck_assert(set);
    program_await(&nodes[0], "error", "not believed");
    program_await(&nodes[1], "error", "not believed");
    end_elastic_job(stranger, 72);
    for (int i = 0; i < NODES; i++)
        ASSERT_FACTS(nodes[i].err, "error", "ended well", "round 2", "not believed");
    expect_no_forgery();
    nodes_close(nodes, NODES);
    free(text);
    json_decref(state);
    rdzv_view_free(&view);
}
END_TEST

/* It is taken in once, and not again soon. */
START_TEST(a_stranger_in_the_rendezvous_stops_no_node)
{
    void *stranger = start_elastic_job("x_1_1");
    static const char record[] = "{\"format\":2,\"id\":\"x_1_1\",\"nproc\":1,\"address\":\"127.0.0."
                                 "1\",\"port\":9,\"waits\":true,"
                                 "\"round\":0,\"restarts\":0,\"lost\":[],\"unmet\":false}";
    ck_assert_int_eq(c10d->put_node(stranger, record, false), STATUS_OK);
    program_await(&nodes[0], "round 3 does not begin");
    test_folder_await("up.4.0");
    test_folder_await("up.4.1");
    end_elastic_job(stranger, 0);
    nodes_close(nodes, NODES);
}
END_TEST

/* A record of one of the nodes is taken away: one round more, and all goes on. */
START_TEST(a_node_whose_record_is_taken_goes_on)
{
    char name[64];
    rdzv_view view;
    void *stranger = start_elastic_job("x_1_1");
    ck_assert_int_eq(c10d->look(stranger, RDZV_ALL, -1, 0, &view), STATUS_OK);
    ck_assert_int_eq(view.n, NODES);
    snprintf(name, sizeof name, "localhost:%d", port);
    const rdzv_service_options how = {.endpoints = name,
                                      .run_id = "none",
                                      .node_id = view.nodes[1].id,
                                      .ttl_ms = 60000,
                                      .timeout_ms = 5000};
    c10d->close(stranger);
    ck_assert_int_eq(c10d->open(&how, &stranger), STATUS_OK);
    ck_assert_int_eq(c10d->remove_node(stranger), STATUS_OK);
    rdzv_view_free(&view);
    /* At once, or after a round of the other one alone: it may not end the job meanwhile. */
    for (int64_t end_ns = clock_deadline_ns(RUN_S * 1000);
         !file_exists("up.3.1") && !file_exists("up.4.1") && !clock_passed(end_ns);)
        clock_sleep_ms(20);
    end_elastic_job(stranger, 0);
    nodes_close(nodes, NODES);
}
END_TEST

/* What a rank says of itself may hold what others have told it. */
START_TEST(what_a_rank_says_is_text)
{
    program p = run_command("--nproc-per-node=1 --max-restarts=0 --redirects=3",
                            "printf '{\"message\":\"a\\\\u001b[2Jb\"}' > $TORCHELASTIC_ERROR_FILE; "
                            "exit 3");
    ASSERT_EXIT(p, 3);
    ASSERT_FACTS(p.err, "a\\x1b[2Jb");
    program_close(&p);
}
END_TEST

/* As under torchrun: what own workers write is passed through. */
START_TEST(own_lines_pass_as_they_are)
{
    program p = run_command("--nproc-per-node=1", "printf '\\033[31mred\\033[0m\\n' >&2; exit 3");
    ASSERT_EXIT(p, 3);
    ck_assert_int_eq(facts_count(p.err, "\x1b[31mred\x1b[0m\n"), 2); /* and in the report */
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_lies");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_loop_test(core, a_record_chooses_no_path, 0, 2);
    tcase_add_test(core, an_order_without_a_reason_has_a_sender);
    tcase_add_test(core, an_order_by_record_has_a_sender);
    tcase_add_loop_test(core, a_record_has_a_signal, 0, 2);
    tcase_add_test(core, a_record_has_a_size);
    tcase_add_test(core, a_forged_outcome_hides_no_preemption);
    tcase_add_loop_test(core, a_forged_outcome_hides_no_failure, 0,
                        sizeof OUTCOMES / sizeof OUTCOMES[0]);
    tcase_add_loop_test(core, a_strangers_report_hides_no_failure, 0, NODES);
    tcase_add_test(core, a_stranger_closes_no_job_well);
    tcase_add_test(core, a_stranger_in_the_rendezvous_stops_no_node);
    tcase_add_test(core, a_node_whose_record_is_taken_goes_on);
    tcase_add_test(core, what_a_rank_says_is_text);
    tcase_add_test(core, own_lines_pass_as_they_are);
    return test_folder_close(suite_run(suite));
}
