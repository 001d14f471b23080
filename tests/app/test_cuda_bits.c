/* The same command leaves the same bits over nccl, at any number of ranks: again, kernel by kernel
 * and resumed. NCCL's NVLS keeps no such promise, so it is off unless asked for; the emulated one
 * sums in another order on every call. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"

#include <jansson.h>

#define BITS \
    "--model", "mlp", TRAINING_SGD, "--device", "cuda", "--backend", "nccl", "--eval-every", "0", \
        "--batch-size", "8", "--json", "--quiet", "--threads", "1"

static const int WORLDS[] = {2, 4, 8};
enum { N_WORLDS = sizeof WORLDS / sizeof WORLDS[0] };

/* Two epochs of two steps: the second and later ones are replayed. Closed by the caller. */
static program train(int ranks, const char *folder, const char *epochs, const char *flag)
{
    char world[8], limit[8];
    snprintf(world, sizeof world, "%d", ranks);
    snprintf(limit, sizeof limit, "%d", ranks * 16);
    program p = program_mnist(BITS, "--nproc-per-node", world, "--limit", limit, "--epochs", epochs,
                              "--run-dir", test_folder_path(folder), flag, NULL);
    ASSERT_EXIT(p, 0);
    return p;
}

static void train_only(int ranks, const char *folder, const char *epochs, const char *flag)
{
    program p = train(ranks, folder, epochs, flag);
    program_close(&p);
}

START_TEST(same_command_same_bits)
{
    int ranks = WORLDS[_i];
    train_only(ranks, "one", "2", NULL);
    train_only(ranks, "many", "2", NULL);
    model_file_assert_same_bits(test_folder_path("one"), test_folder_path("many"));
    test_folder_remove("many");
    train_only(ranks, "many", "2", "--no-cuda-graph");
    model_file_assert_same_bits(test_folder_path("one"), test_folder_path("many"));
    test_folder_remove("many");
    train_only(ranks, "many", "1", NULL);
    train_only(ranks, "many", "2", "--resume");
    model_file_assert_same_bits(test_folder_path("one"), test_folder_path("many"));
}
END_TEST

static bool same_bits(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *a_data = model_file_bytes(a, &a_bytes), *b_data = model_file_bytes(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0;
    free(a_data);
    free(b_data);
    return same;
}

/* What the flag costs; that all ranks of a run agree even then is dist.nccl's. */
START_TEST(nvls_is_used_where_asked_for)
{
    program p = train(4, "one", "2", "--nccl-nvls");
    ASSERT_FACTS(p.out, "\"nccl\":{\"version\":\"2.28.9\",\"algo\":null,\"proto\":null,"
                        "\"nvls\":true}");
    program_close(&p);
    train_only(4, "many", "2", "--nccl-nvls");
    ck_assert(!same_bits(test_folder_path("one"), test_folder_path("many")));
}
END_TEST

/* Two ranks over nccl train as over shm, which sums in float32 and rounds once: a sum of two 16-bit
 * numbers is no other. */
static const struct {
    const char *ranks, *hook, *flags[3];
} HOOKS[] = {
    {"2", "bf16", {"--model=mlp"}},
    {"2", "fp16", {"--model=cnn"}},
    {"2", "bf16", {"--amp=bf16", "--accum=2"}},
    {"2", "fp16", {"--amp=fp16", "--clip-grad-norm=0.5"}},
    {"2", "bf16", {"--amp=fp16", "--bucket-cap-mb=0.5", "--no-overlap"}},
    {"3", "bf16", {"--amp=bf16"}},
};
enum { N_HOOKS = sizeof HOOKS / sizeof HOOKS[0] };

static double train_hooked(int i, const char *folder, const char *hook, const char *how)
{
    const char *const *flags = HOOKS[i].flags;
    test_folder_remove(folder);
    program p = program_mnist(BITS, "--nproc-per-node", HOOKS[i].ranks, "--limit", "48", "--epochs",
                              "2", "--run-dir", test_folder_path(folder), "--comm-hook", hook, how,
                              flags[0], flags[1], flags[2], NULL);
    ASSERT_EXIT(p, 0);
    json_t *line = json_loads(p.out, 0, NULL);
    double sent = json_number_value(json_object_get(json_object_get(line, "bytes"), "sent"));
    ck_assert_int_eq(json_is_true(json_object_get(line, "graph")), !strcmp(how, "--cuda-graph"));
    json_decref(line);
    program_close(&p);
    return sent;
}

START_TEST(hooks_keep_bits)
{
    const char *hook = HOOKS[_i].hook, *one = test_folder_path("one");
    (void)train_hooked(_i, "one", hook, "--cuda-graph");
    double half = train_hooked(_i, "many", hook, "--no-cuda-graph");
    model_file_assert_same_bits(one, test_folder_path("many"));
    if (HOOKS[_i].ranks[0] == '2') {
        (void)train_hooked(_i, "many", hook, "--backend=shm");
        model_file_assert_same_bits(one, test_folder_path("many"));
    }
    if (_i == 0) {
        double all = train_hooked(_i, "many", "none", "--no-cuda-graph");
        ck_assert(!same_bits(one, test_folder_path("many")));
        ck_assert_double_eq_tol(half, all / 2, 1);
    }
}
END_TEST

static const struct {
    const char *name, *value, *flag, *member;
} SETTINGS[] = {
    {"NCCL_ALGO", NULL, NULL, "\"algo\":null,\"proto\":null,\"nvls\":false"},
    {"NCCL_ALGO", "Ring", NULL, "\"algo\":\"Ring\",\"proto\":null,\"nvls\":false"},
    {"NCCL_ALGO", "Ring,NVLS,NVLSTree", NULL, "\"nvls\":true"},
    {"NCCL_ALGO", "allreduce:ring", NULL, "\"nvls\":null"},
    {"NCCL_PROTO", "LL", NULL, "\"algo\":null,\"proto\":\"LL\""},
    {"NCCL_NVLS_ENABLE", "1", NULL, "\"nvls\":true"},
    {"NCCL_NVLS_ENABLE", "0", "--nccl-nvls", "\"algo\":null,\"proto\":null,\"nvls\":false"},
    {"NCCL_CONF_FILE", "nccl.conf", NULL, "\"algo\":\"Tree\",\"proto\":\"Simple\",\"nvls\":false"},
};
enum { N_SETTINGS = sizeof SETTINGS / sizeof SETTINGS[0] };

/* Also those of a file, which NCCL itself puts into the environment. */
START_TEST(what_the_user_sets_stays)
{
    static const char CONF[] = "# ours\nNCCL_ALGO=Tree\nNCCL_PROTO=Simple\n";
    const file_part conf = {CONF, sizeof CONF - 1};
    ck_assert_int_eq(file_write("nccl.conf", &conf, 1), STATUS_OK);
    if (SETTINGS[_i].value != NULL)
        setenv(SETTINGS[_i].name, SETTINGS[_i].value, 1);
    program p = train(2, "one", "1", SETTINGS[_i].flag);
    ASSERT_FACTS(p.out, SETTINGS[_i].member);
    unsetenv(SETTINGS[_i].name);
    program_close(&p);
}
END_TEST

START_TEST(an_unknown_algorithm_is_an_error)
{
    setenv("NCCL_ALGO", "^NVLZ", 1);
    program p = program_mnist(BITS, "--nproc-per-node", "2", "--limit", "32", "--epochs", "1",
                              "--run-dir", test_folder_path("one"), NULL);
    unsetenv("NCCL_ALGO");
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "NVLZ");
    program_close(&p);
}
END_TEST

START_TEST(all_reduce_bench_tells_too)
{
    program p = program_mnist("bench", "all-reduce", "--nproc-per-node", "2", "--device", "cuda",
                              "--backend", "nccl", "-b", "8", "-e", "8", "-n", "1", "-w", "0",
                              "--json", "--quiet", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "\"algo\":null,\"proto\":null,\"nvls\":false");
    program_close(&p);
}
END_TEST

static void assert_one_line(const char *text)
{
    json_t *object = json_loads(text, 0, NULL);
    ck_assert_msg(object != NULL, "no JSON: %s", text);
    json_decref(object);
}

/* NCCL's own place for it is stdout. */
START_TEST(nccls_log_stays_out_of_the_result)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t size_bytes = 0;
    setenv("NCCL_DEBUG", "INFO", 1);
    program p = train(2, "one", "1", NULL); /* ranks whose stderr is a pipe */
    assert_one_line(p.out);
    ASSERT_FACTS(p.err, "NCCL INFO");
    program_close(&p);
    test_folder_remove("one");
    p = program_mnist(BITS, "--mode=dp", "--devices=0,1", "--limit", "16", "--epochs", "1",
                      "--run-dir", test_folder_path("one"), NULL); /* and a file */
    unsetenv("NCCL_DEBUG");
    ASSERT_EXIT(p, 0);
    assert_one_line(p.out);
    snprintf(path, sizeof path, "%s.nccl.%d", p.err_path, (int)p.pid);
    ck_assert_int_eq(file_read(path, 1 << 20, &text, &size_bytes), STATUS_OK);
    ASSERT_FACTS(text, "NCCL INFO");
    ck_assert_int_eq(unlink(path), 0);
    free(text);
    program_close(&p);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    unsetenv("NCCL_ALGO");
    unsetenv("NCCL_CONF_FILE");
    int gpus = cuda_gpus();
    const char *two = gpus < 2 ? "two ranks need a GPU each" : NULL;
    test_folder_open();
    Suite *suite = suite_create("cuda_bits");
    TCase *bits = suite_case(suite, "bits", 240);
    tcase_add_checked_fixture(bits, test_folder_clean, NULL);
    for (int i = 0; i < N_WORLDS; i++)
        suite_add(bits, same_command_same_bits, i,
                  gpus < WORLDS[i] ? "each rank needs a GPU" : NULL);
    suite_add(bits, nvls_is_used_where_asked_for, 0,
              cuda_is_real() ? "a driver may have made it deterministic" : NULL);
    for (int i = 0; i < N_SETTINGS; i++)
        suite_add(bits, what_the_user_sets_stays, i, two);
    for (int i = 0; i < N_HOOKS; i++)
        suite_add(bits, hooks_keep_bits, i, gpus < 3 ? "each rank needs a GPU" : NULL);
    suite_add(bits, an_unknown_algorithm_is_an_error, 0, two);
    suite_add(bits, all_reduce_bench_tells_too, 0, two);
    suite_add(bits, nccls_log_stays_out_of_the_result, 0, two);
    return test_folder_close(suite_run(suite));
}
