/* --init: a run starts from weights of PyTorch's, in whatever precision and under whatever prefix
 * they were saved. The files are written here, as safetensors.torch lays them out. */
#include "model/safetensors.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <jansson.h>
#include <stdio.h>

#define SMALL TRAINING_96, "--model", "mlp"

enum { TENSORS = 6 };

/* What a file is to hold instead of the run's weights. */
typedef struct variant {
    const char *prefix, *dtype;
    const char *left_out; /* a tensor that is missing; NULL: none is */
    const char *longer;   /* one that has a row more; NULL: none has */
    const char *added;    /* one that does not belong there; NULL: there is none */
} variant;

/* Rounds towards zero to the nearest value that `dtype` has, a normal one or 0; its bits. */
static uint32_t narrow(bool bf16, float *value)
{
    uint32_t bits = 0;
    memcpy(&bits, value, sizeof bits);
    int dropped = bf16 ? 16 : 13, exponent = (int)(bits >> 23 & 255) - (bf16 ? 0 : 127 - 15);
    uint32_t kept = exponent < 1 ? 0 : bits >> dropped << dropped;
    memcpy(value, &kept, sizeof kept);
    if (kept == 0)
        return 0;
    return kept >> 31 << 15 | (uint32_t)exponent << (23 - dropped) | (kept & 0x7fffff) >> dropped;
}

/* Appends a tensor's elements, and its line of the header. */
static void add(FILE *data, json_t *header, const variant *v, const safetensors_tensor *tensor,
                float *rounded)
{
    char name[128];
    bool wide = strcmp(v->dtype, "F32") == 0, bf16 = strcmp(v->dtype, "BF16") == 0;
    size_t n = 1, size_bytes = wide ? 4 : 2;
    json_t *shape = json_array();
    long begin = ftell(data);
    for (int d = 0; d < tensor->rank; d++)
        n *= (size_t)tensor->shape[d];
    bool longer = v->longer != NULL && strcmp(v->longer, tensor->name) == 0;
    size_t written = n + (longer ? 1 : 0);
    uint8_t *bytes = calloc(written, size_bytes);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < n; i++) {
        float value = tensor->data[i];
        uint32_t bits = wide ? 0 : narrow(bf16, &value);
        memcpy(bytes + i * size_bytes, wide ? (void *)&value : (void *)&bits, size_bytes);
        if (rounded != NULL)
            rounded[i] = value;
    }
    ck_assert_uint_eq(fwrite(bytes, size_bytes, written, data), written);
    free(bytes);
    for (int d = 0; d < tensor->rank; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d] + (longer ? 1 : 0)));
    snprintf(name, sizeof name, "%s%s", v->prefix, tensor->name);
    json_object_set_new(header, name,
                        json_pack("{s:s, s:o, s:[i, i]}", "dtype", v->dtype, "shape", shape,
                                  "data_offsets", (int)begin, (int)ftell(data)));
}

/* Writes the variant of a run's model, and to `plain` the float32 values that it stands for. */
static void write_variant(const char *run, const variant *v, const char *path, const char *plain)
{
    char *data = NULL, model[64];
    size_t data_bytes = 0;
    safetensors *file = NULL;
    const safetensors_tensor *tensors = NULL;
    safetensors_tensor rounded[TENSORS];
    snprintf(model, sizeof model, "%s/model.safetensors", run);
    ck_assert_msg(safetensors_open(model, &file) == STATUS_OK, "%s", status_text());
    ck_assert_uint_eq(safetensors_list(file, &tensors), TENSORS);
    FILE *stream = open_memstream(&data, &data_bytes);
    json_t *header = json_object();
    for (int i = 0; i < TENSORS; i++) {
        rounded[i] = tensors[i];
        size_t n =
            (size_t)tensors[i].shape[0] * (size_t)(tensors[i].rank > 1 ? tensors[i].shape[1] : 1);
        float *values = malloc(n * sizeof *values);
        ck_assert_ptr_nonnull(values);
        if (v->left_out == NULL || strcmp(v->left_out, tensors[i].name) != 0)
            add(stream, header, v, &tensors[i], values);
        rounded[i].data = values;
    }
    if (v->added != NULL)
        add(stream, header, v,
            &(safetensors_tensor){.name = v->added, .rank = 1, .shape = {1}, .data = (float[]){1}},
            NULL);
    fclose(stream);
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    file_part parts[] = {{&length, sizeof length}, {text, length}, {data, data_bytes}};
    ck_assert_int_eq(file_write(path, parts, 3), STATUS_OK);
    if (plain != NULL)
        ck_assert_int_eq(safetensors_write(plain, rounded, TENSORS, NULL, 0, NULL), STATUS_OK);
    for (int i = 0; i < TENSORS; i++)
        free((float *)(uintptr_t)rounded[i].data);
    free(text);
    free(data);
    json_decref(header);
    safetensors_close(file);
}

/* Trains from `path` (NULL: from random weights) into the folder `run`. */
static program train_from(const char *path, const char *run, const char *ranks)
{
    test_folder_remove(run);
    program p = program_run_with(NULL, WORDS(SMALL, "--run-dir", run, "--nproc-per-node", ranks,
                                             path != NULL ? "--init" : NULL, path));
    return p;
}

static void setup(void)
{
    program p = train_from(NULL, "source", "1");
    ASSERT_EXIT(p, 0);
    program_close(&p);
}

static const variant GOOD[] = {{"module.", "F32", NULL, NULL, NULL},
                               {"", "F16", NULL, NULL, NULL},
                               {"module.", "BF16", NULL, NULL, NULL}};
enum { N_GOOD = sizeof GOOD / sizeof GOOD[0] };

START_TEST(torchs_files_start_a_run)
{
    write_variant("source", &GOOD[_i], "given", "plain");
    program a = train_from("given", "a", "1"), b = train_from("plain", "b", "1");
    ASSERT_EXIT(a, 0);
    ASSERT_EXIT(b, 0);
    model_file_assert_same_bits("a", "b");
    ck_assert_double_gt(model_file_difference("a", "source"), 0.001); /* it trained on */
    program eval[] = {program_mnist("eval", "--checkpoint", "given", "--json", NULL),
                      program_mnist("eval", "--checkpoint", "plain", "--json", NULL)};
    ck_assert_double_eq(training_number(eval[0].out, "test_loss"),
                        training_number(eval[1].out, "test_loss"));
    for (int i = 0; i < 2; i++)
        program_close(&eval[i]);
    program_close(&a);
    program_close(&b);
}
END_TEST

/* A run's folder will do as well, all ranks get the weights, and they are not the random ones. */
START_TEST(all_ranks_start_from_them)
{
    test_folder_remove("b whole");
    program one = train_from("source", "a", "1");
    program two = program_run_with(NULL, WORDS(SMALL, "--init", "source", "--run-dir", "b",
                                               "--nproc-per-node", "2", "--batch-size", "32"));
    ASSERT_EXIT(one, 0);
    ASSERT_EXIT(two, 0);
    ck_assert_double_lt(model_file_difference("a", "b"), 1e-4);
    ck_assert_double_gt(model_file_difference("a", "source"), 0.001);
    program rest = program_run_with(
        NULL, WORDS(SMALL, "--init", "source", "--run-dir", "a", "--resume", "--epochs", "2"));
    ASSERT_EXIT(rest, 0); /* goes on from the checkpoint, not from --init */
    program whole = program_run_with(
        NULL, WORDS(SMALL, "--init", "source", "--run-dir", "whole", "--epochs", "2"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("a", "whole");
    program_close(&one);
    program_close(&two);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

static const struct {
    variant what;
    const char *facts[5];
} BAD[] = {
    {{"", "F32", "fc3.bias", NULL, NULL}, {"bad", "fc3.bias"}},
    {{"module.", "F16", NULL, "fc2.bias", NULL}, {"bad", "fc2.bias", "513", "512"}},
    {{"", "F32", NULL, NULL, "fc4.bias"}, {"bad", "fc4.bias"}},
    {{"", "I64", NULL, NULL, NULL}, {"bad", "fc1.weight", "dtype"}},
};
enum { N_BAD = sizeof BAD / sizeof BAD[0] };

/* One rank names the tensor, the other is silent, and no folder is made. */
START_TEST(other_tensors_are_refused)
{
    write_variant("source", &BAD[_i].what, "bad", NULL);
    program p = train_from("bad", "a", "2");
    ASSERT_EXIT(p, 65);
    ASSERT_FACTS_LISTED(p.err, BAD[_i].facts);
    ASSERT_NO_FACTS(p.err, "[rank 1]");
    ck_assert(!file_exists("a"));
    program_close(&p);
}
END_TEST

START_TEST(another_model_is_told)
{
    test_folder_remove("a");
    program p = program_run_with(
        NULL, WORDS(TRAINING_96, "--model", "cnn", "--init", "source", "--run-dir", "a"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "source", "mlp", "cnn", "--model=mlp");
    program_close(&p);
}
END_TEST

/* What is known before: one line, by the launcher, with the code of one rank. */
static const struct {
    const char *variable, *flag, *value, *fact;
    int code;
} known[] = {
    {"A=", "--init", "source", "--model=mlp", 64},
    {"A=", "--data-dir", "/nonexistent", "/nonexistent", 65},
    {"MNIST_DDP_GLOO_MODULE=/none.so", "--backend", "gloo", "/none.so", 64},
    {"A=", "--device", "onednn", "--device=cpu", 64},
    {"A=", "--trace", "none/t.json", "none", 64},
    {"A=", "--run-dir", "/proc/none", "/proc/none", 74}, /* the last one given counts */
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

START_TEST(the_launcher_says_what_is_known_once)
{
    test_folder_remove("error.json");
    program p =
        program_run_with(WORDS("env", "TORCHELASTIC_ERROR_FILE=error.json", known[_i].variable),
                         WORDS(TRAINING_96, "--model", "cnn", "--nproc-per-node", "2", "--run-dir",
                               "a", known[_i].flag, known[_i].value));
    ASSERT_EXIT(p, known[_i].code);
    ASSERT_FACTS(p.err, "error", known[_i].fact);
    ck_assert_int_eq(facts_count(p.err, "error: "), 1);
    ASSERT_NO_FACTS(p.err, "hint");
    ASSERT_SILENT(p.err, "[rank");
    ck_assert(file_exists("error.json")); /* which a scheduler reads */
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("init");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_unchecked_fixture(runs, setup, NULL);
    tcase_add_loop_test(runs, torchs_files_start_a_run, 0, N_GOOD);
    tcase_add_test(runs, all_ranks_start_from_them);
    tcase_add_loop_test(runs, other_tensors_are_refused, 0, N_BAD);
    tcase_add_test(runs, another_model_is_told);
    tcase_add_loop_test(runs, the_launcher_says_what_is_known_once, 0, N_KNOWN);
    return test_folder_close(suite_run(suite));
}
