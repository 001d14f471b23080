/* --trace: the whole run is in the file, however it ended. */
#include "base/clock.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/trace_file.h"
#include "tests/app/support/training.h"
#include "tests/support/port.h"

#include <signal.h>

/* 6 steps an epoch for one rank, 3 for two, 2 for three. */
#define TRACED \
    "train", TRAINING_SGD, "--json", "--quiet", "--limit", "48", "--batch-size", "8", "--trace", \
        "trace.json", "--run-dir", "run", "--no-save-model"
#define FAULTY(fault) \
    TRACED, "--model", "mlp", "--threads", "1", "--nproc-per-node", "3", "--epochs", "3", \
        "--timeout", "5", "--log-dir", "logs", "--inject", fault

/* Layers in the order of forward, and what their buckets hold with caps of half a MiB. */
static const struct model_parts {
    const char *model, *layers[6], *buckets[4];
} MODELS[] = {
    {"mlp",
     {"fc1", "fc2", "fc3"},
     {"fc2.weight, fc2.bias, fc3.weight, fc3.bias", "fc1.weight, fc1.bias"}},
    {"cnn",
     {"conv_block", "fc1", "fc2"},
     {"fc1.weight, fc1.bias, fc2.weight, fc2.bias",
      "conv1.weight, conv1.bias, conv2.weight, conv2.bias"}},
};

static void expect(const json_t *doc, int rank, const char *of, const char *name, int n)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s%s", of, of[0] != '\0' ? " " : "", name);
    int got = trace_file_count(doc, rank, whole, NULL);
    ck_assert_msg(got == n, "rank %d: %d times %s, want %d", rank, got, whole, n);
}

static const char *const PASSES[] = {"forward", "backward", NULL};

/* Whether it is a span of this thread with one of these names. */
static bool is_one_of(const json_t *event, int rank, int thread, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++)
        if (trace_file_is(event, rank, -1, names[i]))
            return trace_file_integer(event, "tid") == thread;
    return false;
}

/* Of the spans named in `wholes`, half at least are covered by those in `parts`, but for a
 * twentieth: in the others the thread may have been made to wait in between. */
static void expect_covered(const json_t *doc, int rank, const char *const *wholes,
                           const char *const *parts)
{
    const json_t *events = json_object_get(doc, "traceEvents"), *whole, *part;
    size_t i, k;
    int n = 0, covered = 0, main_thread = trace_file_thread(doc, rank, "main");
    json_array_foreach(events, i, whole)
    {
        int64_t begin_ns, end_ns, within_ns = 0;
        if (!is_one_of(whole, rank, main_thread, wholes))
            continue;
        begin_ns = trace_file_ns(whole, "ts");
        end_ns = begin_ns + trace_file_ns(whole, "dur");
        json_array_foreach(events, k, part)
        {
            if (is_one_of(part, rank, main_thread, parts) &&
                trace_file_ns(part, "ts") >= begin_ns && trace_file_ns(part, "ts") < end_ns)
                within_ns += trace_file_ns(part, "dur");
        }
        ck_assert_int_le(within_ns, end_ns - begin_ns);
        covered += (double)within_ns >= 0.95 * (double)(end_ns - begin_ns);
        n++;
    }
    ck_assert_msg(n > 0 && 2 * covered >= n, "rank %d: of %d times %s, %d are covered by %s ...",
                  rank, n, wholes[0], covered, parts[0]);
}

static void expect_layers(const json_t *doc, int rank, const struct model_parts *m, int passes)
{
    char names[12][32] = {{0}};
    const char *parts[14] = {"loss"};
    for (int i = 0; m->layers[i] != NULL; i++) {
        for (int pass = 0; pass < 2; pass++) {
            char *name = names[2 * i + pass];
            snprintf(name, sizeof names[0], "%s %s", m->layers[i], PASSES[pass]);
            expect(doc, rank, "", name, passes);
            parts[1 + 2 * i + pass] = name;
        }
    }
    expect_covered(doc, rank, PASSES, parts);
}

static void expect_steps_are_covered(const json_t *doc, int rank)
{
    expect_covered(doc, rank, WORDS("step"),
                   WORDS("data", "forward", "backward", "ddp_wait", "optimizer"));
}

static void expect_buckets(const json_t *doc, int rank, const struct model_parts *m, int steps)
{
    for (int i = 0; m->buckets[i] != NULL; i++) {
        char name[32];
        snprintf(name, sizeof name, "all_reduce bucket %d", i);
        expect(doc, rank, "", name, steps);
        ck_assert_str_eq(json_string_value(trace_file_argument(doc, rank, name, "parameters")),
                         m->buckets[i]);
        ck_assert_int_gt(json_integer_value(trace_file_argument(doc, rank, name, "bytes")), 4);
        ck_assert_int_gt(json_integer_value(trace_file_argument(doc, rank, name, "seq")), 0);
    }
    ck_assert_int_gt(trace_file_thread(doc, rank, "communication"), 0);
}

START_TEST(a_trace_holds_all_of_a_run)
{
    const struct model_parts *m = &MODELS[_i % 2];
    int world = 1 + _i / 2, steps = 6 / world;
    char ranks[12];
    snprintf(ranks, sizeof ranks, "%d", world);
    program p = program_mnist(TRACED, "--model", m->model, "--nproc-per-node", ranks, "--threads",
                              "2", "--epochs", "2", "--bucket-cap-mb", "0.5", NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    ck_assert_str_eq(trace_file_ending(doc), "done");
    ck_assert_uint_eq(trace_file_ranks(doc), (1u << world) - 1);
    for (int rank = 0; rank < world; rank++) {
        expect(doc, rank, "", "step", 2 * steps);
        expect(doc, rank, "", "epoch", 2);
        expect(doc, rank, "", "evaluation", 2);
        expect(doc, rank, "", "ddp_wait", 2 * steps);
        expect(doc, rank, "", "optimizer", 2 * steps);
        expect(doc, rank, "", "loss", 2 * steps);
        expect_layers(doc, rank, m, 2 * steps);
        expect_steps_are_covered(doc, rank);
        expect_buckets(doc, rank, m, 2 * steps);
        ck_assert_int_gt(trace_file_thread(doc, rank, "main"), 0);
        ck_assert_int_gt(trace_file_thread(doc, rank, "compute 1 of main"), 0);
    }
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* 6 steps; each mode's phases cover them, and replicas have tracks of their own. */
START_TEST(every_mode_is_traced)
{
    static const char *const modes[][3] = {{"dp", "--replicas", "3"},
                                           {"ps", "--nproc-per-node", "2"},
                                           {"zero1", "--nproc-per-node", "2"},
                                           {"fsdp", "--nproc-per-node", "2"},
                                           {"pipeline", "--nproc-per-node", "2"},
                                           {"tp", "--nproc-per-node", "2"},
                                           {"model", "--replicas", "2"},
                                           {"single", "--nproc-per-node", "1"},
                                           {"ps", "--async", "--nproc-per-node=2"}};
    const char *const *m = modes[_i];
    int trainer = _i == 8; /* rank 0 is the server */
    program p = program_mnist(TRACED, "--model", "mlp", "--threads", "1", "--epochs", "1", "--mode",
                              m[0], m[1], m[2], NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    for (int rank = 0; rank <= trainer; rank++)
        expect_covered(doc, rank, WORDS("step"),
                       WORDS("data", "broadcast", "scatter", "forward", "gather", "backward",
                             "reduce", "stage", "partial", "push", "serve", "optimizer"));
    bool pipeline = strcmp(m[0], "pipeline") == 0; /* whose rank 0 has fc1 alone */
    expect(doc, trainer, pipeline ? "fc1" : "fc2", "backward",
           pipeline  ? 4 * 6
           : _i == 0 ? 3 * 6
           : _i < 3  ? 3
                     : 6);
    for (int replica = 1; _i == 0 && replica < 3; replica++) {
        char name[32];
        snprintf(name, sizeof name, "replica %d", replica);
        ck_assert_int_gt(trace_file_thread(doc, 0, name), 0);
        snprintf(name, sizeof name, "transfers of replica %d", replica);
        ck_assert_int_gt(trace_file_thread(doc, 0, name), 0);
    }
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* Of 6 steps with two batches each; in the run's folder, which is not there yet. */
START_TEST(trace_steps_bounds_what_is_kept)
{
    program p = program_mnist(TRACED, "--model", "mlp", "--threads", "1", "--epochs", "1",
                              "--batch-size", "4", "--accum", "2", "--trace-steps", "4", "--trace",
                              "./run/trace.json", NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("run/trace.json");
    trace_file_check(doc);
    expect(doc, 0, "", "step", 4);
    expect(doc, 0, "fc1", "forward", 8);
    expect(doc, 0, "", "all_reduce bucket 0", 4);
    expect(doc, 0, "", "evaluation", 1);
    expect(doc, 0, "", "epoch", 1);
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* The trace does not touch what is computed, nor does a run without it leave a file. */
START_TEST(a_trace_changes_no_bit)
{
    program with =
        program_mnist(TRAINING_96, "--model", "cnn", "--nproc-per-node", "2", "--run-dir",
                      test_folder_path("run"), "--trace", "trace.json", NULL);
    ASSERT_EXIT(with, 0);
    ck_assert_int_eq(unlink("trace.json"), 0);
    program without = program_mnist(TRAINING_96, "--model", "cnn", "--nproc-per-node", "2",
                                    "--run-dir", test_folder_path("logs"), NULL);
    ASSERT_EXIT(without, 0);
    ck_assert(!file_exists("trace.json"));
    model_file_assert_same_bits(test_folder_path("run"), test_folder_path("logs"));
    program_close(&with);
    program_close(&without);
}
END_TEST

/* Also of a step that is past --trace-steps the trace says where it broke off. */
START_TEST(survivors_of_a_failure_leave_a_trace)
{
    static const char *const faults[] = {"kill:rank=1,step=3", "kill:rank=0,step=3"};
    program p = program_mnist(FAULTY(faults[_i]), "--trace-steps", "1", NULL);
    ck_assert_int_ne(p.exit_code, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    ck_assert_str_eq(trace_file_ending(doc), "failed");
    unsigned ranks = trace_file_ranks(doc);
    ck_assert_msg(ranks == (_i == 0 ? 5u : 6u), "ranks %x, stderr: %s", ranks, p.err);
    for (int rank = 0; rank < 3; rank++) {
        if ((ranks & 1u << rank) == 0)
            continue;
        expect(doc, rank, "", "step", 2); /* the first, and the one that did not end */
        ck_assert_int_eq(trace_file_unfinished(doc, rank, "epoch"), 1);
        ck_assert_int_eq(trace_file_unfinished(doc, rank, "step"), 1);
        ck_assert_int_eq(trace_file_unfinished(doc, rank, "setup"), 0);
    }
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* Without a launcher rank 0 has the store: a survivor's part lies beside the file. */
START_TEST(a_survivor_without_a_store_leaves_its_part)
{
    program ranks[2];
    char port[32], rank_of[32], local[32];
    snprintf(port, sizeof port, "MASTER_PORT=%d", port_find_free());
    unlink("trace.json.rank1");
    for (int rank = 0; rank < 2; rank++) {
        snprintf(rank_of, sizeof rank_of, "RANK=%d", rank);
        snprintf(local, sizeof local, "LOCAL_RANK=%d", rank);
        ranks[rank] = program_start_with(WORDS("env", port, rank_of, local, "WORLD_SIZE=2",
                                               "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"),
                                         WORDS(TRACED, "--model", "mlp", "--threads", "1",
                                               "--epochs", "1", "--inject", "kill:rank=0,step=2"));
    }
    for (int rank = 0; rank < 2; rank++)
        program_wait(&ranks[rank], RUN_S);
    ck_assert_int_ne(ranks[1].exit_code, 0);
    ASSERT_FACTS(ranks[1].err, "trace.json.rank1");
    json_t *doc = trace_file_read("trace.json"), *part = trace_file_read("trace.json.rank1");
    trace_file_check(doc);
    trace_file_check(part);
    ck_assert_uint_eq(trace_file_ranks(doc), 0);
    ck_assert_uint_eq(trace_file_ranks(part), 2);
    ck_assert_int_eq(trace_file_unfinished(part, 1, "epoch"), 1);
    json_decref(doc);
    json_decref(part);
    program_close(&ranks[0]);
    program_close(&ranks[1]);
}
END_TEST

START_TEST(a_restarted_run_leaves_its_last_attempt)
{
    program p = program_mnist(FAULTY("kill:rank=1,step=3"), "--max-restarts", "1", NULL);
    ASSERT_EXIT(p, 0);
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    ck_assert_str_eq(trace_file_ending(doc), "done");
    ck_assert_int_eq(trace_file_integer(json_object_get(doc, "otherData"), "generation"), 1);
    ck_assert_uint_eq(trace_file_ranks(doc), 7);
    json_decref(doc);
    program_close(&p);
}
END_TEST

/* A preempted run writes its trace; one that is killed has left what can be opened. */
START_TEST(a_run_that_is_stopped_leaves_a_trace)
{
    program p = program_start_with(
        NULL, WORDS("train", "--model", "mlp", "--limit", "600", "--batch-size", "1", "--epochs",
                    "1000", "--threads", "1", "--nproc-per-node", "2", "--json", "--log-interval",
                    "1", "--trace", "trace.json", "--trace-steps", "5", "--run-dir", "run"));
    program_await(&p, "step 3/");
    kill(p.pid, _i == 0 ? SIGUSR1 : SIGKILL);
    program_wait(&p, RUN_S);
    clock_sleep_ms(_i == 0 ? 0 : 200); /* the ranks follow their launcher */
    json_t *doc = trace_file_read("trace.json");
    trace_file_check(doc);
    if (_i == 0) {
        ck_assert_str_eq(trace_file_ending(doc), "stopped");
        ck_assert_uint_eq(trace_file_ranks(doc), 3);
        int steps = trace_file_count(doc, 1, "step", NULL);
        ck_assert(steps >= 3 && steps <= 5); /* it was asked behind the third */
    }
    json_decref(doc);
    program_close(&p);
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_said_at_once)
{
    program p = program_mnist(TRAINING_SMALL, "--nproc-per-node", _i == 0 ? "1" : "2", "--trace",
                              "no/such/folder/trace.json", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--trace", "no/such/folder");
    program_close(&p);
    p = program_mnist(TRAINING_SMALL, "--trace", "", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--trace", "empty");
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("trace");
    TCase *runs = suite_case(suite, "runs", 120);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, a_trace_holds_all_of_a_run, 0, 6);
    tcase_add_loop_test(runs, every_mode_is_traced, 0, 9);
    tcase_add_test(runs, trace_steps_bounds_what_is_kept);
    tcase_add_test(runs, a_trace_changes_no_bit);
    tcase_add_loop_test(runs, survivors_of_a_failure_leave_a_trace, 0, 2);
    tcase_add_test(runs, a_survivor_without_a_store_leaves_its_part);
    tcase_add_test(runs, a_restarted_run_leaves_its_last_attempt);
    tcase_add_loop_test(runs, a_run_that_is_stopped_leaves_a_trace, 0, 2);
    tcase_add_loop_test(runs, a_file_that_cannot_be_written_is_said_at_once, 0, 2);
    return test_folder_close(suite_run(suite));
}
