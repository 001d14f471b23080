/* Elastic jobs on GPUs: what a step and a change of rounds cost beside a static job's, and that a
 * rank that is lost while graphs are replayed leaves no trace in the weights. The test is the agent;
 * the device is the emulated one. */
#include "tests/app/support/elastic_agent.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"

static const int RANKS[ELASTIC_AGENT_RANKS] = {0, 1, 2, 3, 4, 5};

#define ON_GPUS \
    "--device", "cuda", "--backend", "nccl", "--threads", "1", "--seed", "3", "--eval-every", "0", \
        "--batch-size", "2", "--no-save-model", "--quiet", "--timeout", "600", "--run-dir", "part"

/* The calls of that name in all processes, from the file of MNIST_DDP_EMULATED_TRACE. */
static long calls(const char *path, const char *name)
{
    char *text = NULL, *rest = NULL, found[64];
    size_t size_bytes = 0;
    long all = 0, count;
    ck_assert_int_eq(file_read(path, 1 << 20, &text, &size_bytes), STATUS_OK);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (sscanf(line, "%63s %ld", found, &count) == 2 && strcmp(found, name) == 0)
            all += count;
    free(text);
    return all;
}

/* Two ranks train two epochs in so many rounds. */
static void train_in_rounds(const char *const *flags, int rounds)
{
    elastic_agent agent;
    test_folder_remove("part");
    elastic_agent_open(flags, &agent);
    for (int round = 1; round <= rounds; round++) {
        elastic_agent_begin(&agent, RANKS, 2);
        for (int i = 0; i < 2 && round < rounds; i++)
            elastic_agent_say(&agent, i, ELASTIC_PAUSE);
        for (int i = 0; i < 2 && round < rounds; i++)
            elastic_agent_await_left(&agent, i);
    }
    for (int i = 0; i < 2; i++) {
        elastic_agent_await_end(&agent, i);
        ASSERT_EXIT(agent.ranks[i].p, 0);
    }
    elastic_agent_close(&agent);
}

/* What a rank makes in each round, and what once. */
static const struct {
    const char *call;
    long each_round; /* -1: not counted here */
} MADE[] = {{"ncclCommInitRankConfig", 1},
            {"cublasLtCreate", 0},
            {"cublasLtMatmulAlgoGetHeuristic", 0},
            {"cudnnCreate", 0},
            {"cudnnBackendFinalize", 0},
            {"cudaStreamCreateWithFlags", 0},
            {"cudaStreamCreateWithPriority", 1},
            {"cudaMalloc", -1},
            {"cudaHostAlloc", -1},
            {"cudaGraphInstantiate", -1},
            {"cudaMemcpyAsync", -1}};

START_TEST(a_round_makes_nccl_anew)
{
    enum { N = sizeof MADE / sizeof MADE[0] };
    const char *path = test_folder_path("calls");
    long made[2][N];
    setenv("MNIST_DDP_EMULATED_TRACE", path, 1);
    for (int rounds = 1; rounds <= 2; rounds++) {
        unlink(path);
        train_in_rounds(WORDS("train", ON_GPUS, "--model", "cnn", "--epochs", "2", "--limit", "8"),
                        rounds);
        for (int i = 0; i < N; i++)
            made[rounds - 1][i] = calls(path, MADE[i].call);
    }
    unsetenv("MNIST_DDP_EMULATED_TRACE");
    for (int i = 0; i < N; i++)
        printf("%s: %ld, with a second round %ld more\n", MADE[i].call, made[0][i],
               made[1][i] - made[0][i]);
    fflush(stdout); /* a failure ends the process */
    for (int i = 0; i < N; i++)
        if (MADE[i].each_round >= 0)
            ck_assert_int_eq(made[1][i] - made[0][i], 2 * MADE[i].each_round);
}
END_TEST

int main(void)
{
    program_clean_environment();
    if (cuda_is_real()) {
        printf("SKIP: only the emulated device counts\n");
        return TEST_SKIPPED;
    }
    if (!cuda_choose())
        return TEST_SKIPPED;
    test_folder_open();
    Suite *suite = suite_create("cuda_elastic");
    TCase *core = suite_case(suite, "core", 2 * RUN_S);
    tcase_add_test(core, a_round_makes_nccl_anew);
    return test_folder_close(suite_run(suite));
}
