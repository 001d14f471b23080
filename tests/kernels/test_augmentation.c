/* What --augment does to an image: known answers, and every host device against the plain loops.
 *
 * --write FILE is for test_augmentation_torch.sh: raw records of the cpu device. */
#include "kernels/ops.h"
#include "tests/kernels/isa_missing.h"
#include "tests/support/suite.h"

#include "kernels/device_kind.h"
#include "kernels/pixel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = AUGMENTATION_SIDE, PIXELS = SIDE * SIDE, IMAGES = 29, EPOCH = 3 };

static const char *const devices[] = {"reference", "cpu"};
enum { N_DEVICES = sizeof devices / sizeof devices[0] };

static uint8_t images[IMAGES * PIXELS], labels[IMAGES];
static float got[IMAGES * PIXELS];

static void ok(status st)
{
    if (st != STATUS_OK)
        ck_abort_msg("%s", status_text());
}

static void expect_near(float value, float want, float most)
{
    if (!(fabsf(value - want) <= most))
        ck_abort_msg("%.9g, want %.9g", (double)value, (double)want);
}

/* Noise, also at the edges. */
static void draw_images(void)
{
    for (uint32_t i = 0; i < IMAGES * PIXELS; i++)
        images[i] = (uint8_t)philox4x32_10(i, 0, 0, 0, 5).w[0];
}

/* All images in their order, in epoch EPOCH, to `got`. */
static void gather(const char *name, const char *isa, const augmentation *augment)
{
    uint32_t order[IMAGES], samples[IMAGES];
    uint8_t out_labels[IMAGES];
    device_options wanted = {.name = name, .threads = 2, .isa = isa};
    device *dev = NULL;
    for (uint32_t i = 0; i < IMAGES; i++)
        order[i] = i;
    gather_source source = {
        .images = images, .labels = labels, .order = order, .pixels = PIXELS, .augment = *augment};
    step_state state = {.plan.epoch = EPOCH};
    ok(device_create(&wanted, &dev));
    ok(dev->ops->gather(dev, &source, &state, 0, IMAGES,
                        &(gather_output){got, out_labels, samples}));
    device_destroy(dev);
}

static int pixel_at(uint32_t sample, int x, int y)
{
    bool inside = x >= 0 && x < SIDE && y >= 0 && y < SIDE;
    return inside ? images[sample * PIXELS + (uint32_t)(y * SIDE + x)] : 0;
}

/* A move alone loses no bit of what stays in the picture. */
START_TEST(a_shift_moves_whole_pixels)
{
    augmentation augment = {.shift = 3, .seed = 7};
    bool seen[7] = {false};
    gather(devices[_i], NULL, &augment);
    for (uint32_t i = 0; i < IMAGES; i++) {
        affine drawn = augmentation_draw(&augment, i, EPOCH);
        int dx = (int)drawn.dx, dy = (int)drawn.dy;
        ck_assert(dx == drawn.dx && dy == drawn.dy && abs(dx) <= 3 && abs(dy) <= 3);
        seen[dx + 3] = true;
        for (int at = 0; at < PIXELS; at++) {
            int want = pixel_at(i, at % SIDE - dx, at / SIDE - dy);
            if (got[i * PIXELS + (uint32_t)at] != pixel_normalised((float)want))
                ck_abort_msg("image %u, pixel %d", i, at);
        }
    }
    for (int i = 0; i < 7; i++)
        ck_assert_msg(seen[i], "no image is moved by %d", i - 3);
}
END_TEST

/* What is in the upper right corner comes from the upper left: torchvision's positive angles turn
 * clockwise. */
START_TEST(a_quarter_turns_clockwise)
{
    affine quarter = {.degrees = 90, .size = 1};
    affine_map map = augmentation_map(&quarter);
    for (int x = 0; x < SIDE; x++)
        for (int y = 0; y < SIDE; y++)
            expect_near(augmentation_sample(images, &map, SIDE - 1 - y, x),
                        (float)pixel_at(0, x, y), 0.01f);
}
END_TEST

/* Twice the size: between two middles lie two places, at a quarter and at three. */
START_TEST(a_size_is_about_the_middle)
{
    affine twice = {.size = 2};
    affine_map map = augmentation_map(&twice);
    float left = (float)pixel_at(0, 13, 14), right = (float)pixel_at(0, 14, 14);
    float below_left = (float)pixel_at(0, 13, 13), below_right = (float)pixel_at(0, 14, 13);
    float upper = 0.75f * below_left + 0.25f * below_right, lower = 0.75f * left + 0.25f * right;
    expect_near(augmentation_sample(images, &map, 13, 13), 0.75f * upper + 0.25f * lower, 0.001f);
}
END_TEST

/* From no change to images that are mostly outside. */
static const augmentation STRENGTHS[] = {{.rotate = 10, .seed = 1},
                                         {.shift = 2, .rotate = 10, .seed = 2},
                                         {.scale = 0.1f, .seed = 3},
                                         {.shift = 28, .rotate = 180, .scale = 0.9f, .seed = 4}};
enum { N_STRENGTHS = sizeof STRENGTHS / sizeof STRENGTHS[0] };

/* A place is off by a few roundings of its parts, 28 pixels at most: 28 * 2^-23 of a pixel each.
 * Next to it the value is off by as much of the whole range, 1 / 0.3081. */
#define TOLERANCE (8 * 28 * 0x1p-23f / PIXEL_STD)

static void expect_plain(const augmentation *augment)
{
    for (uint32_t i = 0; i < IMAGES; i++) {
        affine drawn = augmentation_draw(augment, i, EPOCH);
        affine_map map = augmentation_map(&drawn);
        for (int at = 0; at < PIXELS; at++) {
            float want = pixel_normalised(
                augmentation_sample(images + i * PIXELS, &map, at % SIDE, at / SIDE));
            expect_near(got[i * PIXELS + (uint32_t)at], want, TOLERANCE);
        }
    }
}

START_TEST(devices_agree)
{
    const augmentation *augment = &STRENGTHS[_i % N_STRENGTHS];
    gather(devices[_i / N_STRENGTHS], NULL, augment);
    expect_plain(augment);
}
END_TEST

START_TEST(avx2_agrees)
{
    gather("cpu", "avx2", &STRENGTHS[_i]);
    expect_plain(&STRENGTHS[_i]);
}
END_TEST

START_TEST(generic_agrees)
{
    gather("cpu", "generic", &STRENGTHS[_i]);
    expect_plain(&STRENGTHS[_i]);
}
END_TEST

/* Seed, epoch and sample each make other numbers; the bounds are kept and reached. */
START_TEST(numbers_are_even_between_the_bounds)
{
    enum { DRAWS = 20000 };
    augmentation augment = {.shift = 2, .rotate = 10, .scale = 0.2f, .seed = 1};
    double degrees = 0, square = 0, size = 0, ends = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        affine drawn = augmentation_draw(&augment, i % 200, i / 200);
        ck_assert(drawn.degrees >= -10 && drawn.degrees < 10);
        ck_assert(drawn.size >= 0.8 - 1e-6 && drawn.size < 1.2 + 1e-6);
        degrees += drawn.degrees;
        square += drawn.degrees * drawn.degrees;
        size += drawn.size;
        ends += fabs(drawn.dx) == 2;
    }
    /* Five standard deviations of the mean: 10 / sqrt(3), 0.2 / sqrt(3), sqrt(1/4 * 3/4). */
    ck_assert_double_le(fabs(degrees / DRAWS), 5 * 10 / sqrt(3.0 * DRAWS));
    ck_assert_double_le(fabs(size / DRAWS - 1), 5 * 0.2 / sqrt(3.0 * DRAWS));
    ck_assert_double_eq_tol(square / DRAWS, 100 / 3.0, 1.1);
    ck_assert_double_eq_tol(ends / DRAWS, 0.25, 5 * 0.433 / sqrt(DRAWS)); /* rounded there */
    affine here = augmentation_draw(&augment, 4, 5), epoch = augmentation_draw(&augment, 4, 6);
    augment.seed = 2;
    affine seed = augmentation_draw(&augment, 4, 5);
    ck_assert(here.degrees != epoch.degrees && here.degrees != seed.degrees);
}
END_TEST

/* Per image: its bytes, what was drawn (four doubles), and the cpu device's floats. */
static int write_records(const char *path)
{
    FILE *file = fopen(path, "wb");
    bool done = file != NULL;
    for (int s = 0; done && s < N_STRENGTHS; s++) {
        gather("cpu", NULL, &STRENGTHS[s]);
        for (uint32_t i = 0; done && i < IMAGES; i++) {
            affine drawn = augmentation_draw(&STRENGTHS[s], i, EPOCH);
            done = fwrite(images + i * PIXELS, PIXELS, 1, file) == 1 &&
                   fwrite(&drawn, sizeof drawn, 1, file) == 1 &&
                   fwrite(got + i * PIXELS, sizeof *got, PIXELS, file) == PIXELS;
        }
    }
    return done && fclose(file) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    draw_images();
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_records(argv[2]);
    Suite *suite = suite_create("augmentation");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_loop_test(core, a_shift_moves_whole_pixels, 0, N_DEVICES);
    tcase_add_test(core, a_quarter_turns_clockwise);
    tcase_add_test(core, a_size_is_about_the_middle);
    tcase_add_loop_test(core, devices_agree, 0, N_DEVICES * N_STRENGTHS);
    suite_add_all(core, avx2_agrees, N_STRENGTHS, isa_missing("avx2"));
    tcase_add_loop_test(core, generic_agrees, 0, N_STRENGTHS);
    tcase_add_test(core, numbers_are_even_between_the_bounds);
    return suite_run(suite);
}
