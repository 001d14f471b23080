/* What cannot be run is refused at once, with the code and the words that lead to the cure; and
 * what can be run says no more than it was asked to. */
#include "base/clock.h"
#include "tests/app/support/training.h"

#include <jansson.h>

typedef struct refusal {
    int exit_code;
    const char *flags[6], *facts[6]; /* the last is NULL */
} refusal;

static const refusal refusals[] = {
    {64, {"--bach-size", "4"}, {"error", "--bach-size", "--batch-size"}},
    {64, {"trian"}, {"error", "trian", "did you mean 'train'"}},
    {64, {"--batch-size", "many"}, {"error", "--batch-size", "many"}},
    {64, {"--batch-size", "0"}, {"error", "--batch-size", "0", "1"}},
    {64, {"--config", "missing.yaml"}, {"error", "missing.yaml", "No such file"}},
    {64, {"--config", "value.yaml"}, {"error", "value.yaml:2", "batch-size", "many"}},
    {64, {"--config", "flag.yaml"}, {"error", "flag.yaml:1", "epoch", "epochs"}},
    {64, {"--config", "broken.yaml"}, {"error", "broken.yaml", "YAML"}},
    {64, {"--backend", "nccl", "--device", "cpu"}, {"error", "nccl", "CUDA", "shm"}},
    {64, {"--backend", "nccl", "--nproc-per-node", "2"}, {"error", "nccl", "CUDA", "gloo"}},
    {64, {"--backend", "smoke"}, {"error", "smoke", "auto", "shm", "gloo"}},
    {64,
     {"--nnodes=2", "--node_rank=2", "--master_addr=127.0.0.1"},
     {"error", "--node-rank=2", "--nnodes=3"}},
    {64, {"--node_rank=1"}, {"error", "--node-rank=1"}},
    {64, {"--nnodes=2", "--node_rank=1"}, {"error", "--master-addr=ADDRESS"}},
    {64, {"--nnodes=2", "--world_size=3"}, {"error", "--world-size=3", "--nnodes=2"}},
    {64, {"--nnodes=1:2"}, {"error", "--nnodes=1:2", "--nnodes=2"}},
    {64, {"--nproc-per-node", "none"}, {"error", "--nproc-per-node", "none"}},
    {64, {"--nproc-per-node", "gpu"}, {"error", "--nproc-per-node=gpu", "GPU"}},
    {64, {"--global-batch-size", "63", "--nproc-per-node", "2"}, {"error", "63", "2 ranks"}},
    {74, {"eval"}, {"error", "runs", "eval RUN"}},
    {74, {"eval", "--checkpoint", "value.yaml"}, {"error", "value.yaml"}},
    {74, {"--resume", "--run-dir", "empty"}, {"error", "empty", "checkpoint"}},
    {65, {"--data-dir", "nowhere"}, {"error", "nowhere", "No such file"}},
    {65, {"--data-dir", "empty"}, {"error", "empty", "train-images-idx3-ubyte"}},
    {65, {"--data-dir", "foreign"}, {"error", "foreign/train-images-idx3-ubyte", "IDX"}},
    {65, {"--data-dir", "short"}, {"error", "short/t10k-labels-idx1-ubyte", "250"}},
    {65, {"--data-dir", "foreign", "--nproc-per-node", "2"}, {"error", "foreign", "IDX"}},
    {65, {"--data-dir", "foreign", "--nproc-per-node", "2"}, {"error", "foreign", "IDX"}},
};
enum { N_REFUSALS = sizeof refusals / sizeof refusals[0] };

/* What a start of the program takes at least, beside whatever else runs here. */
static double start_s(void)
{
    int64_t start_ns = clock_now_ns();
    program p = program_run_with(NULL, WORDS("version"));
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, 0);
    program_close(&p);
    return took_s;
}

START_TEST(refused_with_code_and_words)
{
    const refusal *r = &refusals[_i];
    const char *const *f = r->flags;
    int64_t start_ns = clock_now_ns();
    program p = program_run_with(NULL, WORDS(f[0], f[1], f[2], f[3], f[4], f[5]));
    double took_s = clock_seconds(clock_now_ns() - start_ns);
    ASSERT_EXIT(p, r->exit_code);
    ck_assert_str_eq(p.out, "");
    ASSERT_FACTS_LISTED(p.err, r->facts);
    /* A start takes 5 ms: some 20 of them are allowed beyond the second. */
    double most_s = took_s < 1 ? 1 : 1 + 20 * start_s();
    ck_assert_msg(took_s < most_s, "it took %g s, want %g s at most", took_s, most_s);
    program_close(&p);
}
END_TEST

/* What no number of ranks could do is one line: no rank is started, and no folder is left. */
static const struct {
    const char *flags[4], *facts[4];
} ONCE[] = {
    {{"--nproc-per-node=3", "--global-batch-size=100"}, {"error", "100", "3 ranks"}},
    {{"--nproc-per-node=2", "--inject=kill:rank=9,step=1"}, {"error", "--inject", "rank 9", "2"}},
};
enum { N_ONCE = sizeof ONCE / sizeof ONCE[0] };

START_TEST(an_impossible_launch_is_one_line)
{
    program p = program_run_with(NULL, ONCE[_i].flags);
    ASSERT_EXIT(p, 64);
    const char *end = strchr(p.err, '\n');
    ck_assert_msg(end != NULL && end[1] == '\0', "not one line: %s", p.err);
    for (size_t i = 0; i < 4 && ONCE[_i].facts[i] != NULL; i++)
        ASSERT_FACTS(p.err, ONCE[_i].facts[i]);
    program_close(&p);
}
END_TEST

/* What is given and does nothing is named, once. */
static const struct {
    const char *flags[4], *fact;
} UNUSED[] = {
    {{"--mode=dp", "--no-overlap", "--replicas=2"}, "--overlap is not used"},
    {{"--mode=dp", "--bucket-cap-mb=3", "--replicas=2"}, "--bucket-cap-mb is not used"},
    {{"--nproc-per-node=2", "--log-line-prefix-template=x"}, "needs --tee=SPEC"},
    {{"--nproc-per-node=2", "--keep=3"}, "--keep is not used"},
    {{"--powersgd-rank=2"}, "needs --comm-hook=powersgd"},
    {{"--outer-momentum=0.9"}, "needs --sync-every=2"},
};
enum { N_UNUSED = sizeof UNUSED / sizeof UNUSED[0] };

START_TEST(what_is_not_used_is_said_once)
{
    const char *const *f = UNUSED[_i].flags;
    program p =
        program_run_with(NULL, WORDS("--model=mlp", "--limit=64", "--dry-run", f[0], f[1], f[2]));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, UNUSED[_i].fact);
    ck_assert_int_eq(facts_count(p.err, "is not used"), 1);
    program_close(&p);
}
END_TEST

/* Exactly one line, and it is JSON. */
static void assert_one_json_line(const char *text)
{
    json_error_t error;
    const char *end = strchr(text, '\n');
    ck_assert_msg(end != NULL && end[1] == '\0', "not one line: '%s'", text);
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(json_is_object(object), "%s in: %s", error.text, text);
    json_decref(object);
}

START_TEST(quiet_json_is_one_line)
{
    bool single = _i == 0;
    const char *backend = single ? "auto" : training_backend;
    program p = program_run_with(NULL, WORDS(TRAINING_SMALL, "--quiet", "--nproc-per-node",
                                             single ? "1" : "2", "--backend", backend, "--run-dir",
                                             program_flag("quiet", _i)));
    ASSERT_EXIT(p, 0);
    assert_one_json_line(p.out);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
}
END_TEST

static void write_text(const char *name, const char *text)
{
    test_folder_require(file_write(test_folder_path(name), &(file_part){text, strlen(text)}, 1));
}

/* A data folder like the test folder's, but for one file. */
static void spoil_data(const char *folder, const char *command)
{
    char line[256];
    snprintf(line, sizeof line, "cp -r data %s && cd %s && %s", folder, folder, command);
    if (system(line) != 0)
        test_folder_require(FAIL(STATUS_IO, "%s", line));
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    write_text("value.yaml", "epochs: 1\nbatch-size: many\n");
    write_text("flag.yaml", "epoch: 1\n");
    write_text("broken.yaml", "epochs: 1\nmodel: \"mlp\n");
    test_folder_require(file_make_folders(test_folder_path("empty")));
    spoil_data("foreign", "echo hello there, this is no data set >train-images-idx3-ubyte");
    spoil_data("short", "truncate -s -7 t10k-labels-idx1-ubyte");
    Suite *suite = suite_create("refusals");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    if (!training_is_on_gloo())
        tcase_add_loop_test(runs, refused_with_code_and_words, 0, N_REFUSALS);
    if (!training_is_on_gloo())
        tcase_add_loop_test(runs, an_impossible_launch_is_one_line, 0, N_ONCE);
    if (!training_is_on_gloo())
        tcase_add_loop_test(runs, what_is_not_used_is_said_once, 0, N_UNUSED);
    tcase_add_loop_test(runs, quiet_json_is_one_line, training_is_on_gloo() ? 1 : 0, 2);
    return test_folder_close(suite_run(suite));
}
