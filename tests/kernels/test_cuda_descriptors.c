/* What the cuda device asks of cuDNN, put to the real library, which answers most of it without a
 * GPU: whether the graphs of convolutions are right, and, for a GPU described by its properties,
 * which engines there are for them and what they need. */
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>

#ifndef HAVE_CUDNN

int main(void)
{
    printf("SKIP: built without cuDNN\n");
    return TEST_SKIPPED;
}

#else

#include "base/clock.h"
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/cuda_state.h"

#include <stdlib.h>
#include <string.h>

/* cuDNN calls cuBLASLt, which leaks if it fails for lack of a GPU. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcublasLt.so";
}

static const conv2d_shape SHAPES[] = {
    {.channels = 32,
     .height = 26,
     .width = 26,
     .out_channels = 64,
     .kernel = 3}, /* the network's */
    {.channels = 8, .height = 9, .width = 11, .out_channels = 24, .kernel = 3},
};

static const struct {
    precision precision;
    cudnnDataType_t type;
} TYPES[] = {
    {PRECISION_F32, CUDNN_DATA_FLOAT},
    {PRECISION_TF32, CUDNN_DATA_FLOAT},
    {PRECISION_BF16, CUDNN_DATA_BFLOAT16},
    {PRECISION_F16, CUDNN_DATA_HALF},
};

enum {
    SHAPE_COUNT = sizeof SHAPES / sizeof SHAPES[0],
    TYPE_COUNT = sizeof TYPES / sizeof TYPES[0],
    MAX_NOTES = 32,
    TEXT_BYTES = 2048,
};

static const char *const pass_words[] = {"y+b", "y", "dx", "dw"};
static const char *const precision_words[] = {"f32", "tf32", "bf16", "fp16"};

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

START_TEST(graphs_are_accepted)
{
    static const int batches[] = {1, 7, 64, 4096};
    for (int s = 0; s < SHAPE_COUNT; s++)
        for (int t = 1; t < TYPE_COUNT; t++) /* f32 and tf32 have the same graphs */
            for (int pass = 0; pass < CONV_PASSES; pass++)
                for (int b = 0; b < 4; b++) {
                    conv_graph graph = {.graph = NULL};
                    const conv_work work = {.shape = SHAPES[s],
                                            .type = TYPES[t].type,
                                            .pass = (conv_pass)pass,
                                            .n = batches[b]};
                    ok(conv_graph_init(&work, NULL, &graph));
                    conv_graph_close(&graph);
                }
}
END_TEST

/* A kernel that is larger than its input. */
START_TEST(wrong_graphs_are_refused)
{
    const conv2d_shape wrong = {
        .channels = 8, .height = 4, .width = 4, .out_channels = 8, .kernel = 7};
    for (int pass = 0; pass < CONV_PASSES; pass++) {
        conv_graph graph = {.graph = NULL};
        const conv_work work = {
            .shape = wrong, .type = CUDNN_DATA_FLOAT, .pass = (conv_pass)pass, .n = 2};
        ck_assert_int_eq(conv_graph_init(&work, NULL, &graph), STATUS_DEVICE);
        ck_assert_ptr_null(graph.graph);
        ASSERT_FACTS(status_text(), "CUDNN_STATUS_BAD_PARAM");
    }
}
END_TEST

/* Since 9.11 cuDNN takes a GPU's properties in place of the GPU. */
#if CUDNN_VERSION >= 91100

typedef struct gpu {
    const char *name;
    int version, multiprocessors, shared_bytes, l2_bytes; /* compute capability 9.0: 900 */
} gpu;

static const gpu GPUS[] = {
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 40 << 20},
    {"NVIDIA H200", 900, 132, 232448, 60 << 20},
    {"NVIDIA B200", 1000, 148, 232448, 126 << 20},
};

enum { GPU_COUNT = sizeof GPUS / sizeof GPUS[0] };

static cudnnBackendDescriptor_t describe(const gpu *g)
{
    char text[TEXT_BYTES];
    int length = snprintf(
        text, sizeof text,
        "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"totalGlobalMem\":85899345920,\"smClockRateKHz\":1500000,"
        "\"memClockRateKHz\":2000000,\"l2CacheSize\":%d,\"cudaDeviceId\":0,\"deviceVer\":%d,"
        "\"driverVer\":13000,\"deviceName\":\"%s\"}",
        g->multiprocessors, g->shared_bytes, g->l2_bytes, g->version, g->name);
    const conv_attribute attribute = {CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                      length, text};
    cudnnBackendDescriptor_t properties = NULL;
    ok(conv_descriptor_make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &attribute, 1, &properties));
    return properties;
}

/* Bits of the numerical notes of the engine behind a choice. */
static unsigned notes_of(const conv_engine *e, int64_t *index)
{
    cudnnBackendDescriptor_t engine = NULL;
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0;
    unsigned bits = 0;
    ok(CUDNN_CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
    ok(CUDNN_CALL(cudnnBackendGetAttribute(e->config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine)));
    ok(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
                                           1, &count, index)));
    ok(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                           CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &count, notes)));
    for (int64_t i = 0; i < count; i++)
        bits |= 1u << notes[i];
    conv_descriptor_destroy(engine);
    return bits;
}

/* What an engine offered for this precision never does. */
static void check_promises(precision wanted, unsigned notes)
{
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                     1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (wanted == PRECISION_F32)
        never |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    ck_assert_msg((notes & never) == 0, "notes %#x, never %#x", notes, never);
}

/* A choice for one problem: of an engine that keeps the promises, or of pieces of at least `least`
 * images with such a one. */
static void choose(const conv_problem *problem, precision wanted, int least)
{
    conv_problem p = *problem;
    conv_choice choice = {0};
    ok(conv_choose(&p, &choice));
    if (choice.piece > 0) {
        ck_assert_int_ge(choice.piece, least);
        ck_assert_int_lt(choice.piece, p.work.n);
        p.work.n = choice.piece;
        ok(conv_choose(&p, &choice));
        ck_assert_int_eq(choice.piece, 0);
    }
    ck_assert_ptr_nonnull(choice.engine.plan); /* also with the bias: without compiling anything */
    int64_t index = -1;
    unsigned notes = notes_of(&choice.engine, &index);
    check_promises(wanted, notes);
    if (wanted != PRECISION_F32)
        ck_assert(notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    ck_assert_uint_le(choice.engine.workspace_bytes, p.workspace_bytes);
    printf("    %-4s %-3s batch %4d in pieces of %4d: engine %2d, workspace %9zu\n",
           precision_words[wanted], pass_words[p.work.pass], problem->work.n, p.work.n, (int)index,
           choice.engine.workspace_bytes);
    conv_engine_close(&choice.engine);
}

/* Plans are made by the real heuristics, for GPUs that are not here. */
START_TEST(engines_are_found)
{
    static const int batches[] = {7, 64, 512, 1000, 4096};
    static const struct {
        size_t bytes;
        int least; /* images of a piece */
    } workspaces[] = {{CUDA_WORKSPACE_BYTES, 16}, {CUDA_LARGE_CONV_WORKSPACE_BYTES, 1024}};
    cudnnBackendDescriptor_t properties = describe(&GPUS[_i / 2]);
    printf("%s, cuDNN %zu, workspace of %zu MiB\n", GPUS[_i / 2].name, cudnnGetVersion(),
           workspaces[_i % 2].bytes >> 20);
    for (int t = 0; t < TYPE_COUNT; t++)
        for (int pass = 0; pass < CONV_PASSES; pass++)
            for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
                const conv_problem problem = {
                    .work = {.shape = SHAPES[0],
                             .type = TYPES[t].type,
                             .pass = (conv_pass)pass,
                             .n = batches[b]},
                    .target = {{CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                &properties},
                               {CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                1, &properties}},
                    .tensor_cores = TYPES[t].precision != PRECISION_F32,
                    .workspace_bytes = workspaces[_i % 2].bytes,
                    .tries = 1,
                };
                choose(&problem, TYPES[t].precision, workspaces[_i % 2].least);
            }
    conv_descriptor_destroy(properties);
}
END_TEST

/* A row for each engine that would be tried, in this order: with argument "table". Planes: the
 * tensors as NCHW, which the device does not use. */
static void print_engines(const gpu *g, cudnnBackendDescriptor_t properties, int type,
                          const conv_work *work, int most)
{
    const conv_target target = {
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties},
        {CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties}};
    conv_graph graph = {.graph = NULL};
    ok(conv_graph_init(work, NULL, &graph));
    conv_search search = {.target = &target,
                          .graph = &graph,
                          .tensor_cores = TYPES[type].precision != PRECISION_F32,
                          .compile = true,
                          .many = most > 1};
    for (int i = 0; i < most; i++) {
        conv_engine engine = {0};
        char notes[160];
        bool found = false;
        int64_t begun = clock_now_ns();
        ok(conv_engine_next(&search, &engine, &found));
        if (!found)
            break;
        conv_engine_write_notes(&engine, notes, sizeof notes);
        printf("| sm_%d | %s | %s | %s | %d | %d | %lld | %s | %.1f | %.1f |\n", g->version / 10,
               precision_words[TYPES[type].precision], work->planes ? "NCHW" : "NHWC",
               pass_words[work->pass], work->n, i + 1, (long long)engine.index, notes,
               (double)engine.workspace_bytes / 1024 / work->n,
               (double)(clock_now_ns() - begun) / 1e6);
        conv_engine_close(&engine);
    }
    conv_engine_end(&search);
    conv_graph_close(&graph);
}

static int table_choices; /* what the argument says */

START_TEST(table)
{
    static const int batches[] = {64, 512, 4096};
    printf(
        "| GPU | precision | layout | pass | batch | choice | engine | notes | workspace, KiB an "
        "image | ms to plan |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int g = 0; g < GPU_COUNT; g++) {
        cudnnBackendDescriptor_t properties = describe(&GPUS[g]);
        for (int t = 0; t < TYPE_COUNT; t++)
            for (int pass = 0; pass < CONV_PASSES; pass++)
                for (int b = 0; b < 3; b++)
                    for (int planes = 0; planes < 2; planes++) {
                        const conv_work work = {.shape = SHAPES[0],
                                                .type = TYPES[t].type,
                                                .pass = (conv_pass)pass,
                                                .n = batches[b],
                                                .planes = planes == 1};
                        print_engines(&GPUS[g], properties, t, &work, table_choices);
                    }
        conv_descriptor_destroy(properties);
    }
}
END_TEST

#endif

/* "table [N]": no test, but what cuDNN offers: the first N engines for each of the network's
 * passes.
 */
int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    Suite *suite = suite_create("cuda_descriptors");
    TCase *core =
        suite_case(suite, "core", 120); /* cuDNN's libraries are half a gigabyte to load */
    (void)argc, (void)argv;
#if CUDNN_VERSION >= 91100
    if (argc > 1 && strcmp(argv[1], "table") == 0) {
        table_choices = argc > 2 ? atoi(argv[2]) : 1;
        tcase_add_test(core, table);
        return suite_run(suite);
    }
#endif
    tcase_add_test(core, graphs_are_accepted);
    tcase_add_test(core, wrong_graphs_are_refused);
#if CUDNN_VERSION >= 91100
    tcase_add_loop_test(core, engines_are_found, 0, 2 * GPU_COUNT);
#endif
    return suite_run(suite);
}

#endif
