/* Training on the cuda device computes what the CPU computes: as graph and kernel by kernel, with
 * ranks over every backend, resumed, in mixed precision. Runs on the emulated device, or with
 * MNIST_DDP_TEST_DEVICE=real on that of the machine. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"

#include <jansson.h>

#define CUDA "--device", "cuda"
/* With seed 3 the devices part on these images, as by an activation near 0; with 1, 2, 4 to 6 they
 * do not. */
#define SMALL TRAINING_96, "--seed", "4"
#define UNTESTED SMALL, "--eval-every", "0" /* where only weights are compared */

static int gpus; /* of the device under test: on a machine with one GPU nccl has one rank */

static const char *model_of(int i)
{
    return i % 2 == 0 ? "mlp" : "cnn";
}

/* Two devices sum in different orders: an image whose two largest logits are alike to rounding may
 * go either way. Weights that agree to 5e-5 leave few such among the test images. */
static void assert_same_accuracy(const program *a, const program *b)
{
    const double few = 2.0 / TEST_FOLDER_TEST;
    double off = training_number(a->out, "test_acc") - training_number(b->out, "test_acc");
    ck_assert_msg(fabs(off) <= few + 1e-9, "test accuracies differ by %g", off);
}

/* The same bound as in app.parity: sums in another order over a few steps. */
START_TEST(cuda_equals_cpu)
{
    program cuda = program_mnist("--model", model_of(_i), SMALL, CUDA, "--run-dir",
                                 test_folder_path("many"), NULL);
    ASSERT_EXIT(cuda, 0);
    program cpu = program_mnist("--model", model_of(_i), SMALL, "--device", "cpu", "--run-dir",
                                test_folder_path("one"), NULL);
    ASSERT_EXIT(cpu, 0);
    double off = model_file_parity(model_of(_i), test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "weights differ by %g", off);
    assert_same_accuracy(&cuda, &cpu);
    if (!cuda_is_real()) {
        ASSERT_FACTS(cuda.out, "\"emulated\":true");
        ASSERT_FACTS(cuda.err, "emulated");
    }
    program_close(&cuda);
    program_close(&cpu);
}
END_TEST

/* 40 images: 2 full steps and one of 8; three epochs record and replay both. */
START_TEST(graph_keeps_every_bit)
{
    static const char *const precisions[][2] = {
        {"--amp", "off"}, {"--tf32", "--quiet"}, {"--amp", "bf16"}, {"--amp", "fp16"}};
    const char *const *flags = precisions[_i / 2];
    program graph =
        program_mnist("--model", model_of(_i), TRAINING_SGD, CUDA, "--epochs", "3", "--eval-every",
                      "3", "--limit", "40", "--batch-size", "16", "--json", "--quiet", flags[0],
                      flags[1], "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(graph, 0);
    ASSERT_FACTS(graph.out, "\"graph\":true");
    program eager =
        program_mnist("--model", model_of(_i), TRAINING_SGD, CUDA, "--epochs", "3", "--eval-every",
                      "3", "--limit", "40", "--batch-size", "16", "--json", "--quiet", flags[0],
                      flags[1], "--run-dir", test_folder_path("one"), "--no-cuda-graph", NULL);
    ASSERT_EXIT(eager, 0);
    ASSERT_FACTS(eager.out, "\"graph\":false");
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&graph);
    program_close(&eager);
}
END_TEST

typedef struct spread {
    const char *backend, *ranks, *batch, *global_batch;
} spread;

static const spread spreads[] = {{"nccl", "1", "16", "16"}, {"nccl", "2", "8", "16"},
                                 {"nccl", "4", "8", "32"},  {"auto", "2", "8", "16"},
                                 {"shm", "2", "8", "16"},   {"gloo", "2", "8", "16"}};
enum { N_SPREADS = sizeof spreads / sizeof spreads[0] };

static const char *missing_for_spread(int i)
{
    const spread *s = &spreads[i / 2];
    char module[FILE_PATH_BYTES];
    snprintf(module, sizeof module, "%s/mnist_ddp_gloo.so", getenv("BUILD_DIR"));
    if (strcmp(s->backend, "nccl") == 0 && gpus < atoi(s->ranks))
        return "nccl needs a GPU for each rank";
    return strcmp(s->backend, "gloo") != 0 || file_exists(module) ? NULL : "gloo is not built";
}

/* The ranks' batches together are one process's batch: as in app.parity. Two epochs, so that the
 * collectives are also replayed. */
START_TEST(ranks_equal_one_process)
{
    const spread *s = &spreads[_i / 2];
    program many = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--backend", s->backend,
                                 "--nproc-per-node", s->ranks, "--batch-size", s->batch,
                                 "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(many, 0);
    program one =
        program_mnist("--model", model_of(_i), UNTESTED, "--device", "cpu", "--batch-size",
                      s->global_batch, "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(one, 0);
    double off = model_file_parity(model_of(_i), test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "%s ranks on %s: weights differ by %g", s->ranks, s->backend, off);
    if (strcmp(s->backend, "nccl") == 0 && atoi(s->ranks) > 1) {
        ASSERT_FACTS(many.out, "\"backend\":\"nccl\"");
        ASSERT_FACTS(many.out, "\"graph\":true");
    }
    program_close(&many);
    program_close(&one);
}
END_TEST

static const char *missing_for_two(int i)
{
    (void)i;
    return gpus < 2 ? "nccl needs a GPU for each rank" : NULL;
}

/* Ranks that meet after four of an epoch's six steps, and at its end; from the third on a step is
 * replayed. */
START_TEST(ranks_apart_equal_the_cpus)
{
    const char *devices[] = {"cuda", "cpu"}, *folders[] = {"many", "one"};
    for (int i = 0; i < 2; i++) {
        program p = program_mnist("--model", model_of(_i), UNTESTED, "--device", devices[i],
                                  "--nproc-per-node=2", "--batch-size=8", "--sync-every=4",
                                  "--outer-lr=0.7", "--outer-momentum=0.9", "--run-dir",
                                  test_folder_path(folders[i]), NULL);
        ASSERT_EXIT(p, 0);
        if (i == 0)
            ASSERT_FACTS(p.out, "\"graph\":true");
        program_close(&p);
    }
    double off = model_file_parity(model_of(_i), test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "weights differ by %g", off);
}
END_TEST

/* Each on GPUs of its own: batches of 20 are cut in two or three, and 96 images leave one of 16. */
static const struct {
    int gpus;
    const char *flags[4];
    const char *backend, *precision;
} MODES[] = {
    {2, {"--mode=dp", "--devices=0,1", "--batch-size=20"}, "nccl", "off"},
    {3, {"--mode=dp", "--devices=0,1,2", "--batch-size=20"}, "nccl", "off"},
    {3, {"--mode=dp", "--devices=0,1,2", "--batch-size=20", "--backend=local"}, "local", "off"},
    {2, {"--mode=dp", "--devices=0,1", "--batch-size=20"}, "nccl", "fp16"},
    {3, {"--mode=dp", "--devices=0,1,2", "--batch-size=10", "--accum=2"}, "nccl", "off"},
    {2, {"--mode=ps", "--devices=0,1", "--batch-size=10"}, "nccl", "off"},
    {2, {"--mode=ps", "--devices=0,1", "--batch-size=10"}, "nccl", "fp16"},
    {2, {"--mode=ps", "--devices=0,1", "--batch-size=10", "--backend=shm"}, "shm", "off"},
    {2, {"--mode=zero1", "--devices=0,1", "--batch-size=10"}, "nccl", "off"},
    {2, {"--mode=fsdp", "--devices=0,1", "--batch-size=10"}, "nccl", "off"},
    {2, {"--mode=fsdp", "--devices=0,1", "--batch-size=5", "--accum=2"}, "nccl", "off"},
    {2, {"--mode=fsdp", "--devices=0,1", "--batch-size=10", "--backend=shm"}, "shm", "off"},
    {2, {"--mode=model", "--devices=0,1", "--batch-size=10", "--accum=2"}, "none", "off"},
    {3, {"--mode=model", "--devices=0,1,2", "--batch-size=20"}, "none", "bf16"},
    {2, {"--mode=tp", "--devices=0,1", "--batch-size=20"}, "nccl", "off"},
    {2, {"--mode=tp", "--devices=0,1", "--batch-size=20", "--backend=shm"}, "shm", "off"},
};
enum { N_MODES = sizeof MODES / sizeof MODES[0] };

static const char *missing_for_mode(int i)
{
    return gpus < MODES[i / 2].gpus ? "each device is a GPU of its own" : NULL;
}

/* The bound of app.parity; with fp16 numbers have 11 bits, so sums in another order and of scaled
 * gradients differ by some 5e-4 of a gradient: 5e-3 after 5 steps with momentum. */
START_TEST(modes_equal_one_process)
{
    const char *const *flags = MODES[_i / 2].flags;
    char backend[32];
    bool half = strcmp(MODES[_i / 2].precision, "fp16") == 0;
    /* Loading a kernel waits for all devices: replicas must have done it before they meet. */
    setenv("MNIST_DDP_EMULATED_LAZY", "2", 1);
    program many = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--amp",
                                 MODES[_i / 2].precision, "--run-dir", test_folder_path("many"),
                                 flags[0], flags[1], flags[2], flags[3], NULL);
    unsetenv("MNIST_DDP_EMULATED_LAZY");
    ASSERT_EXIT(many, 0);
    program one = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--amp",
                                MODES[_i / 2].precision, "--mode=single", "--batch-size=20",
                                "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(one, 0);
    double off = model_file_parity(model_of(_i), test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < (half ? 5e-3 : 5e-5), "%s: weights differ by %g", flags[0], off);
    snprintf(backend, sizeof backend, "\"backend\":\"%s\"", MODES[_i / 2].backend);
    ASSERT_FACTS(many.out, backend);
    /* Of an epoch's five steps the last has 16 images; 512 floats each, and the wish to stop. */
    if (strcmp(model_of(_i), "mlp") == 0 && strcmp(flags[0], "--mode=tp") == 0)
        ASSERT_FACTS(many.out, "\"sent\":39326");
    program_close(&many);
    program_close(&one);
}
END_TEST

static const char *missing_for_phases(int i)
{
    return gpus < (i == 0 ? 1 : 2) ? "each replica is on a GPU of its own" : NULL;
}

/* Without graphs the phases are those of the device's stream, and are all of its time. */
START_TEST(phases_come_from_the_stream)
{
    static const char *const names[] = {"data",    "broadcast", "scatter",
                                        "forward", "gather",    "backward",
                                        "reduce",  "optimizer", "accelerator"};
    const char *flags[][2] = {{"--mode=single", "--no-cuda-graph"},
                              {"--mode=dp", "--devices=0,1"},
                              {"--mode=model", "--devices=0,1"}};
    program p =
        program_mnist("--model", "cnn", TRAINING_EPOCH, CUDA, "--limit", "192", "--no-save-model",
                      flags[_i][0], flags[_i][1], "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(p, 0);
    json_t *result = json_loads(p.out, 0, NULL), *parts = json_object_get(result, "phases");
    double sum = 0,
           total = json_number_value(json_array_get(json_object_get(result, "train_s"), 0));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        sum += json_number_value(json_object_get(parts, names[i]));
    ck_assert_msg(fabs(sum - total) <= 0.05 * total, "phases %g s, training %g s", sum, total);
    ck_assert_double_gt(json_number_value(json_object_get(parts, "forward")), 0);
    ck_assert((json_number_value(json_object_get(parts, "gather")) > 0) == (_i > 0));
    ck_assert((json_object_get(parts, "waiting") != NULL) == (_i == 0));
    json_decref(result);
    program_close(&p);
}
END_TEST

static int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

/* cuDNN's engine of every pass, and the epilogue that cuBLASLt refuses: that is logged once, and
 * the weights are those of a run in which it does not. */
START_TEST(the_result_names_what_libraries_chose)
{
    static const char *const passes[] = {"forward", "weights", "data"};
    program p[2];
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            setenv("MNIST_DDP_EMULATED_REFUSE", "BGRADB:7,RELU_BIAS:15@call", 1);
        p[i] = program_mnist("--model", "cnn", TRAINING_SGD, CUDA, "--limit", "16", "--batch-size",
                             "8", "--eval-every", "0", "--json", "--run-dir",
                             test_folder_path(i == 0 ? "one" : "many"), NULL);
        ASSERT_EXIT(p[i], 0);
    }
    unsetenv("MNIST_DDP_EMULATED_REFUSE");
    json_t *result = json_loads(p[1].out, 0, NULL),
           *libraries = json_object_get(result, "libraries");
    json_t *cudnn = json_object_get(libraries, "cudnn"), *one;
    size_t at = 0;
    int found = 0;
    json_array_foreach(cudnn, at, one)
    {
        for (int i = 0; i < 3; i++)
            if (strncmp(json_string_value(json_object_get(one, "pass")), passes[i],
                        strlen(passes[i])) == 0)
                found |= 1 << i;
        ck_assert_str_eq(json_string_value(json_object_get(one, "subject")),
                         "32->64, 3x3 on 26x26");
        ck_assert_int_eq(json_integer_value(json_object_get(one, "batch")), 8);
        ck_assert_int_ge(json_integer_value(json_object_get(one, "engine")), 0);
    }
    ck_assert_int_eq(found, 7);
    if (!cuda_is_real()) {
        ck_assert_int_eq((int)json_array_size(json_object_get(libraries, "cublaslt")), 2);
        ASSERT_NO_FACTS(p[0].out, "cublaslt");
        ck_assert_int_eq(occurrences(p[1].err, "BGRADB"), 1);
        ck_assert_int_eq(occurrences(p[1].err, "RELU_BIAS"), 1);
    }
    double off = model_file_norm_difference(test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "weights differ by %g", off);
    json_decref(result);
    for (int i = 0; i < 2; i++)
        program_close(&p[i]);
}
END_TEST

/* Also the loss scale of fp16 continues where it stood. */
START_TEST(resumed_run_ends_with_the_same_bits)
{
    static const char *const amp[] = {"off", "fp16"};
    static const char *const optimizers[] = {"adam", "sgd"};
    const char *common[] = {"--amp", amp[_i], "--optimizer", optimizers[_i]};
    program whole = program_mnist("--model", model_of(_i), common[0], common[1], common[2],
                                  common[3], CUDA, "--lr", "0.01", "--epochs", "3", "--limit", "40",
                                  "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(whole, 0);
    for (int epochs = 1; epochs <= 3; epochs += 2) {
        program part = program_mnist("--model", model_of(_i), common[0], common[1], common[2],
                                     common[3], CUDA, "--lr", "0.01", "--limit", "40", "--run-dir",
                                     test_folder_path("many"), "--epochs", epochs == 1 ? "1" : "3",
                                     epochs == 1 ? "--no-resume" : "--resume", NULL);
        ASSERT_EXIT(part, 0);
        program_close(&part);
    }
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&whole);
}
END_TEST

/* A factor is rounded to 2^-11 (tf32, fp16) or 2^-9 (bf16) of its size. The logits of these short
 * runs stay below 3, sums of rounded products err less than one of them, and the loss follows the
 * logits: 3 * 2^-9 = 0.006 a layer and way, six of them in the worst order 0.04. */
START_TEST(mixed_precision_stays_near)
{
    static const char *const precisions[][2] = {
        {"--tf32", "--quiet"}, {"--amp", "bf16"}, {"--amp", "fp16"}};
    const char *const *flags = precisions[_i / 2];
    program mixed = program_mnist("--model", model_of(_i), UNTESTED, CUDA, flags[0], flags[1],
                                  "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(mixed, 0);
    program full = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--run-dir",
                                 test_folder_path("one"), NULL);
    ASSERT_EXIT(full, 0);
    double off = training_number(mixed.out, "last_loss") - training_number(full.out, "last_loss");
    ck_assert_msg(fabs(off) < 0.04, "%s %s: the loss differs by %g", flags[0], flags[1], off);
    ck_assert_msg(model_file_difference(test_folder_path("many"), test_folder_path("one")) > 0,
                  "%s %s changes no bit: it did not arrive", flags[0], flags[1]);
    program_close(&mixed);
    program_close(&full);
}
END_TEST

START_TEST(accumulation_equals_a_larger_batch)
{
    program parts = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--accum", "3",
                                  "--batch-size", "8", "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(parts, 0);
    program whole = program_mnist("--model", model_of(_i), UNTESTED, CUDA, "--batch-size", "24",
                                  "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(whole, 0);
    double off = model_file_parity(model_of(_i), test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "weights differ by %g", off);
    program_close(&parts);
    program_close(&whole);
}
END_TEST

START_TEST(a_saved_model_is_evaluated)
{
    program train = program_mnist("--model", model_of(_i), TRAINING_96, CUDA, "--run-dir",
                                  test_folder_path("one"), NULL);
    ASSERT_EXIT(train, 0);
    const char *devices[] = {"cuda", "cpu"};
    for (int d = 0; d < 2; d++) {
        program eval = program_mnist("eval", "--checkpoint", test_folder_path("one"), "--device",
                                     devices[d], "--json", NULL);
        ASSERT_EXIT(eval, 0);
        if (d == 0)
            ck_assert_double_eq(training_number(eval.out, "test_acc"),
                                training_number(train.out, "test_acc"));
        else
            assert_same_accuracy(&eval, &train);
        program_close(&eval);
    }
    program_close(&train);
}
END_TEST

enum { MAX_FLAGS = 8 };

/* The first kernel behind a collective that hangs hangs in the driver, where nobody can be asked to
 * leave. */
START_TEST(a_rank_that_hangs_in_the_driver_ends)
{
    setenv("MNIST_DDP_EMULATED_LAZY", "1", 1);
    program p =
        program_mnist("--model", "mlp", CUDA, TRAINING_96, "--nproc-per-node", "2", "--backend",
                      "nccl", "--timeout", "2", "--inject", "stop:rank=1,step=1", NULL);
    unsetenv("MNIST_DDP_EMULATED_LAZY");
    ASSERT_EXIT(p, 110);
    ASSERT_FACTS(p.err, "rank 1", "stopped", "never entered");
    ASSERT_FACTS(p.err, "[rank 0]", "driver");
    program_close(&p);
}
END_TEST

static const struct {
    const char *flags[MAX_FLAGS], *facts[3];
} REFUSALS[] = {
    {{CUDA, "--devices", "99"}, {"99", "GPU"}},
    {{CUDA, "--nproc-per-node", "2", "--devices", "0", "--backend", "nccl"}, {"--backend", "GPU"}},
    {{"--device", "cpu", "--amp", "fp16"}, {"fp16", "--device=cuda"}},
    {{CUDA, "--comm-hook=powersgd"}, {"--device=cpu", "--comm-hook=bf16"}},
    {{"--device", "cpu", "--nproc-per-node", "2", "--backend", "nccl"}, {"--device=cuda", "shm"}},
};

START_TEST(refusals_say_what_to_type)
{
    const char *const *f = REFUSALS[_i].flags; /* the first NULL among them is the last argument */
    program p = program_mnist("--model", "mlp", TRAINING_96, f[0], f[1], f[2], f[3], f[4], f[5],
                              f[6], f[7], NULL);
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS_LISTED(p.err, REFUSALS[_i].facts);
    program_close(&p);
}
END_TEST

/* Cases 0 to n - 1, but for those of which missing(i) says why not; NULL: of none; sanitized, which
 * costs ten times as long, the mlp's and one of the cnn's. */
static void add_cases(TCase *tc, const TTest *test, int n, const char *(*missing)(int i))
{
#ifdef SANITIZED
    const bool all = false;
#else
    const bool all = true;
#endif
    for (int i = 0; i < n; i++)
        if (all || i % 2 == 0 || i == n - 1)
            suite_add(tc, test, i, missing != NULL ? missing(i) : NULL);
}

/* CUDA_VISIBLE_DEVICES=0,3 and --device 0,3, as the notes type it: the machine's numbers. Other
 * numbers are CUDA's own, and what is not there is said before any rank starts. */
START_TEST(devices_by_the_machines_numbers)
{
    static const struct {
        const char *device, *facts[4]; /* the last is NULL */
        int code;
    } lines[] = {{"0,3", {"0,3", "the machine's numbers", "CUDA_VISIBLE_DEVICES"}, 0},
                 {"1,0", {"emulated"}, 0},
                 {"3,0", {"error", "no GPU 3", "CUDA_VISIBLE_DEVICES=0,3"}, 64},
                 {"2", {"error", "no GPU 2", "CUDA_VISIBLE_DEVICES=0,3"}, 64},
                 {"gpu", {"error", "cudaGetDeviceCount"}, 70}};
    setenv("CUDA_VISIBLE_DEVICES", lines[_i].code == 70 ? "" : "0,3", 1);
    program p = program_run_with(NULL, WORDS(TRAINING_SMALL, "--nproc_per_node=2", "--device",
                                             lines[_i].device, "--no-save-model"));
    unsetenv("CUDA_VISIBLE_DEVICES");
    ASSERT_EXIT(p, lines[_i].code);
    ASSERT_FACTS_LISTED(p.err, lines[_i].facts);
    const char *first = strstr(p.err, "the machine's numbers");
    ck_assert_ptr_eq(first == NULL ? NULL : strstr(first + 1, "the machine's numbers"), NULL);
    ck_assert_msg(strstr(p.err, "[rank") == NULL || lines[_i].code == 0, "a rank: %s", p.err);
    program_close(&p);
}
END_TEST

/* In one process, of whatever thread, and though the others' errors and closing come after it. */
START_TEST(the_call_that_failed_is_named)
{
    setenv("MNIST_DDP_EMULATED_FAIL", "ncclSend:2:3", 1);
    program p = program_mnist("--device", "cuda", "--model", "mlp", "--mode=dp", "--devices=0,1",
                              "--limit", "40", "--batch-size", "8", "--epochs", "1", "--quiet",
                              "--run-dir", test_folder_path("one"), NULL);
    unsetenv("MNIST_DDP_EMULATED_FAIL");
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "send: internal error (3)");
    ck_assert_msg(strstr(p.err, "is broken since") == NULL, "%s", p.err);
    program_close(&p);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    gpus = cuda_gpus();
    test_folder_open();
    Suite *suite = suite_create("cuda");
    TCase *runs = suite_case(suite, "runs", 240);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    add_cases(runs, cuda_equals_cpu, 2, NULL);
    add_cases(runs, graph_keeps_every_bit, 8, NULL);
    add_cases(runs, ranks_equal_one_process, 2 * N_SPREADS, missing_for_spread);
    add_cases(runs, resumed_run_ends_with_the_same_bits, 2, NULL);
    add_cases(runs, mixed_precision_stays_near, 6, NULL);
    add_cases(runs, accumulation_equals_a_larger_batch, 2, NULL);
    add_cases(runs, a_saved_model_is_evaluated, 2, NULL);
    tcase_add_test(runs, the_result_names_what_libraries_chose);
    suite_add(runs, a_rank_that_hangs_in_the_driver_ends, 0,
              cuda_is_real() ? "whether a launch waits is the driver's affair" : NULL);
    for (int i = 0; i < 5; i++)
        suite_add(runs, devices_by_the_machines_numbers, i,
                  cuda_is_real() ? "which GPUs there are is the machine's affair" : NULL);
    add_cases(runs, refusals_say_what_to_type, sizeof REFUSALS / sizeof REFUSALS[0], NULL);
    TCase *apart = suite_case(suite, "apart", 240);
    tcase_add_checked_fixture(apart, test_folder_clean, NULL);
    add_cases(apart, ranks_apart_equal_the_cpus, 2, missing_for_two);
    TCase *modes = suite_case(suite, "modes", 240);
    tcase_add_checked_fixture(modes, test_folder_clean, NULL);
    add_cases(modes, modes_equal_one_process, 2 * N_MODES, missing_for_mode);
    add_cases(modes, phases_come_from_the_stream, 3, missing_for_phases);
    TCase *failures = suite_case(suite, "failures", 120);
    tcase_add_checked_fixture(failures, test_folder_clean, NULL);
    suite_add_all(failures, the_call_that_failed_is_named, 3,
                  cuda_is_real() ? "a real device cannot be told to fail" : NULL);
    return test_folder_close(suite_run(suite));
}
