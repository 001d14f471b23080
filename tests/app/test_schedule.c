/* Schedules of the learning rate in whole runs: killed and resumed they end with the same bits, and
 * a run is not resumed with another one. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <signal.h>

/* 230 images: 15 steps an epoch of one rank, 8 of two. */
#define RUN \
    "train", "--model", "mlp", "--limit", "230", "--batch-size", "16", "--epochs", "2", "--seed", \
        "3", "--threads", "1", "--quiet"

/* A run with three lists of flags one after the other; ends with `exit_code`. */
static program run(const char *const *first, const char *const *second, const char *const *third,
                   int exit_code)
{
    const char *const *lists[] = {first, second, third};
    const char *flags[MAX_WORDS] = {RUN};
    int n = 0;
    while (flags[n] != NULL)
        n++;
    for (int i = 0; i < 3; i++)
        for (const char *const *word = lists[i]; *word != NULL; word++)
            flags[n++] = *word;
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, exit_code);
    return p;
}

static const char *const *const SCHEDULES[] = {
    FACTS("--schedule=onecycle", "--optimizer=sgd", "--lr=0.1", "--momentum=0.9", "--nesterov"),
    FACTS("--schedule=onecycle", "--pct-start=0.1", "--optimizer=adam", "--adam-betas=0.7,0.9",
          "--lr=0.005"),
    FACTS("--schedule=cosine", "--optimizer=adamw"),
    FACTS("--schedule=cosine", "--warmup-steps=7", "--optimizer=adamw", "--weight-decay=0.1"),
    FACTS("--schedule=none", "--warmup-steps=20", "--warmup-factor=0.01"),
    FACTS("--gamma=0.5", "--warmup-steps=9"),
};
enum { N_SCHEDULES = sizeof SCHEDULES / sizeof SCHEDULES[0] };

static const char *const *const SPREADS[] = {
    FACTS("--mode=single"),
    FACTS("--mode=dp", "--replicas=2"),
    FACTS("--mode=ddp", "--nproc-per-node=2"),
    FACTS("--mode=ps", "--nproc-per-node=2"),
};
enum { N_SPREADS = sizeof SPREADS / sizeof SPREADS[0] };

/* Killed in the first epoch and in the second, with tests between that the whole run has not. */
static void kill_and_resume(const char *const *schedule, const char *const *spread)
{
    program whole = run(schedule, spread, WORDS("--run-dir=whole"), 0);
    static const char *const kills[] = {"--inject=kill:rank=0,step=6",
                                        "--inject=kill:rank=0,step=14"};
    for (int i = 0; i < 2; i++) {
        program part = run(schedule, spread,
                           WORDS("--run-dir=part", "--resume=auto", "--save-every=1steps",
                                 "--eval-every=4steps", kills[i]),
                           128 + SIGKILL);
        program_close(&part);
    }
    program rest = run(schedule, spread, WORDS("--run-dir=part", "--resume"), 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&whole);
    program_close(&rest);
}

START_TEST(a_resumed_run_has_the_same_bits)
{
    kill_and_resume(SCHEDULES[_i], SPREADS[2]);
}
END_TEST

START_TEST(in_every_mode)
{
    kill_and_resume(SCHEDULES[0], SPREADS[_i]);
}
END_TEST

/* Each of them trains otherwise than the default. */
START_TEST(a_schedule_changes_the_weights)
{
    const char *const *flags = WORDS("--schedule=step", "--lr=0.05");
    program step = run(flags, WORDS("--run-dir=whole"), WORDS(NULL), 0);
    static const char *const others[][2] = {{"--schedule=onecycle", "--pct-start=0.3"},
                                            {"--schedule=cosine", "--seed=3"},
                                            {"--schedule=none", "--seed=3"},
                                            {"--schedule=step", "--warmup-steps=5"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        program other =
            run(flags, WORDS(others[i][0], others[i][1]), WORDS("--run-dir=part", "--json"), 0);
        char word[48];
        snprintf(word, sizeof word, "\"schedule\":\"%s\"", strchr(others[i][0], '=') + 1);
        ASSERT_SAYS(other.out, word);
        ck_assert(model_file_difference("part", "whole") > 1e-4);
        program_close(&other);
        test_folder_remove("part");
    }
    program_close(&step);
}
END_TEST

static const struct {
    const char *const *was, *const *is, *const *facts;
} OTHERS[] = {
    {FACTS("--schedule=onecycle"), FACTS("--schedule=cosine"),
     FACTS("--schedule", "onecycle", "cosine")},
    {FACTS("--gamma=0.7"), FACTS("--schedule=none"), FACTS("--schedule", "step", "none")},
    {FACTS("--schedule=onecycle"), FACTS("--schedule=onecycle", "--epochs=3"),
     FACTS("--epochs", "2", "3")},
    {FACTS("--schedule=cosine"), FACTS("--schedule=cosine", "--epochs=3"),
     FACTS("--epochs", "2", "3")},
    {FACTS("--schedule=onecycle"), FACTS("--schedule=onecycle", "--pct-start=0.2"),
     FACTS("--pct-start")},
    {FACTS("--schedule=cosine"), FACTS("--schedule=cosine", "--warmup-steps=3"),
     FACTS("--warmup-steps")},
    {FACTS("--warmup-steps=3"), FACTS("--warmup-steps=3", "--warmup-factor=0.1"),
     FACTS("--warmup-factor")},
    {FACTS("--optimizer=adam"), FACTS("--optimizer=adam", "--adam-betas=0.7,0.9"),
     FACTS("--adam-betas")},
    {FACTS("--optimizer=adam"), FACTS("--optimizer=adamw"), FACTS("adam", "adamw")},
    {FACTS("--clip-grad-norm=1"), FACTS("--clip-grad-norm=2"), FACTS("--clip-grad-norm", "1", "2")},
    {FACTS("--optimizer=adamw"), FACTS("--optimizer=adamw", "--weight-decay=0"),
     FACTS("--weight-decay", "0.01")},
};
enum { N_OTHERS = sizeof OTHERS / sizeof OTHERS[0] };

START_TEST(another_schedule_is_refused)
{
    const char *const *dir = WORDS("--run-dir=part");
    program first = run(OTHERS[_i].was, dir, WORDS(NULL), 0);
    program other = run(OTHERS[_i].is, dir, WORDS("--resume"), 64);
    ASSERT_FACTS(other.err, "error", "cannot resume", "part");
    ASSERT_FACTS_LISTED(other.err, OTHERS[_i].facts);
    program_close(&first);
    program_close(&other);
}
END_TEST

/* A schedule that has no end can be given more epochs, as before. */
START_TEST(without_an_end_there_may_be_more_epochs)
{
    const char *const *schedule = _i == 0 ? WORDS("--gamma=0.9") : WORDS("--schedule=none");
    program first = run(schedule, WORDS("--epochs=1"), WORDS("--run-dir=part"), 0);
    program rest = run(schedule, WORDS("--run-dir=part"), WORDS("--resume"), 0);
    program whole = run(schedule, WORDS("--run-dir=whole"), WORDS(NULL), 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&first);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

START_TEST(a_warm_up_as_long_as_the_run_is_refused)
{
    program p = program_run_with(
        NULL, WORDS(RUN, "--nproc-per-node=2", "--schedule=cosine", "--warmup-steps=16"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--warmup-steps", "16");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("schedule");
    TCase *runs = suite_case(suite, "runs", 4 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, a_resumed_run_has_the_same_bits, 0, N_SCHEDULES);
    tcase_add_loop_test(runs, in_every_mode, 0, N_SPREADS);
    tcase_add_test(runs, a_schedule_changes_the_weights);
    tcase_add_loop_test(runs, another_schedule_is_refused, 0, N_OTHERS);
    tcase_add_loop_test(runs, without_an_end_there_may_be_more_epochs, 0, 2);
    tcase_add_test(runs, a_warm_up_as_long_as_the_run_is_refused);
    return test_folder_close(suite_run(suite));
}
