/* What a training step costs on an accelerator beside its arithmetic: nodes of its graph, launches,
 * waits of the host. Counted on the emulated device, exactly, as the difference between two runs of
 * which one is some steps longer. */
#include "tests/app/support/elastic_agent.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"

enum { WARM_STEPS = 2 }; /* of the shorter run: one kernel by kernel, one recorded and replayed */

/* Of the longer run's further steps, over all ranks. */
typedef struct counts {
    long kernels, libraries, collectives, copies; /* nodes of graphs, by kind; fills are copies */
    long launches;                                /* kernels, copies and graphs from streams */
    long events;                                  /* recorded and waited for by streams */
    long waits;                                   /* of the host for an event, */
    long drains;                                  /* and for a stream: nothing runs then */
    long threads;                                 /* that NCCL made to enqueue something */
} counts;

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void add_node(counts *c, const char *name, long count)
{
    if (begins(name, "cublas") || begins(name, "cudnn"))
        c->libraries += count;
    else if (begins(name, "nccl"))
        c->collectives += count;
    else if (begins(name, "cudaMem"))
        c->copies += count;
    else
        c->kernels += count;
}

/* Adds what the processes of a run have left in the file, `times` over. */
static void add_counts(counts *c, const char *path, long times)
{
    char *text = NULL, *rest = NULL, where[16], name[128];
    size_t size_bytes = 0;
    long count;
    ck_assert_int_eq(file_read(path, 1 << 20, &text, &size_bytes), STATUS_OK);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        ck_assert_int_eq(sscanf(line, "%15s %ld %127[^\n]", where, &count, name), 3);
        count *= times;
        if (strcmp(where, "graph") == 0)
            add_node(c, name, count);
        else if (strcmp(where, "wait") == 0)
            *(strcmp(name, "cudaEventQuery") == 0 ? &c->waits : &c->drains) += count;
        else if (strcmp(where, "thread") == 0)
            c->threads += count;
        else if (begins(name, "cudaEvent") || begins(name, "cudaStreamWait"))
            c->events += count;
        else
            c->launches += count;
    }
    free(text);
}

typedef struct setting {
    const char *model, *amp, *ranks, *graph, *log;
    bool elastic;
} setting;

static void run(const setting *s, const char *const *flags)
{
    static const int who[] = {0, 1};
    elastic_agent agent;
    if (!s->elastic) {
        program p = program_run_with(NULL, flags);
        ASSERT_EXIT(p, 0);
        program_close(&p);
        return;
    }
    elastic_agent_open(flags, &agent);
    elastic_agent_end_well(&agent, who, atoi(s->ranks));
    elastic_agent_close(&agent);
}

static void add_run(counts *c, const setting *s, int epochs, int steps, long times)
{
    char limit[16], until[16];
    const char *path = test_folder_path("work");
    bool quiet = strcmp(s->log, "quiet") == 0;
    snprintf(limit, sizeof limit, "%d", steps * 2 * atoi(s->ranks));
    snprintf(until, sizeof until, "%d", epochs);
    unlink(path);
    test_folder_remove("one many");
    setenv("MNIST_DDP_EMULATED_WORK", path, 1);
    run(s, WORDS("train", "--device", "cuda", "--model", s->model, "--amp", s->amp, "--backend",
                 "nccl", s->graph, "--epochs", until, "--eval-every", "0", "--limit", limit,
                 "--batch-size", "2", "--no-save-model", "--run-dir", test_folder_path("one"),
                 "--log-interval", quiet ? "100000" : s->log, quiet ? "--quiet" : "--no-quiet",
                 s->elastic ? NULL : "--nproc-per-node", s->ranks));
    unsetenv("MNIST_DDP_EMULATED_WORK");
    add_counts(c, path, times);
}

static counts count_steps(const setting *s, int steps)
{
    counts c = {0};
    add_run(&c, s, 1, WARM_STEPS + steps, 1);
    add_run(&c, s, 1, WARM_STEPS, -1);
    printf("%s --amp %s, %s ranks%s, %s, %s, %d steps: nodes: %ld kernels, %ld libraries', "
           "%ld collectives, %ld copies; %ld launches, %ld events, %ld waits, %ld drains\n",
           s->model, s->amp, s->ranks, s->elastic ? ", elastic" : "", s->graph, s->log, steps,
           c.kernels, c.libraries, c.collectives, c.copies, c.launches, c.events, c.waits,
           c.drains);
    fflush(stdout); /* a failure ends the process */
    return c;
}

/* Nodes of a step of one rank. */
static const struct {
    setting s;
    long kernels, libraries, collectives, copies;
} GRAPHS[] = {
    {{"mlp", "off", "1", "--cuda-graph", "quiet", false}, 6, 5, 0, 0},
    {{"mlp", "bf16", "1", "--cuda-graph", "quiet", false}, 7, 5, 0, 0},
    {{"cnn", "off", "1", "--cuda-graph", "quiet", false}, 13, 6, 0, 0},
    {{"cnn", "bf16", "1", "--cuda-graph", "quiet", false}, 15, 6, 0, 0},
    {{"mlp", "off", "2", "--cuda-graph", "quiet", false}, 10, 5, 2, 0},
    {{"cnn", "bf16", "2", "--cuda-graph", "quiet", false}, 19, 6, 2, 0},
    /* an elastic job's steps are committed: two kernels, and a sum with its own two */
    {{"mlp", "off", "1", "--cuda-graph", "quiet", true}, 8, 5, 0, 0},
    {{"mlp", "off", "2", "--cuda-graph", "quiet", true}, 14, 5, 3, 0},
};

/* In 16 steps the host looks once at whether to stop: two copies, two events, one wait; and each
 * step is the kernel that begins it and a graph. */
START_TEST(a_step_is_one_graph)
{
    enum { STEPS = 16 };
    counts c = count_steps(&GRAPHS[_i].s, STEPS);
    long all = STEPS * atol(GRAPHS[_i].s.ranks);
    ck_assert_int_le(c.kernels, GRAPHS[_i].kernels * all);
    ck_assert_int_le(c.libraries, GRAPHS[_i].libraries * all);
    ck_assert_int_eq(c.collectives, GRAPHS[_i].collectives * all);
    ck_assert_int_le(c.copies, GRAPHS[_i].copies * all);
    ck_assert_int_le(c.launches, 2 * all + all / STEPS * 2);
    ck_assert_int_le(c.waits, all / STEPS);
    ck_assert_int_eq(c.drains, 0);
}
END_TEST

/* Nor does the log stop the device: of 80 steps it asks for 8 losses, two copies and an event's
 * wait each, beside the 5 looks at whether to stop. */
START_TEST(the_log_drains_nothing)
{
    enum { STEPS = 80, ASKED = STEPS / 10 + STEPS / 16 };
    const setting s = {"mlp", "off", "1", _i == 0 ? "--cuda-graph" : "--no-cuda-graph",
                       "10",  false};
    counts c = count_steps(&s, STEPS);
    ck_assert_int_eq(c.drains, 0);
    if (_i == 0) {
        ck_assert_int_le(c.launches, 2 * STEPS + 2 * ASKED);
        ck_assert_int_le(c.waits, ASKED);
    }
}
END_TEST

/* Between two epochs the totals are read and set to nothing, and no more: each waits, copies what
 * is pageable, and waits. The next order goes to the device without a wait. */
START_TEST(an_epoch_ends_with_two_drains)
{
    const setting s = {"mlp", "off", "1", "--cuda-graph", "quiet", false};
    counts c = {0};
    add_run(&c, &s, 3, WARM_STEPS, 1);
    add_run(&c, &s, 1, WARM_STEPS, -1);
    printf("two epochs: %ld drains, %ld waits\n", c.drains, c.waits);
    ck_assert_int_le(c.drains, 2 * 2 * 3);
}
END_TEST

static void add_bench(counts *c, const char *kind, const char *iterations, bool graph, long times)
{
    const char *path = test_folder_path("work");
    unlink(path);
    setenv("MNIST_DDP_EMULATED_WORK", path, 1);
    program p = program_mnist("bench", kind, "--nproc-per-node", "2", "--device", "cuda",
                              "--backend", "nccl", "-b", "4K", "-e", "4K", "-n", iterations, "-w",
                              "0", "--json", graph ? NULL : "--no-cuda-graph", NULL);
    unsetenv("MNIST_DDP_EMULATED_WORK");
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, graph ? "\"graph\":true" : "\"graph\":false");
    ASSERT_FACTS(p.err, graph ? "in a CUDA graph" : "each waited for");
    program_close(&p);
    add_counts(c, path, times);
}

/* Where no step is a graph, NCCL makes no thread for each of its collectives. */
START_TEST(eager_steps_make_no_threads)
{
    enum { STEPS = 8 };
    const setting s = {"mlp", "off", "2", "--no-cuda-graph", "quiet", false};
    counts c = count_steps(&s, STEPS);
    ck_assert_int_eq(c.threads, 0);
    ck_assert_int_ge(c.launches, STEPS * 2);
}
END_TEST

/* What the bench times is a graph: however many operations it has, the host launches one. */
START_TEST(a_bench_replays_its_operations)
{
    static const char *const kinds[] = {"all-reduce", "all-gather", "all-to-all"};
    enum { MORE = 20 - 4, WAYS = 2, REPLAYS = 2, RANKS = 2 };
    counts graph = {0}, each = {0};
    add_bench(&graph, kinds[_i], "20", true, 1);
    add_bench(&graph, kinds[_i], "4", true, -1);
    ck_assert_int_eq(graph.launches + graph.events, 0);
    ck_assert_int_eq(graph.threads, MORE * WAYS * RANKS); /* while they are recorded */
    ck_assert_int_eq(graph.collectives, MORE * WAYS * REPLAYS * RANKS);
    add_bench(&each, kinds[_i], "20", false, 1);
    add_bench(&each, kinds[_i], "4", false, -1);
    ck_assert_int_ge(each.launches, MORE * WAYS * RANKS);
    ck_assert_int_eq(each.collectives, 0);
    ck_assert_int_eq(each.threads, 0);
}
END_TEST

int main(void)
{
    if (cuda_is_real()) {
        printf("SKIP: only the emulated device counts\n");
        return TEST_SKIPPED;
    }
    if (!cuda_choose())
        return TEST_SKIPPED;
    test_folder_open();
    Suite *suite = suite_create("cuda_counts");
    TCase *core = suite_case(suite, "core", 60);
#ifdef SANITIZED
    tcase_add_loop_test(core, a_step_is_one_graph, 0, 1);
#else
    tcase_add_loop_test(core, a_step_is_one_graph, 0, sizeof GRAPHS / sizeof GRAPHS[0]);
#endif
    tcase_add_loop_test(core, the_log_drains_nothing, 0, 2);
    tcase_add_test(core, an_epoch_ends_with_two_drains);
    tcase_add_test(core, eager_steps_make_no_threads);
    tcase_add_loop_test(core, a_bench_replays_its_operations, 0, 3);
    return test_folder_close(suite_run(suite));
}
