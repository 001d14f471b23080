/* What the program prints, saves and refuses. */
#include "tests/app/support/test_folder.h"

#include <jansson.h>
#include <math.h>

#define QUICK "--model", "mlp", "--epochs", "1", "--limit", "200", "--threads", "1"

static const char *run_dir(void)
{
    return test_folder_path("run");
}

START_TEST(json_line_has_the_peers_keys)
{
    static const char *const numbers[] = {
        "world",   "threads",  "batch",     "images_per_epoch", "images_per_s", "setup_s",
        "eval_s",  "test_acc", "last_loss", "rss_mib",          "private_mib",  "data",
        "forward", "backward", "comm",      "comm_exposed",     "optimizer"};
    static const char *const texts[][2] = {
        {"mode", "ddp"}, {"model", "mlp"}, {"backend", "shm"}, {"device", NULL}, {"system", NULL}};
    program p =
        program_mnist(QUICK, "--nproc-per-node", "2", "--json", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    json_error_t error;
    json_t *object = json_loads(p.out, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, p.out);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ck_assert_msg(json_is_number(json_object_get(object, numbers[i])), "no %s", numbers[i]);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *value = json_string_value(json_object_get(object, texts[i][0]));
        ck_assert_msg(value != NULL, "no %s", texts[i][0]);
        if (texts[i][1] != NULL)
            ck_assert_str_eq(value, texts[i][1]);
    }
    ck_assert_uint_eq(json_array_size(json_object_get(object, "train_s")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "images_per_epoch")), 200);
    ASSERT_FACTS(p.err, "accuracy"); /* the log moved to stderr */
    json_decref(object);
    program_close(&p);
}
END_TEST

START_TEST(pytorch_lines)
{
    program p = program_mnist(QUICK, "--batch-size", "32", "--log-interval", "3", "--log-format",
                              "pytorch", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "Train Epoch: 1 [0/200 (0%)]\tLoss: 2.");
    ASSERT_SAYS(p.out, "Train Epoch: 1 [96/200 (43%)]\tLoss: "); /* batch 3 of 7, as there */
    ASSERT_SAYS(p.out, "\n\nTest set: Average loss: ");
    ASSERT_SAYS(p.out, "/250 (");
    ASSERT_SAYS(p.out, "%)\n\n");
    program_close(&p);
}
END_TEST

START_TEST(plain_lines)
{
    program p = program_mnist(QUICK, "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "mlp", "669706 parameters", "adadelta", "lr 1");
    ASSERT_FACTS(p.out, "batch 64");
    ASSERT_SAYS(p.out, "epoch 1/1 step 1/4 loss ");
    ASSERT_SAYS(p.out, "epoch 1/1: ");
    ASSERT_SAYS(p.out, "/250)");
    ASSERT_FACTS(p.out, "saved", test_folder_path("run/model.safetensors"));
    ck_assert_msg(strchr(p.out, '\r') == NULL && strchr(p.out, '\033') == NULL,
                  "a bar in a file: %s", p.out);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

START_TEST(dry_run_takes_one_step)
{
    program p = program_mnist("--model", "mlp", "--dry-run", "--log-interval", "1", "--run-dir",
                              run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "step 1/1 ");
    ck_assert_ptr_null(strstr(p.out, "step 2/"));
    ck_assert_ptr_null(strstr(p.out, "epoch 2/"));
    program_close(&p);
}
END_TEST

START_TEST(target_accuracy_ends_the_run)
{
    program p = program_mnist("--model", "mlp", "--epochs", "9", "--target-acc", "0.2", "--threads",
                              "1", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "epoch 1/9: ");
    ck_assert_ptr_null(strstr(p.out, "epoch 9/9: "));
    program_close(&p);
}
END_TEST

START_TEST(tests_come_as_often_as_asked)
{
    program p = program_mnist("--model", "mlp", "--epochs", "3", "--limit", "32", "--eval-every",
                              "2", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    const char *second = strstr(p.out, "epoch 2/3: "), *third = strstr(p.out, "epoch 3/3: ");
    const char *tested = strstr(p.out, "accuracy ");
    ck_assert(second != NULL && third != NULL && tested != NULL);
    ck_assert_msg(tested > second && strstr(third, "accuracy ") != NULL, "%s", p.out);
    program_close(&p);
}
END_TEST

START_TEST(tests_may_be_left_out)
{
    program p = program_mnist("--model", "mlp", "--epochs", "2", "--limit", "32", "--eval-every=0",
                              "--json", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_ptr_null(strstr(p.err, "accuracy"));
    ASSERT_SAYS(p.out, "\"eval_s\":null,\"test_acc\":null");
    program_close(&p);
    p = program_mnist("--eval-every=0", "--target-acc=0.9", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--target-acc", "--eval-every");
    program_close(&p);
}
END_TEST

START_TEST(global_batch_is_shared_out)
{
    program p = program_mnist(QUICK, "--global-batch-size", "40", "--nproc-per-node", "2",
                              "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "batch 20", "batch 40");
    program_close(&p);
    p = program_mnist(QUICK, "--global-batch-size", "41", "--nproc-per-node", "2", "--run-dir",
                      test_folder_path("run2"), NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--global-batch-size", "41", "2 ranks");
    program_close(&p);
}
END_TEST

START_TEST(evaluates_what_it_saved)
{
    program trained = program_mnist(QUICK, "--nproc-per-node", "2", "--json", "--quiet",
                                    "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(trained, 0);
    json_t *line = json_loads(trained.out, 0, NULL);
    double want = json_real_value(json_object_get(line, "test_acc"));
    program tested = program_mnist("eval", "--checkpoint", run_dir(), "--json", NULL);
    ASSERT_EXIT(tested, 0);
    json_t *result = json_loads(tested.out, 0, NULL);
    ck_assert_msg(fabs(json_real_value(json_object_get(result, "test_acc")) - want) < 1e-6,
                  "trained to %g, tested: %s", want, tested.out);
    json_decref(line);
    json_decref(result);
    program_close(&trained);
    program_close(&tested);
}
END_TEST

START_TEST(eval_refuses_what_is_no_model)
{
    program p = program_mnist("eval", NULL);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "no folder in ./runs", "eval RUN");
    program_close(&p);
    p = program_mnist("eval", "--checkpoint", test_folder_path("data/t10k-labels-idx1-ubyte"),
                      NULL);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "t10k-labels-idx1-ubyte");
    program_close(&p);
}
END_TEST

START_TEST(sampler_prints_the_golden_permutation)
{
    static const int want[] = {36044, 10678, 57327, 55074, 21567, 15479, 9481, 43095, 26145, 7479};
    program p = program_mnist("sampler", "--samples", "60000", "--world_size", "1", "--rank", "0",
                              "--seed", "0", "--epoch", "0", "--head", "10", "--json", NULL);
    ASSERT_EXIT(p, 0);
    json_t *object = json_loads(p.out, 0, NULL), *list = json_object_get(object, "indices");
    ck_assert_uint_eq(json_array_size(list), 10);
    for (size_t i = 0; i < 10; i++)
        ck_assert_int_eq(json_integer_value(json_array_get(list, i)), want[i]);
    json_decref(object);
    program_close(&p);
    p = program_mnist("sampler", "--samples", "60000", "--world_size", "7", "--rank", "3", "--seed",
                      "0", "--epoch", "2", "--head", "3", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "8572", "4 padded", "0 dropped");
    program_close(&p);
    p = program_mnist("sampler", "--samples", "60000", "--world_size", "7", "--rank", "3",
                      "--drop-last", "--json", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "\"padded\":0,\"dropped\":3");
    program_close(&p);
    p = program_mnist("sampler", "--world_size", "2", "--rank", "2", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "2", "[0, 1]");
    program_close(&p);
}
END_TEST

static const char *const configs[] = {"quickstart",      "mlp",   "cnn",
                                      "pytorch-example", "to-97", "speedrun"};

START_TEST(every_configuration_trains)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/configs/%s.yaml", getenv("SOURCE_DIR"), configs[_i]);
    program p = program_mnist("train", "--config", path, "--epochs", "1", "--threads", "1",
                              "--run-dir", run_dir(), "--limit", "256", NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_msg(file_exists(test_folder_path("run/model.safetensors")), "no model: %s", p.out);
    program_close(&p);
}
END_TEST

/* The command line wins over the environment, and that over the file. */
START_TEST(settings_have_an_order)
{
    const file_part text[] = {{"model: mlp\nlimit: 100\nbatch_size: 50\nlr: 0.5\n", 43}};
    ck_assert(file_write(test_folder_path("run.yaml"), text, 1) == STATUS_OK);
    setenv("MNIST_DDP_BATCH_SIZE", "25", 1);
    setenv("MNIST_DDP_LR", "0.25", 1);
    program p = program_mnist("--config", test_folder_path("run.yaml"), "--epochs", "1", "--lr",
                              "0.125", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "mlp", "lr 0.125");
    ASSERT_FACTS(p.out, "batch 25");
    ASSERT_FACTS(p.out, "100 train");
    program_close(&p);
}
END_TEST

START_TEST(default_run_folder_has_time_and_model)
{
    program p = program_mnist(QUICK, NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "runs/20");
    ASSERT_SAYS(p.out, "-mlp");
    program_close(&p);
}
END_TEST

START_TEST(without_saving_nothing_is_saved)
{
    program p = program_mnist(QUICK, "--no-save-model", "--run-dir", run_dir(), NULL);
    ASSERT_EXIT(p, 0);
    ck_assert(!file_exists(test_folder_path("run/model.safetensors")));
    ck_assert(file_exists(test_folder_path("run/result.json")));
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("train");
    TCase *runs = suite_case(suite, "runs", 120);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, json_line_has_the_peers_keys);
    tcase_add_test(runs, pytorch_lines);
    tcase_add_test(runs, plain_lines);
    tcase_add_test(runs, dry_run_takes_one_step);
    tcase_add_test(runs, target_accuracy_ends_the_run);
    tcase_add_test(runs, tests_come_as_often_as_asked);
    tcase_add_test(runs, tests_may_be_left_out);
    tcase_add_test(runs, global_batch_is_shared_out);
    tcase_add_test(runs, evaluates_what_it_saved);
    tcase_add_test(runs, eval_refuses_what_is_no_model);
    tcase_add_test(runs, sampler_prints_the_golden_permutation);
    tcase_add_loop_test(runs, every_configuration_trains, 0, sizeof configs / sizeof configs[0]);
    tcase_add_test(runs, settings_have_an_order);
    tcase_add_test(runs, default_run_folder_has_time_and_model);
    tcase_add_test(runs, without_saving_nothing_is_saved);
    return test_folder_close(suite_run(suite));
}
