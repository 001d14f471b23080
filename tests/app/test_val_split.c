/* --val-split: the last training images are validated on, each once, and not trained on; the test
 * images are looked at once, at the end. */
#include "app/options/training_values.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>

enum { HELD = 150, LEFT = TEST_FOLDER_TRAIN - HELD }; /* images, of those of the test folder */

#define RUN "train", "--model", "mlp", TRAINING_SGD, "--threads", "1", "--json"
#define HOLD_BACK "--val-split", "150"

static program run(const char *const *flags)
{
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, 0);
    return p;
}

/* The lines of metrics.jsonl; a reference of the caller's. */
static json_t *metrics_of(const char *path)
{
    json_t *lines = json_array();
    char *text = test_folder_read(path), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        ck_assert_int_eq(json_array_append_new(lines, json_loads(line, 0, NULL)), 0);
    free(text);
    return lines;
}

static bool is_event(const json_t *line, const char *event)
{
    return strcmp(json_string_value(json_object_get(line, "event")), event) == 0;
}

/* What torch 2.15 gives the second part: len(random_split(range(N), [1 - split, split])[1]). */
static const struct {
    uint32_t images;
    double split;
    uint32_t want;
} SHARES[] = {{60000, 0.1, 6000},   {60000, 1.0 / 12, 5000},
              {60000, 0.083, 4980}, {60000, 0.9999, 59994},
              {60000, 0.15, 9000},  {59999, 0.3, 17999},
              {1000, 0.29, 290},    {1000, 0.001, 1},
              {100, 0.07, 7},       {11, 0.1, 1},
              {10, 0.999, 9},       {7, 0.5, 3},
              {3, 0.34, 1}};

START_TEST(shares_are_rounded_as_by_torch)
{
    for (size_t i = 0; i < sizeof SHARES / sizeof SHARES[0]; i++) {
        uint32_t got = 0;
        ck_assert_int_eq(val_split_images(SHARES[i].split, SHARES[i].images, &got), STATUS_OK);
        ck_assert_uint_eq(got, SHARES[i].want);
    }
}
END_TEST

START_TEST(counts_are_taken_as_they_are)
{
    static const double counts[] = {0, 1, 5000, 59999};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint32_t got = UINT32_MAX;
        ck_assert_int_eq(val_split_images(counts[i], 60000, &got), STATUS_OK);
        ck_assert_uint_eq(got, (uint32_t)counts[i]);
    }
}
END_TEST

static const struct {
    double split;
    uint32_t images;
    const char *facts[4];
} REFUSED[] = {{60000, 60000, {"--val-split=60000", "60000 training images"}},
               {1e9, 600, {"--val-split=1000000000", "600"}},
               {1, 1, {"--val-split=1", "1 training images"}},
               {1.5, 600, {"--val-split=1.5", "whole number"}},
               {0.001, 600, {"--val-split=0.001", "600"}}};

START_TEST(what_leaves_nothing_is_refused)
{
    uint32_t got = 7;
    ck_assert_int_eq(val_split_images(REFUSED[_i].split, REFUSED[_i].images, &got), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
    ck_assert_uint_eq(got, 7);
}
END_TEST

START_TEST(a_run_without_training_images_is_refused)
{
    program p = program_run_with(NULL, WORDS(RUN, "--val-split=600", "--run-dir=run"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "--val-split=600", "600 training images");
    ck_assert(!file_exists("run"));
    program_close(&p);
}
END_TEST

/* A data set whose test images are the last ones of the training images. */
static void make_tail(const char *kind, size_t header_bytes, size_t image_bytes)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], *data = NULL;
    size_t size_bytes = 0, tail_bytes = HELD * image_bytes;
    snprintf(from, sizeof from, "data/train-%s-ubyte", kind);
    snprintf(to, sizeof to, "tail/t10k-%s-ubyte", kind);
    ck_assert_int_eq(file_read(from, 1 << 20, &data, &size_bytes), STATUS_OK);
    data[6] = 0;
    data[7] = (char)HELD;
    const file_part parts[] = {{data, header_bytes}, {data + size_bytes - tail_bytes, tail_bytes}};
    ck_assert_int_eq(file_write(to, parts, 2), STATUS_OK);
    free(data);
}

/* Ranks without a learning rate keep their weights: then what any number of them validates, and of
 * a replica each, is what `eval` finds on the same images. */
START_TEST(any_world_size_validates_the_last_images)
{
    static const char *const spreads[][2] = {{"--mode=single", "--seed=3"},
                                             {"--mode=dp", "--replicas=2"},
                                             {"--nproc-per-node=1", "--seed=3"},
                                             {"--nproc-per-node=2", "--seed=3"},
                                             {"--nproc-per-node=3", "--seed=3"}};
    test_folder_remove("tail");
    ck_assert_int_eq(file_make_folders("tail"), STATUS_OK);
    make_tail("images-idx3", 16, 784);
    make_tail("labels-idx1", 8, 1);
    ck_assert_int_eq(system("cp data/train-* tail"), 0);
    program p = run(WORDS(RUN, HOLD_BACK, "--lr=0", "--epochs=1", "--run-dir=run", spreads[_i][0],
                          spreads[_i][1]));
    program eval = run(WORDS("eval", "--checkpoint=run", "--data-dir=tail", "--json"));
    ck_assert(training_number(p.out, "val_acc") * HELD == training_number(eval.out, "correct"));
    double off = training_number(p.out, "val_loss") - training_number(eval.out, "test_loss");
    ck_assert_msg(off < 2e-6 && off > -2e-6, "the loss is %g off", off);
    ck_assert(training_number(p.out, "images_per_epoch") == LEFT);
    program_close(&p);
    program_close(&eval);
}
END_TEST

/* What is held back changes the training as leaving it out does. */
START_TEST(the_images_left_by_val_split_are_trained_on)
{
    program held = run(WORDS(RUN, HOLD_BACK, "--epochs=2", "--run-dir=run"));
    program left = run(WORDS(RUN, "--limit=450", "--epochs=2", "--run-dir=other"));
    model_file_assert_same_bits("run", "other");
    ck_assert(training_number(held.out, "test_acc") == training_number(left.out, "test_acc"));
    ck_assert_ptr_null(strstr(left.out, "\"val_acc\""));
    program_close(&held);
    program_close(&left);
}
END_TEST

/* --limit comes first: of its images the last ones are held back. */
START_TEST(val_split_takes_the_last_images_of_limit)
{
    program held =
        run(WORDS(RUN, "--limit=200", "--val-split=0.25", "--epochs=1", "--run-dir=run"));
    program left = run(WORDS(RUN, "--limit=150", "--epochs=1", "--run-dir=other"));
    model_file_assert_same_bits("run", "other");
    program_close(&held);
    program_close(&left);
}
END_TEST

/* A test after each epoch would be a look at what the run is judged by. */
START_TEST(test_images_are_looked_at_once)
{
    program p = run(WORDS(RUN, HOLD_BACK, "--epochs=2", "--eval-every=3steps", "--run-dir=run",
                          "--batch-size=64"));
    json_t *lines = metrics_of("run/metrics.jsonl"), *line;
    int validations = 0, tests = 0, epochs = 0;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        if (is_event(line, "epoch")) {
            epochs++;
            ck_assert(json_is_null(json_object_get(line, "test_acc")));
            ck_assert(json_object_get(line, "val_acc") != NULL);
        }
        validations += json_is_number(json_object_get(line, "val_acc"));
        if (!is_event(line, "test"))
            continue;
        tests++;
        ck_assert(json_is_number(json_object_get(line, "test_loss")));
        ck_assert_int_eq(json_integer_value(json_object_get(line, "step")), 16);
        ck_assert_int_eq(json_integer_value(json_object_get(line, "epoch")), 2);
    }
    ck_assert_int_eq(epochs, 2);
    ck_assert_int_eq(tests, 1);
    ck_assert_int_eq(validations, 6); /* after steps 3, 6, 9, 12, 15 and 16 */
    ASSERT_FACTS(p.err, "test loss", "accuracy");
    json_decref(lines);
    program_close(&p);
}
END_TEST

/* The target is one of validation; the test still comes. */
START_TEST(the_target_is_validated)
{
    program p = run(WORDS(RUN, HOLD_BACK, "--epochs=3", "--eval-every=2steps", "--target-acc=0",
                          "--run-dir=run"));
    ck_assert(training_number(p.out, "steps") == 2);
    ck_assert(training_number(p.out, "val_loss") > 0 && training_number(p.out, "test_loss") > 0);
    ASSERT_FACTS(p.err, "stopped", "validation accuracy", "--target-acc 0");
    program_close(&p);
}
END_TEST

#define TWO_EPOCHS RUN, HOLD_BACK, "--epochs=2", "--batch-size=30", "--nproc-per-node=2"

START_TEST(a_resume_validates_the_same)
{
    program whole = run(WORDS(TWO_EPOCHS, "--run-dir=other"));
    program cut = program_run_with(NULL, WORDS(TWO_EPOCHS, "--run-dir=run", "--save-every=3steps",
                                               "--inject=kill:rank=1,step=11"));
    ck_assert_int_ne(cut.exit_code, 0);
    program rest = run(WORDS("train", "--run-dir=run", "--resume", "--json"));
    model_file_assert_same_bits("run", "other");
    ck_assert(training_number(rest.out, "val_acc") == training_number(whole.out, "val_acc"));
    ck_assert(training_number(rest.out, "val_loss") == training_number(whole.out, "val_loss"));
    program_close(&whole);
    program_close(&cut);
    program_close(&rest);
}
END_TEST

/* With config.json the setting is named; without it the checkpoint still knows. */
START_TEST(a_resume_with_another_split_is_refused)
{
    program first = run(WORDS(RUN, HOLD_BACK, "--epochs=1", "--run-dir=run"));
    program other = program_run_with(
        NULL, WORDS("train", "--run-dir=run", "--resume", "--epochs=2", "--val-split=100"));
    ASSERT_EXIT(other, 64);
    ASSERT_FACTS(other.err, "--val-split 150 -> 100");
    ck_assert_int_eq(unlink("run/config.json"), 0);
    program bare = program_run_with(
        NULL, WORDS(RUN, "--limit=450", "--epochs=2", "--run-dir=run", "--resume"));
    ASSERT_EXIT(bare, 74);
    ASSERT_FACTS(bare.err, "cannot resume", "--val-split");
    program_close(&first);
    program_close(&other);
    program_close(&bare);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("val_split");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, shares_are_rounded_as_by_torch);
    tcase_add_test(core, counts_are_taken_as_they_are);
    tcase_add_loop_test(core, what_leaves_nothing_is_refused, 0,
                        sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_test(core, a_run_without_training_images_is_refused);
    tcase_add_loop_test(core, any_world_size_validates_the_last_images, 0, 5);
    tcase_add_test(core, the_images_left_by_val_split_are_trained_on);
    tcase_add_test(core, val_split_takes_the_last_images_of_limit);
    tcase_add_test(core, test_images_are_looked_at_once);
    tcase_add_test(core, the_target_is_validated);
    tcase_add_test(core, a_resume_validates_the_same);
    tcase_add_test(core, a_resume_with_another_split_is_refused);
    return test_folder_close(suite_run(suite));
}
