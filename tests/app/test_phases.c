/* What the JSON line says of where time, bytes and memory go, in every mode: the numbers that
 * comparisons rest on. */
#include "app/train/timeline.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/ranks.h"

#include <jansson.h>

enum { MLP = 669706, PIXELS = 784, CLASSES = 10 };

static const char *const PHASES[] = {"data",      "broadcast",  "scatter", "forward",
                                     "gather",    "backward",   "reduce",  "waiting",
                                     "optimizer", "accelerator"};
enum { N_NAMED = sizeof PHASES / sizeof PHASES[0] };

static const struct {
    const char *mode, *flag;
    int world, replicas, peaks, global;
    const char *uses; /* the phases that take time beside data, forward, backward and optimizer */
    const char *more; /* one more flag; NULL: none */
} RUNS[] = {
    {"--mode=single", "--seed=1", 1, 1, 1, 24, "", NULL},
    {"--mode=dp", "--replicas=3", 1, 3, 3, 24, "broadcast scatter gather reduce", NULL},
    {"--mode=ps", "--nproc-per-node=2", 2, 1, 2, 48, "broadcast reduce", NULL},
    {"--mode=ps", "--nproc-per-node=3", 3, 1, 3, 48, "reduce", "--async"},
    {"--mode=ddp", "--nproc-per-node=3", 3, 1, 3, 72, "reduce", NULL},
    {"--mode=zero1", "--nproc-per-node=2", 2, 1, 2, 48, "gather reduce", NULL},
    {"--mode=fsdp", "--nproc-per-node=2", 2, 1, 2, 48, "gather reduce", NULL},
    {"--mode=pipeline", "--nproc-per-node=2", 2, 1, 2, 24, "reduce", NULL},
    {"--mode=model", "--replicas=2", 1, 2, 2, 24, "scatter gather", NULL},
    {"--mode=tp", "--nproc-per-node=2", 2, 1, 2, 24, "reduce", NULL},
};
enum { N_RUNS = sizeof RUNS / sizeof RUNS[0] };

static json_t *result_of(const char *const *flags)
{
    json_error_t error;
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, 0);
    json_t *object = json_loads(p.out, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, p.out);
    program_close(&p);
    return object;
}

#define RUN_FLAGS \
    "train", "--threads", "1", "--json", "--quiet", "--no-save-model", "--batch-size", "24", \
        "--run-dir", "run"

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_number(value), "no number '%s'", key);
    return json_number_value(value);
}

static double sum_of(const json_t *array)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(array); i++)
        sum += json_number_value(json_array_get(array, i));
    return sum;
}

static bool moves_data(const char *name)
{
    return strcmp(name, "broadcast") == 0 || strcmp(name, "scatter") == 0 ||
           strcmp(name, "gather") == 0 || strcmp(name, "reduce") == 0;
}

/* Each instant of training in one phase, so they sum to the time. */
START_TEST(phases_sum_to_the_training_time)
{
    json_t *result = result_of(WORDS(RUN_FLAGS, "--model", "cnn", "--epochs", "2", RUNS[_i].mode,
                                     RUNS[_i].flag, RUNS[_i].more));
    const json_t *parts = json_object_get(result, "phases");
    double total = sum_of(json_object_get(result, "train_s")), sum = 0, exposed = 0;
    ck_assert_uint_eq(json_object_size(parts), N_NAMED);
    for (int i = 0; i < N_NAMED; i++) {
        double s = number(parts, PHASES[i]);
        bool moves = moves_data(PHASES[i]);
        bool expected = strstr(RUNS[_i].uses, PHASES[i]) != NULL;
        ck_assert_msg(s >= 0, "%s takes %g s", PHASES[i], s);
        ck_assert_msg(!moves || (s > 0) == expected, "%s takes %g s", PHASES[i], s);
        exposed += moves ? s : 0;
        sum += s;
    }
    ck_assert_msg(fabs(sum - total) <= 0.05 * total, "phases %g s, training %g s", sum, total);
    ck_assert_double_eq_tol(number(result, "comm_exposed"), exposed, 1e-5);
    ck_assert(number(result, "comm_total") >= 0);
    json_decref(result);
}
END_TEST

START_TEST(every_mode_has_the_keys)
{
    json_t *result = result_of(WORDS(RUN_FLAGS, "--model", "mlp", "--epochs", "2", "--limit", "144",
                                     RUNS[_i].mode, RUNS[_i].flag, RUNS[_i].more));
    const char *mode = json_string_value(json_object_get(result, "mode"));
    ck_assert_str_eq(mode, strchr(RUNS[_i].mode, '=') + 1);
    ck_assert_int_eq((int)number(result, "world"), RUNS[_i].world);
    ck_assert_int_eq((int)number(result, "replicas"), RUNS[_i].replicas);
    ck_assert_int_eq((int)number(result, "global_batch"), RUNS[_i].global);
    ck_assert_int_eq((int)number(result, "steps"), 2 * 144 / RUNS[_i].global);
    const json_t *peaks = json_object_get(result, "peak_mib");
    ck_assert_uint_eq(json_array_size(peaks), (size_t)RUNS[_i].peaks);
    for (int i = 0; i < RUNS[_i].peaks; i++) /* parameters and gradients at least */
        ck_assert_double_gt(json_number_value(json_array_get(peaks, (size_t)i)),
                            2 * 4 * MLP / 1048576.0);
    json_decref(result);
}
END_TEST

/* Parameters, gradients, the batch, and the wish to stop. */
START_TEST(bytes_are_those_of_the_algorithm)
{
    json_t *result = result_of(WORDS(RUN_FLAGS, "--model", "mlp", "--epochs", "1", "--limit", "144",
                                     RUNS[_i].mode, RUNS[_i].flag, RUNS[_i].more));
    const json_t *bytes = json_object_get(result, "bytes");
    double row = PIXELS * 4 + 4 + CLASSES * 4; /* pixels, position, gradients of logits */
    double served = 2 * 4.0 * (MLP + 1);       /* there and back, of each trainer */
    double ring = 2 * 4.0 * (MLP + 1) * 2 / 3;
    double slice = 64 * ceil(4.0 * (MLP + 1) / 2 / 64); /* whole cache lines: there and back */
    /* Slices of fc1, fc2 and fc3 there, those of the first two back; of fc3 each rank has all. */
    double large = 4.0 * (785 * 512 + 513 * 512) / 2, logits = 513 * CLASSES + 1;
    double sharded = 2 * large + 64 * ceil(4.0 * logits / 2 / 64) + 4.0 * logits;
    /* fc1's output of 24 samples, and its gradient; the wish to stop, and the last one's totals. */
    double passed = 24 * 512 * 4 + 4, totals = 32;
    /* The same of two devices; the batch's pixels and positions go to the first one. */
    double on = 24 * 512 * 4, back = on + 24 * (PIXELS * 4 + 4);
    double summed = 24 * 512 * 4 + 4; /* fc2's output, by a ring of two; the wish to stop */
    const double want[N_RUNS][4] = {
        {0, 0, 0, 0},
        {2 * 4.0 * MLP + 16 * row, 2 * 4.0 * MLP + 16 * CLASSES * 4, 2 * 4.0 * MLP + 16 * row,
         2 * 4.0 * MLP + 16 * CLASSES * 4},
        {4.0 * (MLP + 2), 4.0 * (MLP + 1), 4.0 * (MLP + 2), 4.0 * (MLP + 2)},
        {served, served, served, served},
        {ring, ring, ring, ring},
        {2 * slice, 2 * slice, 2 * slice, 2 * slice},
        {sharded, sharded, sharded, sharded},
        {passed, passed + totals, passed + totals, passed + totals},
        {on, back, back, back},
        {summed, summed, summed, summed},
    };
    static const char *const keys[] = {"sent", "received", "sent_busiest", "received_busiest"};
    for (int i = 0; i < 4; i++)
        ck_assert_msg(fabs(number(bytes, keys[i]) - want[_i][i]) < 4, "%s: %.0f, want %.0f",
                      keys[i], number(bytes, keys[i]), want[_i][i]);
    json_decref(result);
}
END_TEST

/* The last of three steps has one sample: one replica trains alone, and nothing is sent. */
START_TEST(a_step_without_traffic_counts_none)
{
    double moved[2];
    for (int i = 0; i < 2; i++) {
        json_t *result =
            result_of(WORDS(RUN_FLAGS, "--model", "mlp", "--epochs", "1", "--batch-size", "64",
                            "--limit", i == 0 ? "128" : "129", "--mode=dp", "--replicas=2"));
        moved[i] = number(json_object_get(result, "bytes"), "sent") * number(result, "steps");
        json_decref(result);
    }
    ck_assert_msg(moved[0] > 0 && fabs(moved[0] - moved[1]) < 4, "%.0f and %.0f", moved[0],
                  moved[1]);
}
END_TEST

/* Rank 1 begins each of 6 steps 200 ms late: rank 0 waits for it, which is not its traffic. */
START_TEST(a_late_rank_is_waited_for)
{
    const char *mode = _i == 0 ? "--mode=ddp" : "--mode=ps";
    json_t *result = result_of(WORDS(RUN_FLAGS, "--model", "mlp", "--epochs", "2", "--limit", "144",
                                     mode, "--nproc-per-node=2", "--inject=delay:rank=1,ms=200"));
    const json_t *parts = json_object_get(result, "phases");
    double waiting = number(parts, "waiting"), reduce = number(parts, "reduce");
    ck_assert_msg(waiting > 0.5 * 6 * 0.2, "%g s of waiting", waiting);
    ck_assert_msg(reduce < waiting / 2, "%g s of reducing, %g s of waiting", reduce, waiting);
    json_decref(result);
}
END_TEST

/* The share of a step in which the first stage waits. A pass takes `ms`, whatever it computes: so
 * all stages are equal. */
static double waiting_share(const char *stages, const char *pieces, const char *schedule, int ms)
{
    char slow[32];
    snprintf(slow, sizeof slow, "slow:ms=%d", ms);
    json_t *result = result_of(WORDS(
        RUN_FLAGS, "--model=mlp", "--epochs=1", "--eval-every=0", "--mode=pipeline",
        "--bind-to=none", "--nproc-per-node", stages, "--micro-batches", pieces, "--batch-size",
        pieces, "--limit", pieces, "--pipeline-schedule", schedule, "--inject", slow));
    double share = number(json_object_get(result, "phases"), "waiting") /
                   sum_of(json_object_get(result, "train_s"));
    json_decref(result);
    return share;
}

/* (S - 1) / (M + S - 1), with either schedule. A busy machine wakes a stage late, which counts as
 * waiting, too: then the passes are made longer. */
START_TEST(a_pipelines_bubble_is_that_of_the_formula)
{
    static const char *const pieces[] = {"2", "4", "8"};
    int stages = 2 + _i % 2, m = atoi(pieces[_i / 2 % 3]);
    double want = (double)(stages - 1) / (m + stages - 1), share = 0;
    for (int ms = 5; ms <= 160; ms *= 2) {
        share = waiting_share(stages == 2 ? "2" : "3", pieces[_i / 2 % 3],
                              _i < 6 ? "gpipe" : "1f1b", ms);
        if (fabs(share - want) <= 0.05)
            return;
    }
    ck_abort_msg("%d stages, %d micro-batches: %.3f of waiting, want %.3f", stages, m, share, want);
}
END_TEST

/* Rank 1 comes 30 ms after rank 0, and the data takes 20 ms more. */
static status meet(process_group *group, int rank, int world_size, void *arg)
{
    const int64_t ms = 1000000;
    const bool *can = arg;
    skew s = {0};
    int64_t ns[N_PHASES] = {[MOMENT_REDUCE] = 50 * ms};
    (void)world_size;
    TRY(skew_open(group, rank == 0 || *can, 4, &s));
    skew_note(&s, MOMENT_REDUCE, rank * 30 * ms, 50 * ms);
    TRY(skew_settle(&s, group, ns));
    int64_t want = *can && rank == 0 ? 30 * ms : 0;
    bool right = ns[MOMENT_WAITING] == want && ns[MOMENT_REDUCE] == 50 * ms - want;
    bool known = s.known == *can;
    skew_close(&s);
    return right && known ? STATUS_OK
                          : FAIL(STATUS_INVALID, "rank %d: %lld ns of waiting", rank,
                                 (long long)ns[MOMENT_WAITING]);
}

START_TEST(waiting_ends_with_the_last_arrival)
{
    bool can = _i == 1; /* else one rank cannot, so nobody does */
    ck_assert_int_eq(run_ranks(2, meet, &can), STATUS_OK);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("phases");
    TCase *runs = suite_case(suite, "runs", 120);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, phases_sum_to_the_training_time, 0, N_RUNS);
    tcase_add_loop_test(runs, every_mode_has_the_keys, 0, N_RUNS);
    tcase_add_loop_test(runs, bytes_are_those_of_the_algorithm, 0, N_RUNS);
    tcase_add_test(runs, a_step_without_traffic_counts_none);
    tcase_add_loop_test(runs, a_late_rank_is_waited_for, 0, 2);
    TCase *bubbles = suite_case(suite, "bubbles", 120);
    tcase_add_checked_fixture(bubbles, test_folder_clean, NULL);
    tcase_add_loop_test(bubbles, a_pipelines_bubble_is_that_of_the_formula, 0, 12);
    TCase *skews = suite_case(suite, "skew", 30);
    tcase_add_loop_test(skews, waiting_ends_with_the_last_arrival, 0, 2);
    return test_folder_close(suite_run(suite));
}
