/* Every fault on demand, and that its diagnosis names it. */
#include "app/train/fault.h"
#include "base/clock.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

#include <glob.h>
#include <jansson.h>
#include <signal.h>

enum { TIMEOUT_S = 3 };

#define FAULTY(fault) \
    "train", "--model", "mlp", "--limit", "480", "--batch-size", "8", "--threads", "1", \
        "--nproc-per-node", "3", "--timeout", "3", "--no-save-model", "--json", "--run-dir", \
        "run", "--log-dir", "logs", "--epochs", "3", "--inject", fault

static const struct {
    const char *text;
    inject want;
} GOOD[] = {
    {"kill:rank=1,step=50", {INJECT_KILL, 1, 50, 0, 0}},
    {"stop:step=2,rank=0,gen=3", {INJECT_STOP, 0, 2, 0, 3}},
    {"delay:rank=2,ms=7", {INJECT_DELAY, 2, 0, 7, 0}},
    {"delay:rank=2,step=1,ms=7", {INJECT_DELAY, 2, 1, 7, 0}},
    {"slow:ms=7", {INJECT_SLOW, -1, 0, 7, 0}},
    {"slow:rank=2,ms=7", {INJECT_SLOW, 2, 0, 7, 0}},
    {"drop-conn:rank=1,step=5", {INJECT_DROP_CONN, 1, 5, 0, 0}},
    {"uneven:rank=1", {INJECT_UNEVEN, 1, 0, 0, 0}},
    {"forget-set-epoch", {INJECT_FORGET_SET_EPOCH, -1, 0, 0, 0}},
    {"port-busy", {INJECT_PORT_BUSY, -1, 0, 0, 0}},
    {"port-busy:gen=1", {INJECT_PORT_BUSY, -1, 0, 0, 1}},
};
enum { N_GOOD = sizeof GOOD / sizeof GOOD[0] };

START_TEST(faults_are_read)
{
    inject what;
    ck_assert_msg(inject_parse(GOOD[_i].text, &what) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(what.kind, GOOD[_i].want.kind);
    ck_assert_int_eq(what.rank, GOOD[_i].want.rank);
    ck_assert_int_eq(what.step, GOOD[_i].want.step);
    ck_assert_int_eq(what.ms, GOOD[_i].want.ms);
    ck_assert_int_eq(what.attempt, GOOD[_i].want.attempt);
    ck_assert_int_eq(inject_parse(NULL, &what), STATUS_OK);
    ck_assert_int_eq(what.kind, INJECT_NONE);
}
END_TEST

static const struct {
    const char *text, *facts[5];
} BAD[] = {
    {"kil:rank=1,step=5", {"--inject", "'kil'", "'kill'"}},
    {"explode", {"'explode'", "kill", "delay", "forget-set-epoch"}},
    {"", {"''", "kill", "delay", "forget-set-epoch"}},
    {"kill", {"--inject=kill", "rank=R", "--inject=kill:rank=1,step=50"}},
    {"kill:rank=1", {"--inject=kill", "step=S", "--inject=kill:rank=1,step=50"}},
    {"delay:rank=1", {"--inject=delay", "ms=M", "--inject=delay:rank=1,ms=2000"}},
    {"slow:rank=1", {"--inject=slow", "ms=M"}},
    {"slow:step=1,ms=2", {"--inject=slow", "'step'"}},
    {"kill:rank=1,step=0", {"--inject=kill", "'step=0'", "number", "1"}},
    {"kill:rank=-1,step=5", {"--inject=kill", "'rank=-1'", "number", "0"}},
    {"kill:rank=x,step=5", {"--inject=kill", "'rank=x'", "number", "0"}},
    {"kill:rank,step=5", {"--inject=kill", "'rank'", "number", "0"}},
    {"kill:rank=1,step=5,ms=3", {"--inject=kill", "'ms'"}},
    {"uneven:rank=1,step=5", {"--inject=uneven", "'step'"}},
    {"port-busy:rank=1", {"--inject=port-busy", "'rank'"}},
    {"kill:rank=1,step=99999999999999999999", {"'step=99999999999999999999'", "number", "1"}},
};
enum { N_BAD = sizeof BAD / sizeof BAD[0] };

START_TEST(nonsense_is_refused)
{
    inject what;
    ck_assert_int_eq(inject_parse(BAD[_i].text, &what), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), BAD[_i].facts);
    ck_assert_int_eq(what.kind, INJECT_NONE);
}
END_TEST

START_TEST(a_fault_is_for_one_rank_and_attempt)
{
    inject what = {INJECT_KILL, 1, 5, 0, 2}, same = what;
    ck_assert_int_eq(fault_aim(&same, 1, 2, 2), STATUS_OK);
    ck_assert_int_eq(same.kind, INJECT_KILL);
    same = what;
    ck_assert_int_eq(fault_aim(&same, 0, 2, 2), STATUS_OK);
    ck_assert_int_eq(same.kind, INJECT_NONE);
    same = what;
    ck_assert_int_eq(fault_aim(&same, 1, 2, 0), STATUS_OK);
    ck_assert_int_eq(same.kind, INJECT_NONE);
    ck_assert_int_eq(fault_aim(&what, 0, 1, 0), STATUS_INVALID);
}
END_TEST

/* The bucket that the ranks wait in, and a line of a rank about it. */
#define BUCKET "bucket 0", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"
#define FAILED "error", "all_reduce", BUCKET

static program run_fault(const char *fault, int exit_code, double within_s)
{
    int64_t start_ns = clock_now_ns();
    program p = program_run_with(NULL, WORDS(FAULTY(fault), "--backend", training_backend));
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, exit_code);
    ck_assert_msg(took_s < within_s, "it took %g s", took_s);
    return p;
}

/* What every survivor has left. */
static void assert_dumped(int rank)
{
    char pattern[64];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "logs/*/attempt_0/ranks/rank%d.jsonl", rank);
    ck_assert_msg(glob(pattern, 0, NULL, &found) == 0, "no %s", pattern);
    FILE *file = fopen(found.gl_pathv[0], "r");
    char line[1024], last[1024] = "";
    int n = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        ck_assert_msg(object != NULL, "not JSON: %s", line);
        ck_assert(n == 0 || json_integer_value(json_object_get(object, "seq")) == n);
        json_decref(object);
        strcpy(last, line);
        n++;
    }
    ck_assert_int_gt(n, 10);
    ck_assert_msg(strstr(last, "\"done\"") == NULL, "nothing was under way: %s", last);
    fclose(file);
    globfree(&found);
}

/* Its process is stopped, or only late: both are found at the timeout. */
static const struct {
    const char *fault;
    bool stopped;
} hangs[] = {{"stop:rank=1,step=4", true}, {"delay:rank=1,step=4,ms=20000", false}};

START_TEST(a_rank_that_hangs_is_named)
{
    program p = run_fault(hangs[_i].fault, 110, TIMEOUT_S + 12);
    ASSERT_FACTS(p.err, FAILED, "rank 1 never entered", "data loader", "step 4", "epoch 1");
    ASSERT_FACTS(p.err, "rank 1 hangs", "in vain", "exit code 110");
    if (hangs[_i].stopped)
        ASSERT_FACTS(p.err, "rank 1 hangs (stopped)", "exit code 110");
    if (hangs[_i].stopped)
        ASSERT_FACTS(p.err, FAILED, "rank 1 never entered", "SIGSTOP");
    else
        ASSERT_NO_FACTS(p.err, FAILED, "SIGSTOP");
    ASSERT_NO_FACTS(p.err, "rank 0 never entered");
    ASSERT_NO_FACTS(p.err, "rank 2 never entered");
    assert_dumped(0);
    program_close(&p);
}
END_TEST

START_TEST(a_collective_left_out_is_named)
{
    program p = run_fault("uneven:rank=2", training_is_on_gloo() ? 110 : 70, TIMEOUT_S + 12);
    ASSERT_FACTS(p.err, FAILED, "rank 2", "2 x f64", "uneven inputs");
    ASSERT_FACTS(p.err, "injected", "epoch", "step");
    program_close(&p);
}
END_TEST

/* At once, on every backend, by the flag or the variable; the flag counts. */
START_TEST(with_detail_the_field_is_named)
{
    const char *variable =
        _i == 0 ? "TORCH_DISTRIBUTED_DEBUG=Detail" : "TORCH_DISTRIBUTED_DEBUG=OFF";
    int64_t start_ns = clock_now_ns();
    program p = program_run_with(WORDS("env", variable),
                                 WORDS(FAULTY("uneven:rank=2"), "--backend", training_backend,
                                       _i == 0 ? "--json" : "--debug=detail"));
    ASSERT_EXIT(p, 70);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), TIMEOUT_S + 12);
    ASSERT_FACTS(p.err, FAILED, "rank 2 calls", "dtype f64", "dtype f32");
    ASSERT_NO_FACTS(p.err, "slow or cut");
    program_close(&p);
}
END_TEST

/* error.json of a rank that lost another one: the place is the one that saw it first. */
static void assert_place_is_the_first(int rank)
{
    char pattern[64], *text = NULL;
    size_t size_bytes = 0;
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "logs/*/attempt_0/%d/error.json", rank);
    ck_assert_msg(glob(pattern, 0, NULL, &found) == 0, "no %s", pattern);
    ck_assert_int_eq(file_read(found.gl_pathv[0], 1 << 16, &text, &size_bytes), STATUS_OK);
    ASSERT_FACTS(text, "never entered", "\"location\"");
    ASSERT_NO_FACTS(text, "train/failure.c");
    ASSERT_NO_FACTS(text, "process_group/process_group.c");
    ASSERT_NO_FACTS(text, "gloo: "); /* what makes a status of an exception has not failed anew */
    free(text);
    globfree(&found);
}

START_TEST(a_killed_rank_was_somewhere)
{
    program p = run_fault("kill:rank=2,step=4", 128 + SIGKILL, TIMEOUT_S + 12);
    ASSERT_FACTS(p.err, FAILED, "rank 2 never entered", "gone", "data loader", "step 4", "epoch 1");
    assert_place_is_the_first(0);
    program_close(&p);
}
END_TEST

START_TEST(dropped_connections_end_gloo)
{
    program p = run_fault("drop-conn:rank=1,step=4", 72, TIMEOUT_S + 12);
    ASSERT_FACTS(p.err, "injected", "TCP", "3", "step 4");
    ASSERT_FACTS(p.err, "error", "closed", "connection");
    program_close(&p);
}
END_TEST

/* Shared memory goes on without them, and a goodbye that does not arrive is no failure. */
START_TEST(dropped_connections_do_not_end_shm)
{
    program p = program_run_with(NULL, WORDS("train", "--model", "mlp", "--limit", "64",
                                             "--threads", "1", "--epochs", "2", "--no-save-model",
                                             "--backend", "shm", "--nproc-per-node", "2",
                                             "--inject", "drop-conn:rank=1,step=1"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "goodbye");
    program_close(&p);
}
END_TEST

START_TEST(an_order_that_repeats_is_seen)
{
    program p = run_fault("forget-set-epoch", 0, RUN_S);
    ASSERT_FACTS(p.err, "epoch 2", "epoch 1", "set_epoch");
    ASSERT_FACTS(p.err, "epoch 3", "epoch 2", "set_epoch");
    program_close(&p);
    test_folder_remove("run logs");
    p = run_fault("delay:rank=1,step=2,ms=1", 0, RUN_S);
    ASSERT_NO_FACTS(p.err, "set_epoch");
    program_close(&p);
}
END_TEST

/* torchrun reads message.message and message.extraInfo.{py_callstack, timestamp}. */
START_TEST(a_worker_leaves_error_json)
{
    char *text = NULL;
    size_t size_bytes = 0;
    program p = program_run_with(WORDS("env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=1", "TORCHELASTIC_ERROR_FILE=error.json"),
                                 WORDS(TRAINING_SMALL, "--inject", "kill:rank=3,step=1"));
    ASSERT_EXIT(p, 64);
    ck_assert_int_eq(file_read("error.json", 1 << 16, &text, &size_bytes), STATUS_OK);
    json_t *object = json_loads(text, 0, NULL), *message = json_object_get(object, "message");
    json_t *extra = json_object_get(message, "extraInfo");
    ASSERT_FACTS(json_string_value(json_object_get(message, "message")), "--inject", "rank 3", "1");
    ASSERT_FACTS(json_string_value(json_object_get(extra, "py_callstack")), "--inject", "rank 3",
                 "1");
    ck_assert_int_gt(atoll(json_string_value(json_object_get(extra, "timestamp"))), 1600000000);
    ck_assert_int_eq(json_integer_value(json_object_get(message, "errorCode")), 64);
    json_decref(object);
    free(text);
    program_close(&p);
}
END_TEST

/* A hung rank tells on request where it is, and goes on hanging. */
START_TEST(sigusr2_asks_where_a_rank_is)
{
    program p =
        program_start_with(NULL, WORDS(FAULTY("delay:rank=1,step=4,ms=60000"), "--timeout", "60"));
    program_await(&p, "60000 ms");
    clock_sleep_ms(1000); /* rank 0 comes to step 4, too */
    kill(process_of_rank(p.pid, 0), SIGUSR2);
    program_await(&p, "rank0.jsonl");
    assert_dumped(0);
    ck_assert(!process_is_gone(p.pid));
    kill(p.pid, SIGINT);
    process_await_taken(p.pid, SIGINT);
    clock_sleep_ms(200); /* else they are one */
    kill(p.pid, SIGINT); /* at once: the step does not end */
    program_wait(&p, RUN_S);
    program_close(&p);
}
END_TEST

static void add_other_tests(Suite *suite, TCase *runs)
{
    TCase *words = suite_case(suite, "words", 10);
    tcase_add_loop_test(words, faults_are_read, 0, N_GOOD);
    tcase_add_loop_test(words, nonsense_is_refused, 0, N_BAD);
    tcase_add_test(words, a_fault_is_for_one_rank_and_attempt);
    tcase_add_test(runs, dropped_connections_do_not_end_shm);
    tcase_add_test(runs, an_order_that_repeats_is_seen);
    tcase_add_test(runs, a_worker_leaves_error_json);
    tcase_add_test(runs, sigusr2_asks_where_a_rank_is);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("inject");
    TCase *runs = suite_case(suite, "runs", 2.5 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, a_rank_that_hangs_is_named, 0, 2);
    tcase_add_test(runs, a_collective_left_out_is_named);
    tcase_add_loop_test(runs, with_detail_the_field_is_named, 0, 2);
    tcase_add_test(runs, a_killed_rank_was_somewhere);
    if (training_is_on_gloo())
        tcase_add_test(runs, dropped_connections_end_gloo);
    else
        add_other_tests(suite, runs);
    return test_folder_close(suite_run(suite));
}
