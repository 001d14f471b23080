/* A loss that is not finite: all ranks end the run at the same step, say so, and leave no
 * checkpoint of it. */
#include "base/file.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/port.h"

#include <jansson.h>
#include <math.h>

enum { DIVERGED = 76, STEPS = 10 };

/* Its weights grow until a product overflows, in the fourth step or so of the ten of an epoch. */
#define WILD \
    "train", "--model", "mlp", "--optimizer", "sgd", "--lr", "10000", "--limit", "160", \
        "--epochs", "2", "--threads", "1", "--run-dir", "run"

static const char *const SPREADS[][4] = {
    {"--batch-size=16", NULL},
    {"--batch-size=8", "--nproc-per-node=2", NULL},
    {"--batch-size=8", "--nproc-per-node=2", "--mode=ps", NULL},
    {"--batch-size=16", "--mode=dp", "--replicas=2", NULL},
    {"--batch-size=16", "--mode=model", "--replicas=2", NULL},
    {"--batch-size=8", "--mode=fsdp", "--nproc-per-node=2", NULL},
    {"--batch-size=16", "--mode=pipeline", "--nproc-per-node=2", NULL},
    {"--batch-size=16", "--mode=tp", "--nproc-per-node=2", NULL},
};
enum { N_SPREADS = sizeof SPREADS / sizeof SPREADS[0], N_CLIP = 4 /* so many take the flag */ };

static program run(const char *const *more, const char *const *further)
{
    const char *flags[MAX_WORDS] = {WILD};
    int n = 0;
    while (flags[n] != NULL)
        n++;
    for (; *more != NULL; more++)
        flags[n++] = *more;
    for (; *further != NULL; further++)
        flags[n++] = *further;
    return program_run_with(NULL, flags);
}

static bool has_checkpoint(int step)
{
    char name[64];
    snprintf(name, sizeof name, "run/checkpoints/%08d", step);
    return file_exists(name);
}

/* The data of a safetensors file follow 8 bytes with the size of its header, and the header. */
static float *weights_of(char *bytes, size_t size_bytes, size_t *count)
{
    uint64_t header = 0;
    memcpy(&header, bytes, sizeof header);
    ck_assert(sizeof header + header < size_bytes);
    *count = (size_bytes - sizeof header - header) / sizeof(float);
    return (float *)(void *)(bytes + sizeof header + header);
}

/* As PyTorch writes the file: without the metadata that begin our header. */
static void remove_hash(char *bytes, size_t size_bytes)
{
    static const char name[] = "\"__metadata__\"";
    char *from = memmem(bytes, size_bytes, name, strlen(name));
    ck_assert_ptr_nonnull(from);
    const char *to = strstr(from, "},");
    ck_assert_ptr_nonnull(to);
    memset(from, ' ', (size_t)(to + strlen("},") - from));
}

/* Only what the mode takes is advised. */
static void look_at_message(const program *p, bool clips, int *step)
{
    ASSERT_FACTS(p->err, "error", "training loss", "nan", "epoch 1", "10000", "sgd", "--lr",
                 "--warmup-steps");
    ck_assert_int_eq(facts_count(p->err, "--clip-grad-norm"), clips);
    ck_assert_int_eq(facts_count(p->err, "error"), 1); /* one rank speaks for all */
    ASSERT_NO_FACTS(p->err, "failed first");
    *step = facts_number(p->err, "error", "step");
    ck_assert_int_ge(*step, 2);
    ck_assert_int_lt(*step, STEPS);
}

/* The step before it was the last good one. */
static void look_at_checkpoints(const program *p, int step)
{
    size_t size_bytes, count = 0;
    ck_assert_int_eq(facts_number(p->err, "kept", "step"), step - 1);
    ck_assert(has_checkpoint(step - 1) && !has_checkpoint(step) && !has_checkpoint(step + 1));
    char *bytes = model_file_bytes("run", &size_bytes);
    const float *weights = weights_of(bytes, size_bytes, &count);
    size_t finite = 0; /* an assertion for each would be a system call for each */
    for (size_t i = 0; i < count; i++)
        finite += isfinite(weights[i]) ? 1 : 0;
    ck_assert_uint_eq(finite, count);
    free(bytes);
}

static void look_at_result(const program *p)
{
    char *file = test_folder_read("run/result.json");
    ck_assert_str_eq(p->out, file);
    json_t *result = json_loads(p->out, 0, NULL);
    ck_assert_ptr_nonnull(result);
    ck_assert(json_is_null(json_object_get(result, "last_loss")));
    ck_assert(json_is_null(json_object_get(result, "test_acc")));
    json_decref(result);
    free(file);
}

START_TEST(it_ends_the_run_at_its_step)
{
    int step = 0;
    program p = run(SPREADS[_i], WORDS("--json", "--save-every=1steps"));
    ASSERT_EXIT(p, DIVERGED);
    look_at_message(&p, _i < N_CLIP, &step);
    look_at_checkpoints(&p, step);
    look_at_result(&p);
    program_close(&p);
}
END_TEST

/* The run would meet the same loss again. Without checkpoints, too, it ends before the epoch
 * does. */
START_TEST(it_is_not_started_again)
{
    program p = run(SPREADS[1], WORDS("--max-restarts=2", "--quiet"));
    ASSERT_EXIT(p, DIVERGED);
    ck_assert_str_eq(p.out, ""); /* there is no result */
    ASSERT_NO_FACTS(p.err, "restart");
    ck_assert_int_lt(facts_number(p.err, "error", "step"), STEPS);
    ck_assert_int_eq(facts_count(p.err, "training loss"), 1);
    ck_assert(!file_exists("run/checkpoints") && !file_exists("run/model.safetensors"));
    program_close(&p);
    test_folder_clean();
    p = run(SPREADS[1], WORDS("--exit-code=torchrun"));
    ASSERT_EXIT(p, 1);
    program_close(&p);
}
END_TEST

START_TEST(all_nodes_end_at_it)
{
    int port = port_find_free();
    program nodes[2];
    for (int i = 0; i < 2; i++)
        nodes[i] = program_start_with(NULL, WORDS(WILD, "--batch-size=8", "--nnodes=2",
                                                  program_flag("--node-rank=", i),
                                                  "--nproc-per-node=1", "--master-addr=127.0.0.1",
                                                  program_flag("--master-port=", port)));
    for (int i = 0; i < 2; i++)
        program_wait(&nodes[i], RUN_S);
    ck_assert_int_lt(facts_number(nodes[0].err, "error", "step"), STEPS);
    for (int i = 0; i < 2; i++) {
        ASSERT_EXIT(nodes[i], DIVERGED);
        ASSERT_NO_FACTS(nodes[i].err, "failed first");
        ck_assert_int_eq(facts_count(nodes[i].err, "training loss"), i == 0);
        program_close(&nodes[i]);
    }
}
END_TEST

/* Of a model that an older program may have left. */
/* Writes the model file of `run` to `path`, with the first `spoilt` weights as NaN. */
static void spoil_weights(const char *run, const char *path, size_t spoilt)
{
    size_t size_bytes, count = 0;
    char *bytes = model_file_bytes(run, &size_bytes);
    float *weights = weights_of(bytes, size_bytes, &count);
    memset(weights, 0xff, sizeof *weights * (spoilt < count ? spoilt : count));
    remove_hash(bytes, size_bytes);
    const file_part part = {bytes, size_bytes};
    ck_assert_int_eq(file_replace(path, &part, 1), STATUS_OK);
    free(bytes);
}

START_TEST(a_test_loss_that_is_not_finite_is_null)
{
    program p = program_mnist("train", "--model", "mlp", "--limit", "16", "--epochs", "1",
                              "--run-dir", "run", NULL);
    ASSERT_EXIT(p, 0);
    program_close(&p);
    spoil_weights("run", "other", SIZE_MAX);
    p = program_mnist("eval", "--checkpoint", "other", "--json", NULL);
    ASSERT_EXIT(p, 0);
    json_t *result = json_loads(p.out, 0, NULL);
    ck_assert_msg(result != NULL, "no JSON: %s", p.out);
    ck_assert(json_is_null(json_object_get(result, "test_loss")));
    json_decref(result);
    program_close(&p);
    p = program_mnist("eval", "--checkpoint", "other", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "loss nan");
    program_close(&p);
}
END_TEST

/* A ReLU makes a zero of one NaN, so that nothing but a look at the weights tells of it. */
START_TEST(one_weight_that_is_not_finite_is_told)
{
    program p = program_mnist("--model", "mlp", "--limit", "200", "--epochs", "1", "--run-dir",
                              "run", NULL);
    ASSERT_EXIT(p, 0);
    program_close(&p);
    spoil_weights("run", "other", 1);
    p = program_mnist("eval", "--checkpoint", "other", NULL);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "other", "not finite");
    program_close(&p);
    p = program_mnist("--model", "mlp", "--limit", "200", "--epochs", "1", "--init", "other", NULL);
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "error", "--init", "other", "not finite");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("diverged");
    TCase *runs = suite_case(suite, "runs", RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, it_ends_the_run_at_its_step, 0, N_SPREADS);
    tcase_add_test(runs, it_is_not_started_again);
    tcase_add_test(runs, all_nodes_end_at_it);
    tcase_add_test(runs, a_test_loss_that_is_not_finite_is_null);
    tcase_add_test(runs, one_weight_that_is_not_finite_is_told);
    return test_folder_close(suite_run(suite));
}
