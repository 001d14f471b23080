/* The best checkpoint: what was tested best is kept, named and told, whatever comes after it. */
#include "model/checkpoint.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>

/* 15 steps an epoch, a test after every second one; one checkpoint stays, and the best. */
#define RUN \
    "train", "--model", "mlp", "--optimizer", "sgd", "--momentum", "0.9", "--schedule", "none", \
        "--seed", "3", "--threads", "1", "--batch-size", "30", "--val-split", "150", \
        "--eval-every", "2steps", "--epochs", "2", "--keep", "1", "--json"

static program run(int exit_code, const char *const *flags)
{
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, exit_code);
    return p;
}

/* Tests, the better one first, as they are compared. */
static const struct {
    checkpoint_test better, worse;
} PAIRS[] = {{{100, 91, 0.5}, {100, 90, 0.1}},
             {{100, 90, 0.1}, {100, 90, 0.2}},
             {{100, 0, 9}, {0, 0, 0}},
             {{200, 181, 1}, {100, 90, 0.1}}};

START_TEST(accuracy_counts_then_loss)
{
    for (size_t i = 0; i < sizeof PAIRS / sizeof PAIRS[0]; i++) {
        ck_assert(best_checkpoint_is_better(&PAIRS[i].better, &PAIRS[i].worse));
        ck_assert(!best_checkpoint_is_better(&PAIRS[i].worse, &PAIRS[i].better));
        ck_assert(!best_checkpoint_is_better(&PAIRS[i].better, &PAIRS[i].better)); /* earlier */
    }
    const checkpoint_test nan = {100, 99, (double)NAN}, none = {0, 0, 0}, usual = {100, 1, 1};
    ck_assert(!best_checkpoint_is_better(&nan, &none));
    ck_assert(!best_checkpoint_is_better(&nan, &usual));
}
END_TEST

/* "best" of a run's result.json; a reference of the caller's. */
static json_t *best_of(const char *path)
{
    char *text = test_folder_read(path);
    json_t *result = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(result);
    json_t *best = json_incref(json_object_get(result, "best"));
    json_decref(result);
    free(text);
    return best;
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double real_of(const json_t *object, const char *key)
{
    return json_real_value(json_object_get(object, key));
}

/* The step that checkpoints/best names. */
static int64_t linked_step(const char *link)
{
    char target[64] = "";
    ck_assert_msg(readlink(link, target, sizeof target - 1) > 0, "no %s", link);
    return atoll(target);
}

/* The best line of the metrics: the greatest accuracy, then the smallest loss, then the first. */
static json_t *best_line(const char *path)
{
    char *text = test_folder_read(path), *rest = NULL;
    json_t *best = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *entry = json_loads(line, 0, NULL);
        double off = real_of(entry, "val_acc") - (best != NULL ? real_of(best, "val_acc") : -1);
        bool better =
            off > 0 || (!(off < 0) && real_of(entry, "val_loss") < real_of(best, "val_loss"));
        if (json_is_number(json_object_get(entry, "val_acc")) && better) {
            json_decref(best);
            best = json_incref(entry);
        }
        json_decref(entry);
    }
    free(text);
    ck_assert_ptr_nonnull(best);
    return best;
}

static void assert_best(const char *when)
{
    json_t *told = best_of("run/result.json"), *line = best_line("run/metrics.jsonl");
    ck_assert_msg(integer_of(told, "step") == integer_of(line, "step"), "%s: %lld, want %lld", when,
                  (long long)integer_of(told, "step"), (long long)integer_of(line, "step"));
    ck_assert(integer_of(told, "epoch") == integer_of(line, "epoch"));
    ck_assert(fabs(real_of(told, "val_acc") - real_of(line, "val_acc")) < 1e-9);
    ck_assert_int_eq(linked_step("run/checkpoints/best"), integer_of(told, "step"));
    ck_assert(file_exists("run/checkpoints/best/model.safetensors"));
    json_decref(told);
    json_decref(line);
}

START_TEST(the_best_stays)
{
    static const char *const ranks[] = {"--nproc-per-node=1", "--nproc-per-node=2"};
    program p = run(0, WORDS(RUN, "--lr=0.3", "--run-dir=run", ranks[_i]));
    assert_best(ranks[_i]);
    ck_assert_int_ne(linked_step("run/checkpoints/best"), _i == 0 ? 30 : 16);
    ASSERT_FACTS(p.err, "best", "validation images", "run/checkpoints/best");
    char folder[64];
    snprintf(folder, sizeof folder, "run/checkpoints/%08d", _i == 0 ? 30 : 16);
    ck_assert(file_exists(folder));
    program_close(&p);
}
END_TEST

/* It is what `eval` and --init take. */
START_TEST(it_is_a_checkpoint_as_others)
{
    program p = run(0, WORDS(RUN, "--lr=0.3", "--run-dir=run"));
    program eval = run(0, WORDS("eval", "--checkpoint=run/checkpoints/best", "--json"));
    program next = run(0, WORDS("train", "--model=mlp", "--optimizer=sgd", "--lr=0", "--epochs=1",
                                "--init=run/checkpoints/best", "--run-dir=other", "--json"));
    ck_assert(training_number(eval.out, "test_acc") == training_number(next.out, "test_acc"));
    ck_assert(training_number(eval.out, "test_acc") != training_number(p.out, "test_acc"));
    program_close(&p);
    program_close(&eval);
    program_close(&next);
}
END_TEST

/* A run that was killed, and whose link is lost, has the best of before. */
START_TEST(a_resume_keeps_the_best)
{
    program whole = run(0, WORDS(RUN, "--lr=0.3", "--run-dir=other"));
    program cut =
        run(128 + SIGKILL, WORDS(RUN, "--lr=0.3", "--run-dir=run", "--inject=kill:rank=0,step=28"));
    int64_t before = linked_step("run/checkpoints/best");
    if (_i == 1)
        ck_assert_int_eq(unlink("run/checkpoints/best"), 0);
    program rest = run(0, WORDS("train", "--run-dir=run", "--resume", "--json"));
    json_t *want = best_of("other/result.json"), *got = best_of("run/result.json");
    ck_assert(json_equal(want, got));
    ck_assert_int_eq(before, integer_of(want, "step")); /* nothing better came */
    ck_assert_int_eq(linked_step("run/checkpoints/best"), before);
    model_file_assert_same_bits("run", "other");
    model_file_assert_same_bits("run/checkpoints/best", "other/checkpoints/best");
    json_decref(want);
    json_decref(got);
    program_close(&whole);
    program_close(&cut);
    program_close(&rest);
}
END_TEST

/* The learning rate rises until the loss is not finite: the best of before stays. */
START_TEST(a_run_that_diverges_keeps_its_best)
{
    program p = run(76, WORDS(RUN, "--lr=1e6", "--warmup-steps=30000", "--warmup-factor=1e-9",
                              "--run-dir=run"));
    json_t *best = best_of("run/result.json");
    ck_assert(real_of(best, "val_acc") > 0 && isfinite(real_of(best, "val_loss")));
    ck_assert_int_eq(linked_step("run/checkpoints/best"), integer_of(best, "step"));
    program eval = run(0, WORDS("eval", "--checkpoint=run/checkpoints/best", "--json"));
    ck_assert(isfinite(training_number(eval.out, "test_loss")));
    json_decref(best);
    program_close(&p);
    program_close(&eval);
}
END_TEST

START_TEST(without_checkpoints_it_is_only_told)
{
    program p = run(0, WORDS(RUN, "--lr=0.3", "--run-dir=run", "--no-save-model"));
    json_t *best = best_of("run/result.json"), *line = best_line("run/metrics.jsonl");
    ck_assert(integer_of(best, "step") == integer_of(line, "step"));
    ck_assert(!file_exists("run/checkpoints"));
    json_decref(best);
    json_decref(line);
    program_close(&p);
}
END_TEST

/* Somebody's own folder of that name is left alone, and the run says so. */
START_TEST(a_folder_named_best_is_left_alone)
{
    program first = run(0, WORDS(RUN, "--lr=0.05", "--epochs=1", "--run-dir=run"));
    ck_assert_int_eq(unlink("run/checkpoints/best"), 0);
    ck_assert_int_eq(file_make_folders("run/checkpoints/best/mine"), STATUS_OK);
    program more = run(0, WORDS("train", "--run-dir=run", "--resume", "--epochs=2"));
    ck_assert(file_exists("run/checkpoints/best/mine"));
    ASSERT_FACTS(more.err, "warning", "best");
    program_close(&first);
    program_close(&more);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("best_checkpoint");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, accuracy_counts_then_loss);
    tcase_add_loop_test(core, the_best_stays, 0, 2);
    tcase_add_test(core, it_is_a_checkpoint_as_others);
    tcase_add_loop_test(core, a_resume_keeps_the_best, 0, 2);
    tcase_add_test(core, a_run_that_diverges_keeps_its_best);
    tcase_add_test(core, without_checkpoints_it_is_only_told);
    tcase_add_test(core, a_folder_named_best_is_left_alone);
    return test_folder_close(suite_run(suite));
}
