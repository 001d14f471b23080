/* Elastic jobs on GPUs: what a change of rounds makes, and that a rank that is lost while graphs
 * are replayed leaves no trace in the weights. The test is the agent. */
#include "base/clock.h"
#include "tests/app/support/elastic_agent.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"

#include <signal.h>

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

/* A round of `n` ranks, the last of which stops itself. The others leave one by one, with some time
 * before each, the first rank at last. Then the one that is stopped is killed. */
static void lose_the_last(elastic_agent *agent, int n)
{
    elastic_agent_begin(agent, RANKS, n);
    program_await(&agent->ranks[n - 1].p, "SIGSTOP");
    for (int i = n - 2; i >= 0; i--) {
        clock_sleep_ms(200);
        elastic_agent_say(agent, i, ELASTIC_LEAVE);
        elastic_agent_await_left(agent, i);
    }
    kill(agent->ranks[n - 1].p.pid, SIGKILL);
    elastic_agent_await_end(agent, n - 1);
}

/* Two ranks train two epochs in so many rounds. */
static void train_in_rounds(const char *const *flags, int rounds)
{
    elastic_agent agent;
    test_folder_remove("part");
    elastic_agent_open(flags, &agent);
    for (int round = 1; round < rounds; round++)
        elastic_agent_pause(&agent, RANKS, 2);
    elastic_agent_end_well(&agent, RANKS, 2);
    elastic_agent_close(&agent);
}

/* What a rank makes in each round, and what once. NCCL's are one communicator, one stream, two
 * pieces of memory of each kind, and all events but those of two readbacks; the graph holds the
 * communicator. */
static const struct {
    const char *call;
    long each_round;
} MADE[] = {{"ncclCommInitRankConfig", 1},
            {"cublasLtCreate", 0},
            {"cublasLtMatmulAlgoGetHeuristic", 0},
            {"cudnnCreate", 0},
            {"cudnnBackendGetAttribute", 0},
            {"cudaStreamCreateWithFlags", 0},
            {"cudaStreamCreateWithPriority", 1},
            {"cudaMalloc", 2},
            {"cudaHostAlloc", 2},
            {"cudaEventCreateWithFlags", 7},
            {"cudaGraphInstantiate", 1}};

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
        ck_assert_int_eq(made[1][i] - made[0][i], 2 * MADE[i].each_round);
}
END_TEST

enum { AHEAD = 1 + 2 * 16 /* a host asks its GPU every 16 steps, and looks as many later */ };

#define THREE ON_GPUS, "--model", "mlp", TRAINING_SGD, "--epochs", "1", "--limit", "216"

/* Three ranks replay graphs when rank 2 is stopped, and all wait in one of its collectives. Rank 1
 * aborts it. Rank 0 gets garbage from that as if it were whole, and may go on for a while; neither
 * takes a step from it, or saves one. Another rank takes the place of rank 2, and the weights show
 * no trace of it all. */
START_TEST(a_lost_rank_leaves_the_bits)
{
    static const int next[] = {0, 1, 3};
    elastic_agent agent;
    program whole = program_run_with(
        NULL, WORDS("train", THREE, "--save-model", "--run-dir", "whole", "--nproc-per-node", "3"));
    ASSERT_EXIT(whole, 0);
    program_close(&whole);
    test_folder_remove("part");
    setenv("MNIST_DDP_EMULATED_NCCL", "garbage", 1);
    elastic_agent_open(WORDS("train", THREE, "--save-model", "--inject", "stop:rank=2,step=34"),
                       &agent);
    lose_the_last(&agent, 3);
    printf("%d steps of 36 were taken\n", (int)agent.ranks[0].step);
    ck_assert_int_eq(agent.ranks[0].step, agent.ranks[1].step);
    ck_assert_int_ge(agent.ranks[0].step, 34 - AHEAD);
    ck_assert_int_lt(agent.ranks[0].step, 34);
    elastic_agent_end_well(&agent, next, 3);
    unsetenv("MNIST_DDP_EMULATED_NCCL");
    ck_assert_msg(strstr(agent.ranks[0].p.err, "nan") == NULL, "%s", agent.ranks[0].p.err);
    elastic_agent_close(&agent);
    model_file_assert_same_bits("whole", "part");
}
END_TEST

/* Rank 0 has not yet read the fourth step's loss when the fifth is lost. */
START_TEST(a_lost_rank_takes_no_line)
{
    static const int next[] = {0, 2};
    elastic_agent agent;
    test_folder_remove("part");
    elastic_agent_open(WORDS("train", ON_GPUS, "--model", "mlp", "--epochs", "1", "--limit", "24",
                             "--no-cuda-graph", "--log-interval", "3", "--inject",
                             "stop:rank=1,step=5"),
                       &agent);
    lose_the_last(&agent, 2);
    ck_assert_int_eq(agent.ranks[0].step, 4);
    elastic_agent_end_well(&agent, next, 2);
    elastic_agent_close(&agent);
    ck_assert_int_eq(system("grep -q '\"event\":\"step\",\"step\":4,' part/metrics.jsonl"), 0);
}
END_TEST

/* "train loss 2.3200" of the first epoch's line. */
static void loss_of(const program *p, char out[32])
{
    const char *line = strstr(p->err, "epoch 1/1:");
    ck_assert_msg(line != NULL, "no epoch in: %s", p->err);
    const char *loss = strstr(line, "train loss");
    ck_assert_ptr_nonnull(loss);
    snprintf(out, 32, "%.17s", loss);
}

/* Without learning an epoch's mean loss tells its images: each is counted once. */
START_TEST(a_joining_rank_finds_all_counted)
{
    char want[32], got[32];
    elastic_agent agent;
    const char *const *flags = WORDS("train", ON_GPUS, "--model", "mlp", "--lr", "0", "--epochs",
                                     "1", "--limit", "96", "--no-quiet", "--json");
    test_folder_remove("part");
    program alone = program_run_with(NULL, flags);
    ASSERT_EXIT(alone, 0);
    loss_of(&alone, want);
    program_close(&alone);
    test_folder_remove("part");
    elastic_agent_open(flags, &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    ck_assert_int_eq(agent.ranks[0].step, agent.ranks[1].step);
    ck_assert_int_ge(agent.ranks[0].step, 2);
    ck_assert_int_le(agent.ranks[0].step, AHEAD);
    elastic_agent_end_well(&agent, RANKS, 4);
    loss_of(&agent.ranks[0].p, got);
    ck_assert_str_eq(got, want);
    ASSERT_FACTS(agent.ranks[0].p.err, "world size 2 -> 4");
    elastic_agent_close(&agent);
}
END_TEST

/* All ranks agree to it when nothing is left to do: no round follows, or it would say the result
 * again. */
START_TEST(a_pause_at_the_last_step_ends_the_run)
{
    elastic_agent agent;
    test_folder_remove("part");
    elastic_agent_open(
        WORDS("train", ON_GPUS, "--model", "mlp", "--epochs", "1", "--limit", "16", "--json"),
        &agent);
    elastic_agent_begin_paused(&agent, RANKS, 2);
    elastic_agent_await_good_ends(&agent, RANKS, 2);
    elastic_agent_close(&agent);
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
    tcase_add_test(core, a_lost_rank_leaves_the_bits);
    tcase_add_test(core, a_lost_rank_takes_no_line);
    tcase_add_test(core, a_pause_at_the_last_step_ends_the_run);
    tcase_add_test(core, a_joining_rank_finds_all_counted);
    return test_folder_close(suite_run(suite));
}
