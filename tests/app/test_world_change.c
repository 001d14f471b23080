/* A run goes on with another number of ranks: what no step of the epoch has used is redistributed,
 * each image once. With a learning rate of 0 an epoch's mean loss tells which images it had. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>

/* 96 images; a checkpoint after every second step of its ranks, and the end after the third. */
#define RUN \
    TRAINING_96, "--model", "mlp", "--batch-size", "8", "--schedule", "none", "--epochs", "2", \
        "--save-every", "2steps"
#define KILLED "--inject", "kill:rank=0,step=4"

/* The last state.json of a run. */
static json_t *state_of(const char *run)
{
    json_error_t error;
    char command[256];
    snprintf(command, sizeof command,
             "cp \"$(ls -d '%s'/checkpoints/0* | tail -n 1)/state.json\" state", run);
    ck_assert_int_eq(system(command), 0);
    json_t *state = json_load_file("state", 0, &error);
    ck_assert_msg(state != NULL, "%s", error.text);
    return state;
}

static void assert_integer(const json_t *state, const char *key, int want)
{
    ck_assert_msg(json_integer_value(json_object_get(state, key)) == want, "%s is %lld, not %d",
                  key, (long long)json_integer_value(json_object_get(state, key)), want);
}

/* "train loss 2.3200" of an epoch's line. */
static void loss_of(const program *p, const char *epoch, char out[32])
{
    const char *line = strstr(p->err, epoch);
    ck_assert_msg(line != NULL, "no %s in: %s", epoch, p->err);
    const char *loss = strstr(line, "train loss");
    ck_assert_ptr_nonnull(loss);
    snprintf(out, 32, "%.17s", loss);
}

static void assert_same_loss(const program *a, const program *b, const char *epoch)
{
    char losses[2][32];
    loss_of(a, epoch, losses[0]);
    loss_of(b, epoch, losses[1]);
    ck_assert_str_eq(losses[0], losses[1]);
}

static const struct {
    const char *from, *to, *facts[4]; /* what is left after two steps */
} CHANGES[] = {
    {"1", "2", {"world size 1 -> 2", "80 images"}},
    {"2", "1", {"world size 2 -> 1", "64 images"}},
    {"2", "4", {"world size 2 -> 4", "64 images", "0 repeated"}},
    {"3", "2", {"world size 3 -> 2", "48 images"}},
};
enum { N_CHANGES = sizeof CHANGES / sizeof CHANGES[0] };

/* What one rank says of its epochs. */
static program whole;

static void train_whole(void)
{
    whole = program_run_with(NULL, WORDS(RUN, "--lr", "0", "--no-quiet", "--run-dir", "alone"));
    ASSERT_EXIT(whole, 0);
}

START_TEST(each_image_is_used_once)
{
    test_folder_remove("part");
    program part = program_run_with(NULL, WORDS(RUN, "--lr", "0", "--run-dir", "part",
                                                "--nproc-per-node", CHANGES[_i].from, KILLED));
    ASSERT_EXIT(part, 128 + SIGKILL);
    program rest = program_run_with(NULL, WORDS("train", "--run-dir", "part", "--resume", "--json",
                                                "--nproc-per-node", CHANGES[_i].to));
    ASSERT_EXIT(rest, 0);
    ASSERT_FACTS_LISTED(rest.err, CHANGES[_i].facts);
    ck_assert_int_eq(facts_count(rest.err, "the run began with sums"), 1);
    assert_same_loss(&rest, &whole, "epoch 1/2:");
    assert_same_loss(&rest, &whole, "epoch 2/2:");
    json_t *state = state_of("part");
    assert_integer(state, "epoch", 2);
    assert_integer(state, "world_changes", 1);
    assert_integer(state, "world_size", atoi(CHANGES[_i].to));
    json_decref(state);
    program_close(&part);
    program_close(&rest);
}
END_TEST

/* The rate of one rank is the run's, and each number of ranks has its multiple; without config.json
 * the checkpoint alone is asked. */
START_TEST(a_scaled_rate_follows_the_ranks)
{
    test_folder_remove("part");
    program first = program_run_with(NULL, WORDS(RUN, "--lr", "0.01", "--scale-lr", "--run-dir",
                                                 "part", "--nproc-per-node", "2", KILLED));
    ASSERT_EXIT(first, 128 + SIGKILL);
    if (_i == 1)
        test_folder_remove("part/config.json");
    program rest =
        program_run_with(NULL, WORDS(RUN, "--lr", "0.01", "--scale-lr", "--run-dir", "part",
                                     "--resume", "--nproc-per-node", "3", "--no-quiet"));
    ASSERT_EXIT(rest, 0);
    ASSERT_FACTS(rest.err, "0.01 x 2 ranks -> 0.01 x 3 ranks", "0.03", "0.02");
    ASSERT_FACTS(rest.err, "lr 0.03 (0.01 x 3 ranks)");
    program_close(&first);
    program_close(&rest);
}
END_TEST

/* 96 images, 32 of them used by two ranks; three ranks use 48 of the other 64, and one uses the
 * last 16. A resume of the same ranks keeps their place. */
START_TEST(ranks_may_change_again)
{
    test_folder_remove("part");
    program first =
        program_run_with(NULL, WORDS(RUN, "--run-dir", "part", "--nproc-per-node", "2", KILLED));
    ASSERT_EXIT(first, 128 + SIGKILL);
    program second =
        program_run_with(NULL, WORDS("train", "--run-dir", "part", "--resume", "--nproc-per-node",
                                     "3", "--inject", "kill:rank=0,step=5"));
    ASSERT_EXIT(second, 128 + SIGKILL);
    json_t *state = state_of("part");
    assert_integer(state, "step", 4);
    assert_integer(state, "epoch_first", 32);
    assert_integer(state, "step_in_epoch", 2);
    assert_integer(state, "epoch_samples", 80);
    json_decref(state);
    program last =
        program_run_with(NULL, WORDS("train", "--run-dir", "part", "--resume", "--nproc-per-node",
                                     "1", "--json", "--epochs", "1"));
    ASSERT_EXIT(last, 0);
    ASSERT_FACTS(last.err, "world size 3 -> 1", "16");
    state = state_of("part");
    assert_integer(state, "step", 6);
    assert_integer(state, "world_changes", 2);
    assert_integer(state, "epoch_first", 0);
    json_decref(state);
    program_close(&first);
    program_close(&second);
    program_close(&last);
}
END_TEST

/* A run of three ranks that is killed after it went on from two ends with the bits of one that was
 * not killed. */
START_TEST(a_redistributed_epoch_resumes_to_the_same_bits)
{
    static const char *const runs[] = {"part", "whole"};
    test_folder_remove("part whole");
    program first =
        program_run_with(NULL, WORDS(RUN, "--run-dir", "part", "--nproc-per-node", "2", KILLED));
    ASSERT_EXIT(first, 128 + SIGKILL);
    ck_assert_int_eq(system("cp -r part whole"), 0);
    for (int i = 0; i < 2; i++) {
        program killed =
            program_run_with(NULL, WORDS("train", "--run-dir", runs[i], "--resume",
                                         "--nproc-per-node", "3", "--save-every", "1steps",
                                         i == 0 ? "--inject" : NULL, "kill:rank=0,step=5"));
        ASSERT_EXIT(killed, i == 0 ? 128 + SIGKILL : 0);
        program_close(&killed);
    }
    program_close(&first);
    program rest = program_run_with(
        NULL, WORDS("train", "--run-dir", "part", "--resume", "--save-every", "1steps"));
    ASSERT_EXIT(rest, 0);
    ASSERT_NO_FACTS(rest.err, "world size");
    model_file_assert_same_bits("part", "whole");
    program_close(&rest);
}
END_TEST

/* In one line: also if it goes back, as the steps between were others. */
START_TEST(another_order_of_sums_is_told)
{
    static const char *const flags[][3] = {{"--device", "cpu", "reference"},
                                           {"--comm-hook", "none", "bf16"}};
    for (int i = 0; i < 4; i++) {
        program p =
            program_run_with(NULL, WORDS(TRAINING_96, "--model", "mlp", "--epochs",
                                         program_flag("", i + 1), "--run-dir", flags[_i][2],
                                         "--resume=auto", flags[_i][0], flags[_i][i == 2 ? 2 : 1]));
        ASSERT_EXIT(p, 0);
        ck_assert_int_eq(facts_count(p.err, "the run began with sums"), i >= 2);
        if (i == 2)
            ASSERT_FACTS(p.err, "over 1 x cpu,", "over 1 x", flags[_i][2], "bits");
        program_close(&p);
    }
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("world_change");
    TCase *runs = suite_case(suite, "runs", 3 * RUN_S);
    tcase_add_unchecked_fixture(runs, train_whole, NULL);
    tcase_add_loop_test(runs, each_image_is_used_once, 0, N_CHANGES);
    tcase_add_test(runs, ranks_may_change_again);
    tcase_add_test(runs, a_redistributed_epoch_resumes_to_the_same_bits);
    tcase_add_loop_test(runs, another_order_of_sums_is_told, 0, 2);
    TCase *rates = suite_case(suite, "rates", 3 * RUN_S);
    tcase_add_loop_test(rates, a_scaled_rate_follows_the_ranks, 0, 2);
    return test_folder_close(suite_run(suite));
}
