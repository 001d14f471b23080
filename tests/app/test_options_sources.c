/* Where settings come from: precedence, the environment, configuration files. */
#include "app/options/options_table.h"
#include "base/file.h"
#include "tests/app/support/command_line.h"

#include <unistd.h>

static const char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_options_%d.yaml", (int)getpid());
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

START_TEST(command_line_beats_environment_beats_file_beats_default)
{
    char line[256];
    const char *path = write_file("epochs: 3\nbatch_size: 3\nlr: 3\nno-progress: yes\n");
    setenv("MNIST_DDP_EPOCHS", "2", 1);
    setenv("MNIST_DDP_BATCH_SIZE", "2", 1);
    setenv("MNIST_DDP_OVERLAP", "off", 1);
    snprintf(line, sizeof line, "--epochs 1 --config %s", path);
    options opts = command_line_options(line);
    ck_assert_int_eq(opts.epochs, 1);
    ck_assert_int_eq(opts.batch_size, 2);
    ck_assert_double_eq(opts.lr, 3.0);
    ck_assert_double_eq(opts.gamma, 0.7);
    ck_assert(!opts.progress && !opts.overlap);
    static const struct {
        const char *name;
        int source;
    } given[] = {{"epochs", 3}, {"batch-size", 2}, {"lr", 1}, {"gamma", 0}};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        option_match match;
        ck_assert(options_table_find(given[i].name, FOR_ALL, &match));
        ck_assert_int_eq(opts.given[match.row - options_table], given[i].source);
    }
    options_free(&opts);
    setenv("MNIST_DDP_CONFIG", path, 1);
    unsetenv("MNIST_DDP_EPOCHS");
    opts = command_line_options("");
    ck_assert_int_eq(opts.epochs, 3);
    options_free(&opts);
    unlink(path);
    unsetenv("MNIST_DDP_CONFIG");
    unsetenv("MNIST_DDP_BATCH_SIZE");
    unsetenv("MNIST_DDP_OVERLAP");
}
END_TEST

START_TEST(the_later_of_two_batch_sizes_counts)
{
    setenv("MNIST_DDP_GLOBAL_BATCH_SIZE", "512", 1);
    options opts = command_line_options("");
    ck_assert_int_eq(opts.global_batch_size, 512);
    options_free(&opts);
    opts = command_line_options("--batch-size 32");
    ck_assert_int_eq(opts.batch_size, 32);
    ck_assert_int_eq(opts.global_batch_size, -1);
    options_free(&opts);
    setenv("MNIST_DDP_BATCH_SIZE", "2", 1);
    command_line_refused("", FACTS("--batch-size", "--global-batch-size"));
    opts = command_line_options("--global-batch-size 64");
    ck_assert_int_eq(opts.global_batch_size, 64);
    options_free(&opts);
    unsetenv("MNIST_DDP_BATCH_SIZE");
    unsetenv("MNIST_DDP_GLOBAL_BATCH_SIZE");
}
END_TEST

static const struct {
    const char *name, *value;
    const char *const *facts; /* NULL: accepted */
} VARIABLES[] = {
    {"MNIST_DDP_EPOCHS", "x", FACTS("MNIST_DDP_EPOCHS", "x", "1000000")},
    {"MNIST_DDP_EPOCHS", "", FACTS("MNIST_DDP_EPOCHS", "1000000")},
    {"MNIST_DDP_MODEL", "mpl", FACTS("MNIST_DDP_MODEL", "mpl", "did you mean 'mlp'")},
    {"MNIST_DDP_RESUME", "", FACTS("MNIST_DDP_RESUME", "true", "false")},
    {"MNIST_DDP_DATA", "/some/where", NULL},
    {"MNIST_DDP_GLOO_MODULE", "x", NULL},
    {"MNIST_DDP_HEAD", "nonsense of the sampler", NULL},
    {"MNIST_DDP_EPOCS", "3", NULL},
};

START_TEST(variables_are_checked)
{
    setenv(VARIABLES[_i].name, VARIABLES[_i].value, 1);
    if (VARIABLES[_i].facts != NULL) {
        command_line_refused("", VARIABLES[_i].facts);
    } else {
        options opts = command_line_options("");
        ck_assert_ptr_null(opts.data_dir);
        ck_assert_int_eq(opts.epochs, 14);
        options_free(&opts);
    }
    unsetenv(VARIABLES[_i].name);
}
END_TEST

static void parse_nothing(int unused)
{
    (void)unused;
    options opts = command_line_options("");
    options_free(&opts);
}

START_TEST(an_unknown_variable_gets_one_warning)
{
    setenv("MNIST_DDP_EPOCS", "3", 1);
    setenv("MNIST_DDP_DATA", "/d", 1);
    setenv("MNIST_DDP_CUDA_MODULE", "/m", 1);
    command_line_capture(STDERR_FILENO, parse_nothing, 0);
    ASSERT_FACTS(command_line_captured, "warning", "MNIST_DDP_EPOCS", "MNIST_DDP_EPOCHS");
    ck_assert_ptr_eq(strchr(command_line_captured, '\n'),
                     command_line_captured + strlen(command_line_captured) - 1);
    setenv("MNIST_DDP_LAUNCHED", "1", 1);
    command_line_capture(STDERR_FILENO, parse_nothing, 0);
    ck_assert_str_eq(command_line_captured, "");
    unsetenv("MNIST_DDP_LAUNCHED");
    unsetenv("MNIST_DDP_EPOCS");
    unsetenv("MNIST_DDP_DATA");
    unsetenv("MNIST_DDP_CUDA_MODULE");
}
END_TEST

static const struct {
    const char *text;
    int line;                 /* that the message names, after the file; 0: any or none */
    const char *const *facts; /* NULL: accepted */
} FILES[] = {
    {"", 0, NULL},
    {"# only a comment\n", 0, NULL},
    {"---\n...\n", 0, NULL},
    {"epochs: 2\n# more\nbatch_size: \"8\"\nresume: on\n", 0, NULL},
    {"model: cnn\nepochz: 2\n", 2, FACTS("epochz", "epochs")},
    {"zzzzzzzz: 2\n", 1, FACTS("zzzzzzzz", "train")},
    {"\n\nepoch: 2\n", 3, FACTS("epoch", "epochs")},
    {"model: cnn\n\nepochs: two\n", 3, FACTS("epochs", "two", "1000000")},
    {"epochs: 0\n", 1, FACTS("epochs", "0", "1000000")},
    {"model: cnm\n", 1, FACTS("model", "cnm", "did you mean 'cnn'")},
    {"batch-size: 1\nlr: 1\nbatch_size: 2\n", 3, FACTS("batch_size", "second")},
    {"no-accel: 1\nno-cuda: 1\n", 2, FACTS("no-cuda", "second")},
    {"epochs:\n", 1, FACTS("epochs", "no value")},
    {"epochs: ~\n", 1, FACTS("epochs", "no value")},
    {"run-dir: \"\"\n", 1, FACTS("run-dir", "empty")},
    {"a\n", 1, FACTS("batch-size: 64")},
    {"- epochs\n", 1, FACTS("batch-size: 64")},
    {"epochs: [1, 2]\n", 1, FACTS("epochs", "one value", "list")},
    {"lr: 1\nepochs:\n  n: 2\n", 0, FACTS("epochs", "one value", "map")},
    {"lr: &x 1\ngamma: *x\n", 2, FACTS("gamma", "one value")},
    {"[a, b]: 1\n", 1, FACTS("key")},
    {"\"epo\\0chs\": 1\n", 1, FACTS("key")},
    {"lr: 1\n\tepochs: 2\n", 0, FACTS("YAML")},
    {"lr: \"1\nepochs: 2\n", 0, FACTS("YAML")},
    {"lr: 1\n---\nlr: 2\n", 0, FACTS("second", "document")},
    {"config: other.yaml\n", 1, FACTS("config", "train")},
    {"help: true\n", 1, FACTS("help", "train")},
    {"checkpoint: x\n", 1, FACTS("checkpoint", "train")},
    {"batch-size: 8\nglobal-batch-size: 8\n", 0, FACTS("--batch-size", "--global-batch-size")},
};

START_TEST(files_are_checked_with_line_numbers)
{
    char line[128], place[96];
    const char *path = write_file(FILES[_i].text);
    snprintf(line, sizeof line, "--config=%s", path);
    if (FILES[_i].facts == NULL) {
        options opts = command_line_options(line);
        options_free(&opts);
    } else {
        snprintf(place, sizeof place, "%s:%d", path, FILES[_i].line);
        command_line_refused(line, FILES[_i].facts);
        if (FILES[_i].line > 0)
            ASSERT_FACTS(status_text(), place);
    }
    unlink(path);
}
END_TEST

START_TEST(other_commands_take_what_is_theirs_from_a_file)
{
    char line[128];
    const char *path = write_file("threads: 3\nepochs: 3\nmomentum: 0.5\n");
    snprintf(line, sizeof line, "eval --config=%s", path);
    options opts = command_line_options(line);
    ck_assert_int_eq(opts.threads, 3);
    ck_assert_int_eq(opts.epochs, 14);
    options_free(&opts);
    path = write_file("epochs: 3\nrank: 1\n");
    snprintf(line, sizeof line, "sampler --config=%s", path);
    opts = command_line_options(line);
    ck_assert_int_eq(opts.rank, 1);
    options_free(&opts);
    unlink(path);
}
END_TEST

/* A flag that was here once is answered as a key of a file, too, and as a variable. */
START_TEST(a_setting_that_went_is_answered)
{
    char line[128];
    const char *path = write_file("repeats: 2\nhold_out: 3\n");
    snprintf(line, sizeof line, "bench scaling --config=%s", path);
    command_line_refused(line, FACTS("hold_out", "bench/scaling.py"));
    unlink(path);
    ck_assert_int_eq(setenv("MNIST_DDP_PROJECT_RANKS", "3", 1), 0);
    command_line_capture(STDERR_FILENO, parse_nothing, 0);
    ASSERT_FACTS(command_line_captured, "MNIST_DDP_PROJECT_RANKS", "ignored", "bench/scaling.py");
    ck_assert_int_eq(unsetenv("MNIST_DDP_PROJECT_RANKS"), 0);
}
END_TEST

static const char *const CONFIGS[] = {"quickstart",      "mlp",   "cnn",
                                      "pytorch-example", "to-97", "speedrun"};

START_TEST(shipped_configs_parse)
{
    char line[1024];
    const char *source = getenv("SOURCE_DIR");
    snprintf(line, sizeof line, "--config=%s/configs/%s.yaml", source ? source : ".", CONFIGS[_i]);
    options opts = command_line_options(line), initial = command_line_options("");
    static const char *const models[] = {"cnn", "mlp", "cnn", "cnn", "mlp", "speedrun"};
    ck_assert_str_eq(opts.model, models[_i]);
    if (_i == 3) {
        ck_assert_str_eq(opts.log_format, "pytorch");
        ck_assert_ptr_null(opts.nproc_per_node);
        ck_assert(opts.lr == 1.0 && opts.gamma == initial.gamma);
        ck_assert_int_eq(opts.epochs, initial.epochs);
        ck_assert_int_eq(opts.batch_size, initial.batch_size);
        ck_assert_int_eq(opts.test_batch_size, initial.test_batch_size);
    } else {
        ck_assert_str_eq(opts.nproc_per_node, "2");
    }
    options_free(&opts);
    options_free(&initial);
}
END_TEST

START_TEST(other_spellings_of_values)
{
    static const char *const lines[][2] = {{"gpu", "cuda"}, {"GPU:1", "cuda:1"}, {"gpus", "gpus"}};
    char flags[64];
    for (size_t i = 0; i < COUNT(lines); i++) {
        snprintf(flags, sizeof flags, "--backend NCCL --device %s", lines[i][0]);
        options opts = command_line_options(flags);
        ck_assert_str_eq(opts.backend, "nccl");
        ck_assert_str_eq(opts.device, lines[i][1]);
        options_free(&opts);
    }
}
END_TEST

/* The table of docs/for-pytorch-users.md, line by line, is the program's own; and each word is
 * answered with its line. */
START_TEST(words_of_others_are_answered_as_in_the_document)
{
    char path[1024], *document = NULL, list[256], flag[64];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/docs/for-pytorch-users.md", getenv("SOURCE_DIR"));
    ck_assert_int_eq(file_read(path, 1 << 20, &document, &size), STATUS_OK);
    const char *at = strstr(document, "## Words that are none here");
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "| --- | --- |\n") + strlen("| --- | --- |\n");
    for (size_t i = 0; i < foreign_words_count; i++) {
        const foreign_word *row = &foreign_words[i];
        const char *word = row->words;
        for (list[0] = '\0'; *word != '\0'; word += strspn(word, " ")) {
            size_t used = strlen(list);
            snprintf(flag, sizeof flag, "%.*s", (int)strcspn(word, " "), word);
            snprintf(list + used, sizeof list - used, "%s`%s`", used > 0 ? ", " : "", flag);
            word += strlen(flag);
            bool measures = (row->commands & FOR_TRAIN) == 0;
            options opts;
            char *argv[] = {"mnist_ddp", "bench", "all-reduce", flag, "4"};
            status st = measures ? options_parse(5, argv, &opts)
                                 : options_parse(2, (char *[]){"mnist_ddp", flag}, &opts);
            ck_assert_msg(st == STATUS_INVALID, "%s is taken", flag);
            ASSERT_FACTS(status_text(), flag, row->answer);
        }
        char line[512];
        int length = snprintf(line, sizeof line, "| %s | %s |\n", list, row->answer);
        ck_assert_msg(strncmp(at, line, (size_t)length) == 0, "want: %sin: %.200s", line, at);
        at += length;
    }
    ck_assert_msg(*at == '\n', "more than the program answers: %.200s", at);
    free(document);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options_sources");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, words_of_others_are_answered_as_in_the_document);
    tcase_add_test(core, other_spellings_of_values);
    tcase_add_test(core, command_line_beats_environment_beats_file_beats_default);
    tcase_add_test(core, the_later_of_two_batch_sizes_counts);
    tcase_add_loop_test(core, variables_are_checked, 0, COUNT(VARIABLES));
    tcase_add_test(core, an_unknown_variable_gets_one_warning);
    tcase_add_loop_test(core, files_are_checked_with_line_numbers, 0, COUNT(FILES));
    tcase_add_test(core, other_commands_take_what_is_theirs_from_a_file);
    tcase_add_test(core, a_setting_that_went_is_answered);
    tcase_add_loop_test(core, shipped_configs_parse, 0, COUNT(CONFIGS));
    return suite_run(suite);
}
