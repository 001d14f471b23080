/* --sync-every: ranks that step by themselves and average now and then (local SGD), and the outer
 * step of DiLoCo. */
#include "base/file.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

/* An epoch of six steps of two ranks; each has every second image, always in the same order. */
#define IMAGES "96"
enum { OWN = 48 };
#define EPOCH_OF(batch) \
    "train", "--model=mlp", "--optimizer=sgd", "--lr=0.1", "--schedule=none", "--threads=1", \
        "--quiet", "--json", "--no-shuffle", "--seed=3", "--batch-size=" batch
#define RANKS EPOCH_OF("8"), "--nproc-per-node=2", "--limit=" IMAGES
#define LOCAL RANKS, "--sync-every=1000"
#define DILOCO LOCAL, "--outer-lr=0.7", "--outer-momentum=0.9"

static const double LR = (double)0.7f, MOMENTUM = (double)0.9f; /* as floats */

static program run(const char *const *words)
{
    program p = program_run_with(NULL, words);
    ASSERT_EXIT(p, 0);
    return p;
}

static void run_and_close(const char *const *words)
{
    program p = run(words);
    program_close(&p);
}

/* All numbers of a checkpoint's file, which follow 8 bytes with the size of its header, and it. */
static float *numbers(const char *folder, int step, const char *name, size_t *count)
{
    char path[256], *bytes = NULL;
    size_t size_bytes = 0;
    uint64_t header = 0;
    snprintf(path, sizeof path, "%s/checkpoints/%08d/%s.safetensors", folder, step, name);
    ck_assert_msg(file_read(path, 64 << 20, &bytes, &size_bytes) == STATUS_OK, "%s", status_text());
    memcpy(&header, bytes, sizeof header);
    *count = (size_bytes - sizeof header - header) / sizeof(float);
    memmove(bytes, bytes + sizeof header + header, *count * sizeof(float));
    return (float *)(void *)bytes;
}

/* data/'s every second image, from the first or the second on, is the first in another folder. */
static void write_share(int rank, const char *folder)
{
    static const struct {
        const char *name;
        size_t header, size;
    } files[] = {{"train-images-idx3-ubyte", 16, 784}, {"train-labels-idx1-ubyte", 8, 1}};
    char command[64], path[64], *bytes = NULL;
    snprintf(command, sizeof command, "cp -r data %s", folder);
    ck_assert_int_eq(system(command), 0);
    for (int f = 0; f < 2; f++) {
        size_t size_bytes = 0, size = files[f].size;
        snprintf(path, sizeof path, "%s/%s", folder, files[f].name);
        ck_assert(file_read(path, 64 << 20, &bytes, &size_bytes) == STATUS_OK);
        char *first = bytes + files[f].header;
        for (size_t i = 0; i < OWN; i++)
            memmove(first + i * size, first + (2 * i + (size_t)rank) * size, size);
        const file_part part = {bytes, size_bytes};
        ck_assert(unlink(path) == 0 && file_write(path, &part, 1) == STATUS_OK);
        free(bytes);
    }
}

static double sent_in_a_step(const char *flag, const char *folder)
{
    program p = run(WORDS(RANKS, flag, "--epochs=1", "--run-dir", folder));
    const char *bytes = strstr(p.out, "\"bytes\":");
    double sent = 0;
    ck_assert_ptr_nonnull(bytes);
    ck_assert_int_eq(sscanf(bytes, "\"bytes\":{\"sent\":%lf", &sent), 1);
    program_close(&p);
    return sent;
}

START_TEST(one_step_is_ddp_and_six_send_a_sixth)
{
    double all = sent_in_a_step("--overlap", "one");
    ck_assert(sent_in_a_step("--sync-every=1", "many") == all);
    model_file_assert_same_bits("many", "one");
    ck_assert_double_eq_tol(sent_in_a_step("--sync-every=6", "apart"), all / 6, 0.001 * all);
}
END_TEST

/* The weights, and the optimizer's momentum. */
START_TEST(an_epoch_apart_ends_in_the_mean_of_its_ranks)
{
    static const char *const files[] = {"model", "optimizer"};
    const char *folders[] = {"rank0", "rank1", "many"};
    write_share(0, "share0");
    write_share(1, "share1");
#define ALONE EPOCH_OF("8"), "--mode=single", "--limit=48", "--epochs=1", "--momentum=0.9"
    run_and_close(WORDS(ALONE, "--data-dir=share0", "--run-dir=rank0"));
    run_and_close(WORDS(ALONE, "--data-dir=share1", "--run-dir=rank1"));
    run_and_close(WORDS(LOCAL, "--momentum=0.9", "--epochs=1", "--run-dir=many"));
    for (int f = 0; f < 2; f++) {
        float *of[3];
        size_t count = 0, wrong = 0;
        for (int i = 0; i < 3; i++)
            of[i] = numbers(folders[i], 6, files[f], &count);
        ck_assert_uint_gt(count, 600000);
        for (size_t i = 0; i < count; i++)
            wrong += 0.5f * of[0][i] + 0.5f * of[1][i] != of[2][i];
        ck_assert_uint_eq(wrong, 0);
        for (int i = 0; i < 3; i++)
            free(of[i]);
    }
}
END_TEST

/* One outer step, by PyTorch's formula of SGD with Nesterov momentum; how many numbers are off by
 * more than rounding. `m` becomes the new momentum. */
static size_t outer_step_is_off(const float *old, const float *mean, const float *new, double *m,
                                size_t count)
{
    size_t off = 0;
    for (size_t i = 0; i < count; i++) {
        double g = (double)old[i] - (double)mean[i];
        m[i] = MOMENTUM * m[i] + g;
        double want = (double)old[i] - LR * (g + MOMENTUM * m[i]);
        double size = fabs((double)old[i]) + fabs(g) + fabs(m[i]);
        off += fabs(want - (double)new[i]) > 2 * (double)FLT_EPSILON * size;
    }
    return off;
}

/* An epoch is one time apart, and has the same steps each time. */
START_TEST(the_outer_step_is_nesterovs)
{
    size_t count = 0, counted = 0, off = 0;
    run_and_close(WORDS(DILOCO, "--epochs=2", "--run-dir=many"));
    run_and_close(WORDS(LOCAL, "--epochs=1", "--run-dir=start", "--lr=0"));
    run_and_close(WORDS(LOCAL, "--epochs=1", "--run-dir=mean1"));
    run_and_close(
        WORDS(LOCAL, "--epochs=1", "--run-dir=mean2", "--init=many/checkpoints/00000006"));
    float *all[] = {
        numbers("start", 6, "model", &count), numbers("mean1", 6, "model", &count),
        numbers("many", 6, "model", &count),  numbers("mean2", 6, "model", &count),
        numbers("many", 12, "model", &count), numbers("many", 12, "optimizer", &counted)};
    ck_assert_uint_eq(count, counted);
    double *momentum = calloc(count, sizeof *momentum);
    ck_assert_uint_eq(outer_step_is_off(all[0], all[1], all[2], momentum, count), 0);
    ck_assert_uint_eq(outer_step_is_off(all[2], all[3], all[4], momentum, count), 0);
    for (size_t i = 0; i < count; i++)
        off += fabs(momentum[i] - (double)all[5][i]) > 1e-6 * (1 + fabs(momentum[i]));
    ck_assert_uint_eq(off, 0);
    for (int i = 0; i < 6; i++)
        free(all[i]);
    free(momentum);
}
END_TEST

/* Twelve steps an epoch of two ranks, eight of three; stopped where they meet. Were their states
 * not alike there, a resumed run, which has rank 0's, would have other bits. */
static const struct {
    const char *flags[5]; /* the rest is NULL */
    int rank;
} STOPS[] = {
    {{"--nproc-per-node=2", "--sync-every=5", "--seed=2"}, 1},
    {{"--nproc-per-node=3", "--sync-every=3", "--optimizer=adam", "--outer-lr=0.7",
      "--outer-momentum=0.9"},
     0},
};
enum { N_STOPS = sizeof STOPS / sizeof STOPS[0] };

#define STOPPABLE \
    "train", "--model=mlp", "--limit=192", "--threads=1", "--batch-size=8", "--json", \
        "--log-interval=1000"

static program go_on(const char *const *how, const char *epochs, const char *folder)
{
    program p = program_run_with(NULL, WORDS(STOPPABLE, "--run-dir", folder, "--resume=auto",
                                             epochs, how[0], how[1], how[2], how[3], how[4]));
    ASSERT_EXIT(p, 0);
    return p;
}

START_TEST(a_stopped_run_ends_with_the_same_bits)
{
    const char *const *how = STOPS[_i].flags;
    program p = program_start_with(NULL, WORDS(STOPPABLE, "--run-dir=many", "--epochs=100000",
                                               "--save-every=1000epochs", how[0], how[1], how[2],
                                               how[3], how[4]));
    program_await(&p, "epoch 3/");
    kill(process_of_rank(p.pid, STOPS[_i].rank), SIGUSR1);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    char epochs[32];
    snprintf(epochs, sizeof epochs, "--epochs=%d", facts_number(p.err, "stopped", "epoch") + 2);
    program rest = go_on(how, epochs, "many"), whole = go_on(how, epochs, "one");
    ASSERT_FACTS(rest.err, "resuming");
    model_file_assert_same_bits("many", "one");
    program_close(&p);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

/* All ranks learn it where they meet; what they have then is not saved. */
START_TEST(a_loss_that_is_not_finite_ends_all_ranks)
{
    program p = program_run_with(NULL, WORDS(RANKS, "--sync-every=5", "--lr=10000", "--epochs=9",
                                             "--save-every=1000epochs", "--run-dir=many"));
    ASSERT_EXIT(p, 76);
    ASSERT_FACTS(p.err, "error", "training loss", "nan", "by step", "--lr");
    ck_assert_int_eq(facts_count(p.err, "error"), 1);
    ASSERT_NO_FACTS(p.err, "failed first");
    ck_assert(!file_exists("many/model.safetensors"));
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("local_sgd");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, one_step_is_ddp_and_six_send_a_sixth);
    tcase_add_test(core, an_epoch_apart_ends_in_the_mean_of_its_ranks);
    tcase_add_test(core, the_outer_step_is_nesterovs);
    tcase_add_loop_test(core, a_stopped_run_ends_with_the_same_bits, 0, N_STOPS);
    tcase_add_test(core, a_loss_that_is_not_finite_ends_all_ranks);
    return test_folder_close(suite_run(suite));
}
