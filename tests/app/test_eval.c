/* What a test says of each class: eval.json, and what `mnist_ddp eval` prints. It is counted anew
 * here from the model that the run leaves, and is the same at any number of ranks. */
#include "tests/app/support/training.h"
#include "tests/support/facts.h"

#include "app/common/json_value.h"
#include "app/train/eval_document.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "kernels/device_kind.h"
#include "model/classifier.h"

#include <math.h>

enum { N = TEST_FOLDER_TEST, CLASSES = NETWORK_CLASSES };

#define TRAIN "train", "--model", "mlp", TRAINING_SGD, "--limit", "96", "--threads", "1", "--quiet"

static program finish(program p)
{
    ASSERT_EXIT(p, 0);
    return p;
}

#define DO(...) \
    do { \
        program p_ = finish(program_mnist(__VA_ARGS__, NULL)); \
        program_close(&p_); \
    } while (0)

static json_t *read_json(const char *path)
{
    json_t *document = NULL;
    test_folder_require(json_text_read(path, 1 << 20, &document));
    return document;
}

static int64_t whole(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "%s", key);
    return json_integer_value(json_object_get(object, key));
}

/* Element i of the array under `key`; NaN if it is null. */
static double element(const json_t *object, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(object, key), i);
    ck_assert_msg(json_is_number(value) || json_is_null(value), "%s %zu", key, i);
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

static int64_t count_of(const json_t *document, int label, int predicted)
{
    const json_t *row = json_array_get(json_object_get(document, "confusion"), (size_t)label);
    return json_integer_value(json_array_get(row, (size_t)predicted));
}

/* The run's model, and what it says of the test images. */
typedef struct oracle {
    device *dev;
    classifier *model;
    dataset_location location;
    dataset set;
    float logits[N][CLASSES];
} oracle;

static void open_oracle(const char *run, oracle *o)
{
    const device_options plain = {.name = "reference", .threads = 1};
    test_folder_require(device_create(&plain, &o->dev));
    test_folder_require(classifier_create(o->dev, run, N, &o->model));
    test_folder_require(dataset_locate(DATASET_MNIST, NULL, &o->location));
    test_folder_require(dataset_open(&o->location, DATASET_TEST, &o->set));
    ck_assert_uint_eq(o->set.count, N);
    test_folder_require(classifier_run(o->model, o->set.images, N, o->logits[0]));
}

static void close_oracle(oracle *o)
{
    dataset_close(&o->set);
    classifier_destroy(o->model);
    device_destroy(o->dev);
}

static int largest(const float *row)
{
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        best = row[c] > row[best] ? c : best;
    return best;
}

static void check_counts(const json_t *document, const oracle *o)
{
    int64_t want[CLASSES][CLASSES] = {{0}}, correct = 0;
    for (int i = 0; i < N; i++)
        want[o->set.labels[i]][largest(o->logits[i])]++;
    for (int a = 0; a < CLASSES; a++) {
        int64_t of_row = 0, of_column = 0;
        for (int b = 0; b < CLASSES; b++) {
            ck_assert_int_eq(count_of(document, a, b), want[a][b]);
            of_row += want[a][b];
            of_column += want[b][a];
        }
        correct += want[a][a];
        ck_assert_double_eq_tol(element(document, "recall", (size_t)a),
                                (double)want[a][a] / (double)of_row, 1e-6);
        if (of_column > 0)
            ck_assert_double_eq_tol(element(document, "precision", (size_t)a),
                                    (double)want[a][a] / (double)of_column, 1e-6);
        else
            ck_assert(isnan(element(document, "precision", (size_t)a)));
    }
    ck_assert_int_eq(whole(document, "correct"), correct);
    ck_assert_int_eq(whole(document, "images"), N);
}

/* The way back from json_value_hex: false unless it is a string of n bytes. */
static bool bytes_of(const json_t *value, int n, uint8_t *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) != 2 * (size_t)n || strspn(text, digits) != 2 * (size_t)n)
        return false;
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 |
                           (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}

/* In the list are mistakes, in order, and no image outside it is worse than its last. */
static void check_mistakes(const json_t *document, const oracle *o)
{
    const json_t *list = json_object_get(document, "mistakes");
    bool listed[N] = {false};
    double before = HUGE_VAL;
    ck_assert_uint_eq(json_array_size(list), TALLY_MISTAKES);
    for (size_t m = 0; m < TALLY_MISTAKES; m++) {
        const json_t *entry = json_array_get(list, m);
        int64_t i = whole(entry, "index"), label = o->set.labels[i];
        double loss = json_number_value(json_object_get(entry, "loss"));
        uint8_t pixels[DATASET_PIXELS];
        ck_assert(!listed[i] && loss <= before + 1e-5);
        listed[i] = true;
        before = loss;
        ck_assert_int_eq(whole(entry, "label"), label);
        ck_assert_int_eq(whole(entry, "predicted"), largest(o->logits[i]));
        ck_assert_double_eq_tol(loss, prediction_loss(o->logits[i], (int)label), 1e-4);
        ck_assert_double_eq_tol(element(entry, "probabilities", (size_t)label), exp(-loss), 1e-4);
        ck_assert(bytes_of(json_object_get(entry, "pixels"), DATASET_PIXELS, pixels));
        ck_assert_mem_eq(pixels, o->set.images + i * DATASET_PIXELS, DATASET_PIXELS);
    }
    for (int i = 0; i < N; i++)
        if (!listed[i] && largest(o->logits[i]) != o->set.labels[i])
            ck_assert(prediction_loss(o->logits[i], o->set.labels[i]) <= before + 1e-5);
}

static void check_filters(const json_t *document, oracle *o)
{
    const json_t *filters = json_object_get(document, "filters");
    network *net = classifier_network(o->model);
    int64_t side = whole(filters, "side"), pixels = side * side;
    uint8_t bytes[DATASET_PIXELS];
    float *weights = NULL;
    const parameter *layout;
    network_layout(net, &layout);
    test_folder_require(memory_alloc(sizeof *weights * network_count(net), (void **)&weights));
    test_folder_require(network_export(net, network_parameters(net), weights));
    ck_assert_str_eq(json_string_value(json_object_get(filters, "parameter")), layout[0].name);
    ck_assert_int_eq(whole(filters, "outputs"), layout[0].shape[0]);
    size_t n = json_array_size(json_object_get(filters, "pixels"));
    ck_assert_uint_eq(n, layout[0].shape[0] < 32 ? (size_t)layout[0].shape[0] : 32);
    for (size_t f = 0; f < n; f++) {
        double scale = element(filters, "scales", f);
        ck_assert(
            bytes_of(json_array_get(json_object_get(filters, "pixels"), f), (int)pixels, bytes));
        for (int j = 0; j < pixels; j++)
            ck_assert_double_eq_tol((bytes[j] - 128) / 127.0 * scale,
                                    (double)weights[(int64_t)f * pixels + j], scale / 200);
    }
    free(weights);
}

START_TEST(what_a_run_leaves_is_true)
{
    static const char *const models[] = {"mlp", "cnn", "speedrun"};
    static oracle o;
    DO(TRAIN, "--model", models[_i], "--epochs=1", "--nproc-per-node=2", "--run-dir=run");
    json_t *document = read_json("run/eval.json");
    open_oracle("run", &o);
    ck_assert_str_eq(json_string_value(json_object_get(document, "model")), models[_i]);
    ck_assert_int_eq(whole(document, "step"), 1);
    check_counts(document, &o);
    check_mistakes(document, &o);
    check_filters(document, &o);
    close_oracle(&o);
    json_decref(document);
}
END_TEST

/* Of runs that test the same weights. Sums of floats may differ in the last digits. */
static void expect_alike(const json_t *a, const json_t *b)
{
    static const char *const exact[] = {"confusion", "recall",  "precision", "filters",
                                        "correct",   "classes", "step",      "model"};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        ck_assert_msg(json_equal(json_object_get(a, exact[i]), json_object_get(b, exact[i])),
                      "%s differs", exact[i]);
    ck_assert_double_eq_tol(json_number_value(json_object_get(a, "test_loss")),
                            json_number_value(json_object_get(b, "test_loss")), 2e-6);
    for (size_t m = 0; m < TALLY_MISTAKES; m++) {
        const json_t *one = json_array_get(json_object_get(a, "mistakes"), m);
        const json_t *other = json_array_get(json_object_get(b, "mistakes"), m);
        ck_assert_int_eq(whole(one, "index"), whole(other, "index"));
        for (size_t c = 0; c < CLASSES; c++)
            ck_assert_double_eq_tol(element(one, "probabilities", c),
                                    element(other, "probabilities", c), 2e-6);
    }
}

START_TEST(any_number_of_ranks_says_the_same)
{
    static const char *const ranks[] = {"--nproc-per-node=2", "--nproc-per-node=3"};
    DO(TRAIN, "--epochs=1", "--run-dir=run");
    DO(TRAIN, "--epochs=1", "--init=run", "--lr=0", "--global-batch-size=48", "--run-dir=one");
    DO(TRAIN, "--epochs=1", "--init=run", "--lr=0", "--global-batch-size=48", "--run-dir=many",
       ranks[_i]);
    json_t *one = read_json("one/eval.json"), *many = read_json("many/eval.json");
    expect_alike(one, many);
    json_decref(one);
    json_decref(many);
}
END_TEST

START_TEST(eval_writes_what_the_run_left)
{
    DO(TRAIN, "--epochs=1", "--run-dir=run");
    program p = finish(program_mnist("eval", "--checkpoint=run", "--out=out/new", "--json", NULL));
    json_t *run = read_json("run/eval.json"), *out = read_json("out/new/eval.json");
    json_t *line = json_loads(p.out, 0, NULL);
    ck_assert(json_is_null(json_object_get(out, "step")));
    ck_assert(json_is_number(json_object_get(line, "eval_s")));
    json_object_set_new(out, "step", json_integer(whole(run, "step")));
    expect_alike(run, out);
    json_object_set_new(line, "step", json_integer(whole(run, "step")));
    expect_alike(run, line);
    json_decref(line);
    json_decref(out);
    json_decref(run);
    program_close(&p);
}
END_TEST

/* Lines of at most 80 letters below the first, which names paths. */
START_TEST(eval_prints_a_table)
{
    DO(TRAIN, "--epochs=1", "--run-dir=run");
    json_t *document = read_json("run/eval.json");
    program p = finish(program_mnist("eval", "--checkpoint=run", NULL));
    program quiet = finish(program_mnist("eval", "--checkpoint=run", "--quiet", NULL));
    char *line = strchr(p.out, '\n') + 1;
    ck_assert(strncmp(p.out, quiet.out, (size_t)(line - p.out)) == 0);
    ck_assert_int_eq(facts_count(quiet.out, "\n"), 1);
    int rows = 0;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        ck_assert_msg(strlen(line) <= 80, "%zu letters: %s", strlen(line), line);
        if (line[0] < '0' || line[0] > '9')
            continue;
        char *at = line + 1;
        for (int predicted = 0; predicted < CLASSES; predicted++) {
            at += strspn(at, " ");
            int64_t count = *at == '.' ? (at++, 0) : strtoll(at, &at, 10);
            ck_assert_int_eq(count, count_of(document, line[0] - '0', predicted));
        }
        ck_assert_double_eq_tol(strtod(at, NULL), 100 * element(document, "recall", (size_t)rows),
                                0.051);
        rows++;
    }
    ck_assert_int_eq(rows, CLASSES);
    json_decref(document);
    program_close(&quiet);
    program_close(&p);
}
END_TEST

/* The run is named as a word or by its flag, or is the newest. */
START_TEST(eval_takes_a_run_or_the_newest)
{
    static const char *const how[] = {"runs/a", "--checkpoint=runs/a", NULL, "--quiet"};
    program none = program_mnist("eval", NULL);
    ASSERT_EXIT(none, 74);
    ASSERT_FACTS(none.err, "no folder in ./runs has a model yet", "eval RUN");
    program_close(&none);
    DO(TRAIN, "--run-dir=runs/b", "--epochs=1");
    DO(TRAIN, "--run-dir=runs/a", "--epochs=1");
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        program p = finish(program_mnist("eval", how[i], NULL));
        ck_assert_msg(strncmp(p.out, "runs/a: mlp", strlen("runs/a: mlp")) == 0, "%s", p.out);
        ck_assert_int_eq(strstr(p.err, "the newest model: runs/a") != NULL, how[i] == NULL);
        program_close(&p);
    }
}
END_TEST

/* Nothing was tested, nothing is kept, or nothing of it means anything. */
static const char *const WITHOUT[][3] = {
    {"--eval-every=0", "--epochs=1"}, {"--dry-run", "--epochs=1"}, {"--lr=1e30", "--epochs=2"}};

START_TEST(a_run_without_a_result_leaves_none)
{
    program p = program_mnist(TRAIN, "--run-dir=run", WITHOUT[_i][0], WITHOUT[_i][1], NULL);
    ck_assert(!file_exists("run/eval.json"));
    program_close(&p);
}
END_TEST

static uint8_t labels[40];
static float logits[40][CLASSES];

/* Image i is of class i % 10, and is taken for 1, the surer the greater its logit. */
static tally made_up(void)
{
    for (int i = 0; i < 40; i++) {
        labels[i] = (uint8_t)(i % CLASSES);
        memset(logits[i], 0, sizeof logits[i]);
        logits[i][1] = 1 + (float)(i / 20);
    }
    logits[7][3] = NAN;
    logits[9][2] = INFINITY;
    const dataset set = {.count = 40, .labels = labels};
    return tally_of(&set, logits[0]);
}

/* What is not finite comes first; among equals the first image. */
START_TEST(the_worst_are_in_order)
{
    static const uint32_t want[] = {7,  9,  20, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                                    32, 33, 34, 35, 36, 37, 38, 39, 0,  2,  3,  4};
    tally t = made_up();
    ck_assert_int_eq(t.n_worst, TALLY_MISTAKES);
    for (int m = 0; m < TALLY_MISTAKES; m++)
        ck_assert_msg(t.worst[m].index == want[m], "%d: %u, want %u", m, t.worst[m].index, want[m]);
    ck_assert(isnan(tally_loss(&t)));
    ck_assert_int_eq(t.correct, 4);
    ck_assert(tally_recall(&t, 1) >= 1 && tally_recall(&t, 0) <= 0);
    ck_assert(isnan(tally_precision(&t, 0)) && tally_precision(&t, 2) <= 0);
}
END_TEST

START_TEST(long_names_and_counts_fit_a_terminal)
{
    char *text = NULL;
    size_t size_bytes = 0;
    tally t = made_up();
    for (int a = 0; a < CLASSES; a++)
        for (int b = 0; b < CLASSES; b++)
            t.confusion[a][b] = 60000;
    FILE *out = open_memstream(&text, &size_bytes);
    tally_print(&t, dataset_kind_facts(DATASET_FASHION)->classes, out);
    ck_assert_int_eq(fclose(out), 0);
    ASSERT_FACTS(text, "0", "T-shirt/top", "60000", "10.0");
    ASSERT_FACTS(text, "9", "Ankle boot", "60000", "10.0");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        ck_assert_msg(strlen(line) <= 80, "%zu letters: %s", strlen(line), line);
    free(text);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("eval");
    TCase *counts = suite_case(suite, "counts", 10);
    tcase_add_test(counts, the_worst_are_in_order);
    tcase_add_test(counts, long_names_and_counts_fit_a_terminal);
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, what_a_run_leaves_is_true, 0, MODEL_COUNT);
    tcase_add_loop_test(runs, any_number_of_ranks_says_the_same, 0, 2);
    tcase_add_test(runs, eval_writes_what_the_run_left);
    tcase_add_test(runs, eval_prints_a_table);
    tcase_add_test(runs, eval_takes_a_run_or_the_newest);
    tcase_add_loop_test(runs, a_run_without_a_result_leaves_none, 0, 3);
    return test_folder_close(suite_run(suite));
}
