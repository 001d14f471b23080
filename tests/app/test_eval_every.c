/* Tests inside an epoch (--eval-every=Nsteps): they come when they are due, the target ends the run
 * at one of them, and neither bits nor times nor losses of the training change. */
#include "app/options/training_values.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>

/* 192 images: 12 steps an epoch of one rank, 6 of two. */
#define RUN \
    "train", "--model", "mlp", TRAINING_SGD, "--limit", "192", "--batch-size", "16", "--epochs", \
        "2", "--threads", "1"

static const char *const SPREADS[][2] = {{"--mode=single", "--seed=3"},
                                         {"--mode=dp", "--replicas=2"},
                                         {"--mode=ddp", "--nproc-per-node=2"},
                                         {"--mode=ps", "--nproc-per-node=2"}};
enum { N_SPREADS = sizeof SPREADS / sizeof SPREADS[0] };

static program run(int spread, const char *const *more)
{
    const char *flags[MAX_WORDS] = {RUN, SPREADS[spread][0], SPREADS[spread][1]};
    int n = 0;
    while (flags[n] != NULL)
        n++;
    for (; *more != NULL; more++)
        flags[n++] = *more;
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, 0);
    return p;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

/* What follows `after` in the text, as a number. */
static double number_after(const char *text, const char *line, const char *after)
{
    const char *at = strstr(text, line);
    at = at != NULL ? strstr(at, after) : NULL;
    ck_assert_msg(at != NULL, "no '%s' of '%s' in: %s", after, line, text);
    return atof(at + strlen(after));
}

START_TEST(tests_change_nothing)
{
    program often = run(_i, WORDS("--eval-every=2steps", "--run-dir=often"));
    program once = run(_i, WORDS("--run-dir=once"));
    model_file_assert_same_bits("often", "once");
    int steps = _i < 2 ? 12 : 6; /* of an epoch; the last one's test is the epoch's */
    ck_assert_int_eq(count(often.out, "accuracy "), steps);
    ck_assert_int_eq(count(often.out, ": test loss "), steps - 2);
    ASSERT_SAYS(often.out, "epoch 2/2 step 4/");
    ck_assert_int_eq(count(once.out, "accuracy "), 2);
    for (int epoch = 1; epoch <= 2; epoch++) {
        char line[32];
        snprintf(line, sizeof line, "epoch %d/2: ", epoch);
        double off = number_after(often.out, line, "train loss ") -
                     number_after(once.out, line, "train loss ");
        ck_assert_msg(off < 1.5e-4 && off > -1.5e-4, "epoch %d: the loss is %g off", epoch, off);
        ck_assert(number_after(often.out, line, "accuracy ") ==
                  number_after(once.out, line, "accuracy "));
    }
    program_close(&often);
    program_close(&once);
}
END_TEST

START_TEST(the_time_of_a_test_is_not_the_epochs)
{
    program p = run(_i, WORDS("--eval-every=1steps", "--json", "--quiet", "--no-save-model",
                              "--run-dir=often"));
    json_t *result = json_loads(p.out, 0, NULL);
    ck_assert_ptr_nonnull(result);
    double train_s = 0, phases_s = 0;
    size_t i;
    const char *key;
    json_t *value;
    json_array_foreach(json_object_get(result, "train_s"), i, value)
    {
        train_s += json_number_value(value);
    }
    json_object_foreach(json_object_get(result, "phases"), key, value)
    {
        phases_s += json_number_value(value);
    }
    ck_assert_msg(phases_s <= train_s && phases_s > 0.7 * train_s, "phases %g s, training %g s",
                  phases_s, train_s);
    ck_assert(json_number_value(json_object_get(result, "last_loss")) > 0);
    ck_assert_int_eq(json_integer_value(json_object_get(result, "steps")), _i < 2 ? 24 : 12);
    json_decref(result);
    program_close(&p);
}
END_TEST

/* Any accuracy reaches 0: the first test ends the run. What it leaves goes on to the same end. */
START_TEST(the_target_ends_the_run_inside_an_epoch)
{
    program part =
        run(_i, WORDS("--eval-every=4steps", "--target-acc=0", "--json", "--run-dir=often"));
    ck_assert(training_number(part.out, "steps") == 4);
    ck_assert(training_number(part.out, "images_per_epoch") == (_i < 2 ? 64 : 128));
    ck_assert(training_number(part.out, "last_loss") > 0);
    ck_assert(training_number(part.out, "test_acc") >= 0);
    ck_assert(file_exists("often/checkpoints/00000004"));
    program rest = run(_i, WORDS("--resume", "--run-dir=often"));
    program once = run(_i, WORDS("--run-dir=once"));
    model_file_assert_same_bits("often", "once");
    program_close(&part);
    program_close(&rest);
    program_close(&once);
}
END_TEST

START_TEST(an_epoch_that_is_not_due_is_not_tested)
{
    program p = run(0, WORDS("--eval-every=8steps", "--run-dir=often"));
    const char *first = strstr(p.out, "epoch 1/2: "), *second = strstr(p.out, "epoch 2/2 step 4/");
    ck_assert_msg(first != NULL && second != NULL, "%s", p.out);
    ck_assert_ptr_null(memmem(first, strcspn(first, "\n"), "accuracy", strlen("accuracy")));
    ck_assert_int_eq(count(p.out, "accuracy "), 3); /* after steps 8, 16 and 24 */
    program_close(&p);
}
END_TEST

START_TEST(as_pytorch_examples_prints_it)
{
    program p = run(0, WORDS("--eval-every=6steps", "--log-format=pytorch", "--run-dir=often"));
    ck_assert_int_eq(count(p.out, "\nTest set: Average loss: "), 4);
    program_close(&p);
}
END_TEST

START_TEST(intervals_are_read)
{
    static const struct {
        const char *text;
        interval want;
    } good[] = {{"0", {0, false}},      {"3", {3, false}},    {"2epochs", {2, false}},
                {"1epoch", {1, false}}, {"1step", {1, true}}, {"100steps", {100, true}}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        interval got = {.count = -1};
        ck_assert_int_eq(interval_parse("--eval-every", 0, good[i].text, &got), STATUS_OK);
        ck_assert_int_eq(got.count, good[i].want.count);
        ck_assert(got.in_steps == good[i].want.in_steps);
    }
    interval never = {0}, steps = {100, true}, epochs = {2, false};
    ck_assert(!interval_is_due_after_steps(&never, 1) && !interval_is_due_after_epochs(&never, 1));
    ck_assert(interval_is_due_after_steps(&steps, 200) && !interval_is_due_after_steps(&steps, 99));
    ck_assert(!interval_is_due_after_epochs(&steps, 100));
    ck_assert(interval_is_due_after_epochs(&epochs, 4) &&
              !interval_is_due_after_epochs(&epochs, 3));
    ck_assert(!interval_is_due_after_steps(&epochs, 4));
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("eval_every");
    TCase *runs = suite_case(suite, "runs", 4 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, tests_change_nothing, 0, N_SPREADS);
    tcase_add_loop_test(runs, the_time_of_a_test_is_not_the_epochs, 0, N_SPREADS);
    tcase_add_loop_test(runs, the_target_ends_the_run_inside_an_epoch, 0, N_SPREADS);
    tcase_add_test(runs, an_epoch_that_is_not_due_is_not_tested);
    tcase_add_test(runs, as_pytorch_examples_prints_it);
    tcase_add_test(runs, intervals_are_read);
    return test_folder_close(suite_run(suite));
}
