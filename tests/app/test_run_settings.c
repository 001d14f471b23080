/* A run that is continued: what is not given is the run's, what is given must fit it. */
#include "app/common/run_files.h"
#include "app/train/run_settings.h"
#include "base/log.h"
#include "tests/app/support/command_line.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>
#include <stdio.h>

/* What is logged. */
static char said[4096];

static void keep_line(void *ctx, const char *line, size_t size_bytes)
{
    (void)ctx;
    size_t used = strlen(said);
    if (used + size_bytes < sizeof said)
        memcpy(said + used, line, size_bytes);
}

static status read_options(const char *line, options *out)
{
    char copy[512], *argv[32], *rest = NULL;
    int argc = 0;
    snprintf(copy, sizeof copy, "mnist_ddp --run-dir run --resume %s", line);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    status st = options_read(argc, argv, out);
    out->command_line = NULL;
    return st;
}

/* A run of two ranks of one host on 1,000 images, with these flags; `facts` holds what came of
 * them. */
static void leave_run(const char *flags, const char *facts)
{
    json_error_t error;
    options opts = command_line_options(flags);
    json_t *run = json_loads(facts, 0, &error);
    ck_assert_msg(run != NULL, "%s", error.text);
    const run_start start = {&opts, run, "2026-11-22T23:42:15Z", 0};
    ck_assert_int_eq(file_make_folders("run/checkpoints"), STATUS_OK);
    ck_assert_int_eq(run_config_write("run", &start), STATUS_OK);
    json_decref(run);
    options_free(&opts);
}

#define RUN_FLAGS \
    "--model mlp --optimizer sgd --momentum 0.9 --limit 1000 --nproc-per-node 2 --no-shuffle " \
    "--save-every 3steps --json"
#define RUN_FACTS \
    "{\"world\": 2, \"hosts\": [\"a\"], \"replicas\": 1, \"batch\": 64, \"global_batch\": 128," \
    " \"lr\": 0.001, \"weight_decay\": 0.0, \"schedule\": \"step\", \"train_images\": 1000}"

static void setup(void)
{
    test_folder_clean();
    leave_run(RUN_FLAGS, RUN_FACTS);
    said[0] = '\0';
    memset(said, 0, sizeof said);
    log_set_sink(keep_line, NULL);
}

START_TEST(what_is_not_given_is_the_runs)
{
    options opts;
    ck_assert_int_eq(read_options("--epochs 20", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_OK);
    ck_assert_int_eq(options_check(&opts), STATUS_OK);
    ck_assert_str_eq(opts.model, "mlp");
    ck_assert_str_eq(opts.optimizer, "sgd");
    ck_assert_str_eq(opts.save_every, "3steps");
    ck_assert_str_eq(opts.nproc_per_node, "2");
    ck_assert_double_eq(opts.momentum, 0.9);
    ck_assert(opts.limit == 1000 && opts.epochs == 20 && opts.lr < 0 && !opts.shuffle);
    ck_assert(!opts.json); /* not how it talks */
    ck_assert(options_given(&opts, "momentum") && !options_given(&opts, "lr"));
    ASSERT_FACTS(said, "resuming", "run", "--epochs 14 -> 20");
    options_free(&opts);
}
END_TEST

static const struct {
    const char *given;
    const char *facts[5]; /* of one line */
} REFUSED[] = {
    {"--lr 0.5", {"cannot resume run", "--lr 0.001 -> 0.5"}},
    {"--limit 500", {"--limit 1000 -> 500"}},
    {"--seed 2", {"--seed 1 -> 2"}},
    {"--shuffle", {"--shuffle false -> true"}},
    {"--model cnn", {"--model mlp -> cnn"}},
    {"--batch-size 32", {"--batch-size 64 -> 32"}},
    {"--global-batch-size 64", {"--global-batch-size 128 -> 64"}},
    {"--mode ps", {"--mode ddp -> ps"}},
    {"--schedule cosine", {"--schedule step -> cosine"}},
    {"--amp bf16", {"--amp off -> bf16"}},
    {"--dense", {"--dense false -> true"}},
    {"--label-smoothing 0.1", {"--label-smoothing 0 -> 0.1"}},
    {"--augment shift=2", {"--augment default -> shift=2", "former"}},
    {"--val-split 0.1", {"--val-split 0 -> 0.1", "validated"}},
    {"--clip-grad-norm 2", {"--clip-grad-norm default -> 2"}},
};
enum { N_REFUSED = sizeof REFUSED / sizeof REFUSED[0] };

START_TEST(another_value_is_refused)
{
    options opts;
    ck_assert_int_eq(read_options(REFUSED[_i].given, &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS_LISTED(said, REFUSED[_i].facts);
    ASSERT_FACTS(status_text(), "run", "--init run");
    options_free(&opts);
}
END_TEST

START_TEST(each_difference_has_a_line)
{
    options opts;
    ck_assert_int_eq(read_options("--lr 0.5 --limit 2000 --threads 2 --momentum 0.9", &opts),
                     STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS(said, "error", "--lr 0.001 -> 0.5");
    ASSERT_FACTS(said, "error", "--limit 1000 -> 2000");
    ASSERT_SILENT(said, "--threads"); /* it goes on with nothing */
    ASSERT_SILENT(said, "resuming");
    ASSERT_NO_FACTS(said, "--momentum");
    options_free(&opts);
}
END_TEST

START_TEST(another_number_of_ranks_is_told)
{
    options opts;
    ck_assert_int_eq(read_options("--nproc-per-node 3", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_OK);
    ck_assert_str_eq(opts.nproc_per_node, "3");
    ASSERT_FACTS(said, "resuming", "--nproc-per-node 2 -> 3");
    ASSERT_NO_FACTS(said, "error");
    options_free(&opts);
}
END_TEST

START_TEST(one_process_is_another_number_of_ranks)
{
    options opts;
    ck_assert_int_eq(read_options("--mode single", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_OK);
    ck_assert_ptr_null(opts.nproc_per_node);
    ASSERT_FACTS(said, "resuming", "--mode ddp -> single");
    ASSERT_FACTS(said, "resuming", "--nproc-per-node 2 -> 1");
    ASSERT_NO_FACTS(said, "error");
    options_free(&opts);
}
END_TEST

/* The same value is no other one, however it is spelled. */
static const char *const SAME[] = {
    "--lr 1e-3",
    "--weight-decay 0",
    "--batch-size 64",
    "--global-batch-size 128",
    "--epochs 14",
    "--nproc-per-node 2 --model mlp",
    "--limit=1000 --no-shuffle",
};
enum { N_SAME = sizeof SAME / sizeof SAME[0] };

START_TEST(the_same_value_is_no_difference)
{
    options opts;
    ck_assert_int_eq(read_options(SAME[_i], &opts), STATUS_OK);
    ck_assert_msg(run_settings_complete(&opts) == STATUS_OK, "%s", said);
    ck_assert_int_eq(options_check(&opts), STATUS_OK);
    ck_assert_str_eq(said, "");
    options_free(&opts);
}
END_TEST

/* What is given and compared is the rate of one rank, however many there were and are. */
START_TEST(a_scaled_rate_is_compared_as_it_is_set)
{
    options opts;
    leave_run("--scale-lr --optimizer sgd",
              "{\"world\": 4, \"hosts\": [\"a\"], \"lr\": 0.004, \"schedule\": \"step\"}");
    ck_assert_int_eq(read_options("--lr 0.001 --nproc-per-node 2", &opts), STATUS_OK);
    ck_assert_msg(run_settings_complete(&opts) == STATUS_OK, "%s", said);
    ck_assert(opts.scale_lr);
    ASSERT_SILENT(said, "--lr");
    options_free(&opts);
    ck_assert_int_eq(read_options("--lr 0.004", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS(said, "error", "--lr 0.001 -> 0.004");
    options_free(&opts);
    ck_assert_int_eq(read_options("--no-scale-lr", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS(said, "error", "--scale-lr true -> false");
    options_free(&opts);
}
END_TEST

/* A schedule that is made for the epochs does not get more. */
START_TEST(epochs_belong_to_a_schedule_with_an_end)
{
    options opts;
    leave_run("--schedule cosine --epochs 2",
              "{\"world\": 1, \"hosts\": [\"a\"], \"schedule\": \"cosine\"}");
    ck_assert_int_eq(read_options("--epochs 3", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS(said, "error", "--epochs 2 -> 3", "schedule");
    options_free(&opts);
    ck_assert_int_eq(read_options("--nproc-per-node 2", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_INVALID);
    ASSERT_FACTS(said, "error", "--nproc-per-node 1 -> 2", "schedule");
    options_free(&opts);
}
END_TEST

START_TEST(without_a_run_nothing_is_taken)
{
    options opts;
    test_folder_remove("run/checkpoints");
    ck_assert_int_eq(read_options("--lr 0.5", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_OK);
    ck_assert_str_eq(opts.model, "cnn");
    options_free(&opts);
}
END_TEST

START_TEST(a_damaged_file_is_a_warning)
{
    options opts;
    test_folder_write("run/config.json", "{\"format\": 1");
    ck_assert_int_eq(read_options("", &opts), STATUS_OK);
    ck_assert_int_eq(run_settings_complete(&opts), STATUS_OK);
    ASSERT_FACTS(said, "warning", "config.json");
    ck_assert_str_eq(opts.model, "cnn");
    options_free(&opts);
}
END_TEST

#define OF_RUN \
    TRAINING_96, "--model", "mlp", "--nproc-per-node", "2", "--batch-size", "8", "--accum", "2", \
        "--gamma", "0.9", "--seed", "7"

/* The folder says it all: two words continue a run, on its ranks. */
START_TEST(the_folder_alone_continues_a_run)
{
    test_folder_remove("part whole");
    program part = program_run_with(NULL, WORDS(OF_RUN, "--epochs", "1", "--run-dir", "part"));
    ASSERT_EXIT(part, 0);
    program rest = program_run_with(
        NULL, WORDS("train", "--run-dir", "part", "--resume", "--epochs", "3", "--json"));
    ASSERT_EXIT(rest, 0);
    ASSERT_FACTS(rest.err, "resuming", "--epochs 1 -> 3");
    ck_assert_double_eq(training_number(rest.out, "world"), 2);
    program whole = program_run_with(NULL, WORDS(OF_RUN, "--epochs", "3", "--run-dir", "whole"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("part", "whole");
    program other = program_run_with(NULL, WORDS("train", "--run-dir", "part", "--resume", "--lr",
                                                 "0.5", "--nproc-per-node", "2"));
    ASSERT_EXIT(other, 64); /* before any rank is started */
    ASSERT_FACTS(other.err, "error", "cannot resume part", "--lr 0.05 -> 0.5");
    ASSERT_NO_FACTS(other.err, "rank 0");
    program_close(&part);
    program_close(&rest);
    program_close(&whole);
    program_close(&other);
}
END_TEST

#define SMALL "train", "--model", "mlp", "--limit", "64", "--threads", "1", "--quiet"

/* A run that goes on with other labels is another run, which may begin with its weights. */
START_TEST(other_data_is_no_resume)
{
    test_folder_shift_labels();
    program first = program_run_with(NULL, WORDS(SMALL, "--epochs", "1", "--run-dir", "labels"));
    ASSERT_EXIT(first, 0);
    program again = program_run_with(
        WORDS("env", "MNIST_DDP_DATA=other"),
        WORDS("train", "--epochs", "2", "--run-dir", "labels", "--resume", "--threads", "1"));
    ASSERT_EXIT(again, 74);
    ASSERT_FACTS(again.err, "cannot resume labels", "MNIST from other", "--init labels");
    program anew = program_run_with(NULL, WORDS(SMALL, "--epochs", "1", "--data-dir", "other",
                                                "--init", "labels", "--run-dir", "anew"));
    ASSERT_EXIT(anew, 0);
    program_close(&first);
    program_close(&again);
    program_close(&anew);
}
END_TEST

/* Neither to a rank nor into the run's folder, wherever it was given. */
START_TEST(a_password_goes_no_further)
{
    static const char endpoint[] = "MNIST_DDP_RDZV_ENDPOINT=http://root:s3cret@h:1";
    program ranks = program_run_with(WORDS("env", endpoint),
                                     WORDS("run", "--standalone", "--no-python", "env"));
    ASSERT_EXIT(ranks, 0);
    ASSERT_SAYS(ranks.out, "MNIST_DDP_RDZV_ENDPOINT=");
    ASSERT_SILENT(ranks.out, "s3cret");
    program one = program_run_with(
        WORDS("env", endpoint), WORDS(SMALL, "--standalone", "--epochs", "1", "--run-dir", "kept"));
    ASSERT_EXIT(one, 0);
    char *config = test_folder_read("kept/config.json");
    ASSERT_SAYS(config, "rdzv_endpoint");
    ASSERT_SILENT(config, "s3cret");
    free(config);
    program_close(&ranks);
    program_close(&one);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_settings");
    TCase *settings = suite_case(suite, "settings", 10);
    tcase_add_checked_fixture(settings, setup, NULL);
    tcase_add_test(settings, what_is_not_given_is_the_runs);
    tcase_add_loop_test(settings, another_value_is_refused, 0, N_REFUSED);
    tcase_add_test(settings, each_difference_has_a_line);
    tcase_add_test(settings, another_number_of_ranks_is_told);
    tcase_add_test(settings, one_process_is_another_number_of_ranks);
    tcase_add_loop_test(settings, the_same_value_is_no_difference, 0, N_SAME);
    tcase_add_test(settings, a_scaled_rate_is_compared_as_it_is_set);
    tcase_add_test(settings, epochs_belong_to_a_schedule_with_an_end);
    tcase_add_test(settings, without_a_run_nothing_is_taken);
    tcase_add_test(settings, a_damaged_file_is_a_warning);
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_test(runs, the_folder_alone_continues_a_run);
    tcase_add_test(runs, other_data_is_no_resume);
    tcase_add_test(runs, a_password_goes_no_further);
    return test_folder_close(suite_run(suite));
}
