/* --augment in a run: a picture depends on seed, epoch and image alone, and no test has any. */
#include "data/loader.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 101, EPOCH = 2 };

static uint8_t images[SAMPLES * DATASET_PIXELS], labels[SAMPLES];
static const dataset SET = {.count = SAMPLES, .images = images, .labels = labels};

/* What each image of the epoch became. */
static float whole[SAMPLES * DATASET_PIXELS], again[SAMPLES * DATASET_PIXELS];

typedef struct cut {
    int world_size, batch_size, threads;
    int first_step; /* of each rank's: a resumed epoch */
    uint32_t used;  /* samples that other ranks have used before */
} cut;

static void take_step(loader *load, step_state *state, int step, float *out)
{
    step_plan plan = {0};
    loader_plan_step(load, step, &plan);
    step_begin(&plan, state, NULL);
    for (int micro = 0; micro < loader_micro_steps(load, step); micro++) {
        batch b;
        test_folder_require(loader_next(load, &b));
        for (int i = 0; i < b.n; i++)
            memcpy(out + b.samples[i] * DATASET_PIXELS, b.x + i * DATASET_PIXELS,
                   DATASET_PIXELS * sizeof *out);
    }
}

/* The pictures of an epoch that is cut so, by their images. */
static void take_epoch(const cut *how, float *out)
{
    for (int rank = 0; rank < how->world_size; rank++) {
        step_state state = {0};
        device_options wanted = {.name = "cpu", .threads = how->threads};
        loader_options options = {.batch_size = how->batch_size,
                                  .accum = 2,
                                  .sampler = {.samples = SAMPLES,
                                              .rank = rank,
                                              .world_size = how->world_size,
                                              .seed = 3,
                                              .shuffle = true},
                                  .augment = {.shift = 2, .rotate = 10, .scale = 0.1f, .seed = 3},
                                  .state = &state};
        device *dev = NULL;
        loader *load = NULL;
        test_folder_require(device_create(&wanted, &dev));
        test_folder_require(loader_create(dev, &SET, &options, &load));
        if (how->used > 0)
            test_folder_require(loader_leave_out(load, EPOCH, how->used));
        test_folder_require(loader_start_epoch(load, EPOCH));
        for (int step = how->first_step; step < loader_epoch_steps(load, EPOCH); step++)
            take_step(load, &state, step, out);
        loader_destroy(load);
        device_destroy(dev);
    }
}

static const cut CUTS[] = {
    {1, 64, 2, 0, 0}, {2, 7, 1, 0, 0}, {3, 5, 1, 0, 0},
    {1, 8, 1, 2, 0},  {3, 4, 2, 1, 0}, {2, 8, 1, 0, 48},
};
enum { N_CUTS = sizeof CUTS / sizeof CUTS[0] };

/* Bits are equal; what a resumed epoch no longer has stays black here. */
START_TEST(a_picture_is_the_same_for_whoever_has_it)
{
    static const float black[DATASET_PIXELS];
    const cut plain = {.world_size = 1, .batch_size = 8, .threads = 1}, *how = &CUTS[_i];
    int same = 0;
    for (uint32_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 2654435761u >> 24);
    take_epoch(&plain, whole);
    take_epoch(how, again);
    for (int i = 0; i < SAMPLES; i++) {
        const float *got = again + i * DATASET_PIXELS;
        if (memcmp(got, black, sizeof black) == 0)
            continue;
        ck_assert_msg(memcmp(got, whole + i * DATASET_PIXELS, sizeof black) == 0, "image %d", i);
        same++;
    }
    int left = SAMPLES - (int)how->used - how->first_step * how->world_size * how->batch_size * 2;
    ck_assert_int_ge(same, left);
    ck_assert_int_lt(same, left + how->world_size); /* with those that are repeated */
}
END_TEST

#define AUGMENTED \
    TRAINING_96, "--model", "mlp", "--batch-size", "8", "--augment", "shift=2,rotate=10"

/* Killed inside an epoch and continued by --resume alone: the bits of an undisturbed run. */
START_TEST(a_resumed_run_ends_with_the_same_bits)
{
    test_folder_remove("part whole plain");
    program undisturbed = program_run_with(NULL, WORDS(AUGMENTED, "--run-dir", "whole"));
    program killed = program_run_with(NULL, WORDS(AUGMENTED, "--run-dir", "part", "--save-every",
                                                  "2steps", "--inject", "kill:rank=0,step=6"));
    program rest = program_run_with(NULL, WORDS("train", "--run-dir", "part", "--resume"));
    program plain =
        program_run_with(NULL, WORDS(AUGMENTED, "--augment", "shift=0", "--run-dir", "plain"));
    ASSERT_EXIT(undisturbed, 0);
    ASSERT_EXIT(killed, 128 + SIGKILL);
    ASSERT_EXIT(rest, 0);
    ASSERT_EXIT(plain, 0);
    model_file_assert_same_bits("part", "whole");
    ck_assert_int_ne(system("cmp -s plain/model.safetensors whole/model.safetensors"), 0);
    program_close(&undisturbed);
    program_close(&killed);
    program_close(&rest);
    program_close(&plain);
}
END_TEST

/* The epoch's line of a run with a learning rate of 0: only pictures make a loss another. */
static char *epoch_of(const char *run, const char *augment)
{
    char path[32];
    program p = program_run_with(NULL, WORDS(AUGMENTED, "--lr", "0", "--no-save-model", "--augment",
                                             augment, "--run-dir", run));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    return test_folder_read(path);
}

static double loss_of(const char *metrics, const char *key)
{
    const char *line = strstr(metrics, "{\"event\":\"epoch\"");
    ck_assert_ptr_nonnull(line);
    return training_number(line, key);
}

START_TEST(test_images_are_not_augmented)
{
    test_folder_remove("with without");
    char *with = epoch_of("with", "shift=2,rotate=10"), *without = epoch_of("without", "shift=0");
    ck_assert(loss_of(with, "test_loss") == loss_of(without, "test_loss"));
    ck_assert(loss_of(with, "train_loss") != loss_of(without, "train_loss"));
    free(with);
    free(without);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("augment");
    TCase *core = suite_case(suite, "core", RUN_S);
    tcase_add_loop_test(core, a_picture_is_the_same_for_whoever_has_it, 0, N_CUTS);
    tcase_add_test(core, a_resumed_run_ends_with_the_same_bits);
    tcase_add_test(core, test_images_are_not_augmented);
    return test_folder_close(suite_run(suite));
}
