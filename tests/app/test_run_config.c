/* config.json of a run folder: every setting with its value and its origin, there and back. */
#include "app/common/run_files.h"
#include "tests/app/support/command_line.h"
#include "tests/app/support/training.h"
#include "tests/support/no_memory.h"

#include <jansson.h>

static void start_clean(void)
{
    test_folder_clean();
    ck_assert_int_eq(file_make_folders("run"), STATUS_OK);
}

/* Writes the file of a command line's settings. */
static void write_config(const options *opts)
{
    json_t *run = json_pack("{s:i}", "world", 1);
    const run_start start = {opts, run, "2026-11-22T23:42:15Z", 0};
    ck_assert_int_eq(run_config_write("run", &start), STATUS_OK);
    json_decref(run);
}

static void assert_setting(const run_config *config, const char *name, const char *want,
                           option_source source)
{
    bool found = false;
    char *text = NULL;
    option_source origin = SOURCE_DEFAULT;
    ck_assert_int_eq(run_config_setting(config, name, &found, &text, &origin), STATUS_OK);
    ck_assert_msg(found, "no %s", name);
    ck_assert_msg((text == NULL) == (want == NULL) && (want == NULL || strcmp(text, want) == 0),
                  "%s is %s, not %s", name, text, want);
    ck_assert_msg(origin == source, "%s: origin %d, not %d", name, (int)origin, (int)source);
    free(text);
}

START_TEST(values_have_origins)
{
    run_config config;
    test_folder_write("more.yaml", "gamma: 0.95\nshuffle: no\n");
    setenv("MNIST_DDP_SEED", "9007199254740992", 1);
    options opts =
        command_line_options("--lr 0.1 --global-batch-size=96 --resume=auto --config more.yaml");
    unsetenv("MNIST_DDP_SEED");
    write_config(&opts);
    options_free(&opts);
    ck_assert_int_eq(run_config_read("run", &config), STATUS_OK);
    assert_setting(&config, "lr", "0.1", SOURCE_COMMAND_LINE);
    assert_setting(&config, "resume", "auto", SOURCE_COMMAND_LINE);
    assert_setting(&config, "global-batch-size", "96", SOURCE_COMMAND_LINE);
    assert_setting(&config, "seed", "9007199254740992", SOURCE_ENVIRONMENT);
    assert_setting(&config, "gamma", "0.95", SOURCE_FILE);
    assert_setting(&config, "shuffle", "false", SOURCE_FILE);
    assert_setting(&config, "batch_size", "64", SOURCE_DEFAULT);
    assert_setting(&config, "warmup_factor", "0.3333333333333333", SOURCE_DEFAULT);
    assert_setting(&config, "weight_decay", NULL, SOURCE_DEFAULT);
    assert_setting(&config, "threads", NULL, SOURCE_DEFAULT);
    assert_setting(&config, "trace", NULL, SOURCE_DEFAULT);
    bool found = true;
    char *text;
    option_source origin;
    ck_assert_int_eq(run_config_setting(&config, "samples", &found, &text, &origin), STATUS_OK);
    ck_assert(!found); /* of another command */
    run_config_close(&config);
}
END_TEST

/* What is written, read and set again gives the same options. */
START_TEST(every_setting_comes_back)
{
    run_config config;
    options opts = command_line_options("--lr 0.12345678901234567 --momentum 0.3 --optimizer sgd "
                                        "--weight-decay 1e-7 --target-acc 0.1 --no-overlap");
    options back = command_line_options("");
    write_config(&opts);
    ck_assert_int_eq(run_config_read("run", &config), STATUS_OK);
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        bool found = false;
        char *text = NULL;
        option_source origin;
        ck_assert_int_eq(run_config_setting(&config, row->name, &found, &text, &origin), STATUS_OK);
        ck_assert_int_eq(found, (row->commands & FOR_TRAIN) != 0 && row->kind < OPTION_REFUSED);
        if (found && text != NULL)
            ck_assert_int_eq(
                options_value_set(&back, (option_match){row, false}, text, origin, row->name),
                STATUS_OK);
        free(text);
    }
    ck_assert(back.lr == opts.lr && back.momentum == opts.momentum);
    ck_assert(back.weight_decay == opts.weight_decay && back.target_acc == opts.target_acc);
    ck_assert(!back.overlap && strcmp(back.optimizer, "sgd") == 0);
    ck_assert_mem_eq(back.given, opts.given, sizeof opts.given);
    run_config_close(&config);
    options_free(&opts);
    options_free(&back);
}
END_TEST

static const char *const DAMAGED[] = {"",
                                      "{",
                                      "[]",
                                      "{\"format\": 1}",
                                      "{\"format\": 2, \"settings\": {}}",
                                      "{\"format\": 1, \"settings\": []}",
                                      "{\"format\": 1, \"settings\": {}, \"settings\": {}}"};

START_TEST(a_damaged_file_is_refused)
{
    run_config config;
    test_folder_write("run/config.json", DAMAGED[_i]);
    ck_assert_int_eq(run_config_read("run", &config), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "run/config.json");
}
END_TEST

static const char *const NO_VALUES[] = {"1",
                                        "{}",
                                        "{\"value\": 1}",
                                        "{\"origin\": \"flag\"}",
                                        "{\"value\": [], \"origin\": \"flag\"}",
                                        "{\"value\": 1, \"origin\": \"hearsay\"}"};

START_TEST(a_setting_without_value_or_origin_is_refused)
{
    char text[128], *value;
    run_config config;
    bool found;
    option_source origin;
    snprintf(text, sizeof text, "{\"format\": 1, \"settings\": {\"lr\": %s}}", NO_VALUES[_i]);
    test_folder_write("run/config.json", text);
    ck_assert_int_eq(run_config_read("run", &config), STATUS_OK);
    ck_assert_int_eq(run_config_setting(&config, "lr", &found, &value, &origin), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "lr");
    run_config_close(&config);
}
END_TEST

/* A resume asks for each setting that is given. */
START_TEST(want_of_memory_is_a_failure)
{
    char *text = NULL;
    option_match match;
    options opts = command_line_options("--lr 0.1 --seed 5");
    no_memory_begin();
    ck_assert(options_table_find("lr", FOR_TRAIN, &match));
    ck_assert_int_eq(run_config_text(match.row, &opts, &text), STATUS_NO_MEMORY);
    ck_assert(options_table_find("seed", FOR_TRAIN, &match));
    ck_assert_int_eq(run_config_text(match.row, &opts, &text), STATUS_NO_MEMORY);
    no_memory_end();
    options_free(&opts);
}
END_TEST

START_TEST(a_folder_without_one_is_fine)
{
    run_config config;
    ck_assert_int_eq(run_config_read("none", &config), STATUS_OK);
    ck_assert_ptr_null(config.document);
    run_config_close(&config);
}
END_TEST

static json_t *train(const char *const *flags)
{
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, 0);
    program_close(&p);
    json_t *config = json_load_file("run/config.json", JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(config);
    return config;
}

START_TEST(a_run_leaves_it_and_a_resume_adds_its_start)
{
    char host[64] = "";
    const char *name;
    int world, step, threads, cores;
    ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
    json_t *first = train(WORDS(TRAINING_96, "--model=mlp", "--run-dir=run", "--nproc-per-node=2"));
    ck_assert_int_eq(json_unpack(first, "{s:{s:i, s:i, s:i, s:[s!]}}", "run", "world", &world,
                                 "threads", &threads, "cores", &cores, "hosts", &name),
                     0);
    ck_assert_int_eq(world, 2);
    ck_assert_int_eq(threads, 1);
    ck_assert_int_eq(cores, (int)sysconf(_SC_NPROCESSORS_ONLN));
    ck_assert_str_eq(name, host);
    const json_t *words = json_object_get(first, "command");
    ck_assert_str_eq(json_string_value(json_array_get(words, json_array_size(words) - 1)),
                     "--nproc-per-node=2");
    ck_assert_uint_eq(json_array_size(json_object_get(first, "starts")), 1);
    json_t *second = train(WORDS(TRAINING_96, "--model=mlp", "--run-dir=run", "--nproc-per-node=2",
                                 "--epochs=2", "--resume"));
    const json_t *starts = json_object_get(second, "starts");
    ck_assert_uint_eq(json_array_size(starts), 2);
    ck_assert(
        json_equal(json_array_get(starts, 0), json_array_get(json_object_get(first, "starts"), 0)));
    ck_assert_int_eq(json_unpack(json_array_get(starts, 1), "{s:i}", "step", &step), 0);
    ck_assert_int_eq(step, 1);
    json_decref(first);
    json_decref(second);
}
END_TEST

/* Paths of a model; those of `run` have a config.json. */
static const struct {
    const char *path, *run;
} MODELS[] = {
    {"run", "run"},
    {"run/model.safetensors", "run"},
    {"run/checkpoints/00000001", "run"},
    {"run/checkpoints/00000001/", "run"},
    {"run/checkpoints/00000001/model.safetensors", "run"},
    {"run/other/deeper", NULL},
    {"run/other/deeper/model.safetensors", NULL},
    {"none", NULL},
};

START_TEST(a_models_run_is_found)
{
    run_config config;
    char run[FILE_PATH_BYTES];
    options opts = command_line_options("--lr 0.1");
    write_config(&opts);
    options_free(&opts);
    ck_assert_int_eq(file_make_folders("run/checkpoints/00000001"), STATUS_OK);
    ck_assert_int_eq(file_make_folders("run/other/deeper"), STATUS_OK);
    test_folder_write("run/model.safetensors", "");
    test_folder_write("run/checkpoints/00000001/model.safetensors", "");
    test_folder_write("run/other/deeper/model.safetensors", "");
    ck_assert_int_eq(run_config_find(MODELS[_i].path, run, &config), STATUS_OK);
    ck_assert((config.document != NULL) == (MODELS[_i].run != NULL));
    if (MODELS[_i].run != NULL)
        ck_assert_str_eq(run, MODELS[_i].run);
    run_config_close(&config);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_config");
    TCase *file = suite_case(suite, "file", 10);
    tcase_add_checked_fixture(file, start_clean, NULL);
    tcase_add_test(file, values_have_origins);
    tcase_add_test(file, every_setting_comes_back);
    tcase_add_loop_test(file, a_damaged_file_is_refused, 0, COUNT(DAMAGED));
    tcase_add_loop_test(file, a_setting_without_value_or_origin_is_refused, 0, COUNT(NO_VALUES));
    tcase_add_test(file, want_of_memory_is_a_failure);
    tcase_add_test(file, a_folder_without_one_is_fine);
    tcase_add_loop_test(file, a_models_run_is_found, 0, COUNT(MODELS));
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, start_clean, NULL);
    tcase_add_test(runs, a_run_leaves_it_and_a_resume_adds_its_start);
    return test_folder_close(suite_run(suite));
}
