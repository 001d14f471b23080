/* The generated digits: the same bytes however they are asked for, all different, and shaped like
 * MNIST's. */
#include "base/digest.h"
#include "data/digits.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef SANITIZED
enum { N_TRAIN = 6000, N_TEST = 1000 };
#else
enum { N_TRAIN = DIGITS_TRAIN_COUNT, N_TEST = DIGITS_TEST_COUNT };
#endif

enum { FEW = 300, SEED = 7 };

typedef struct digits {
    uint32_t count;
    uint8_t *images, *labels;
} digits;

static digits generate(uint64_t seed, digits_split split, uint32_t first, uint32_t count,
                       int threads)
{
    digits d = {count, malloc((size_t)count * DIGITS_PIXELS), malloc(count)};
    ck_assert(d.images != NULL && d.labels != NULL);
    digits_range range = {seed, split, first, count};
    status st = digits_generate(&range, threads, d.images, d.labels);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    return d;
}

static void release(digits *d)
{
    free(d->images);
    free(d->labels);
    *d = (digits){0};
}

static bool same_images(const digits *a, uint32_t at_a, const digits *b, uint32_t at_b,
                        uint32_t count)
{
    return memcmp(a->images + (size_t)at_a * DIGITS_PIXELS,
                  b->images + (size_t)at_b * DIGITS_PIXELS, (size_t)count * DIGITS_PIXELS) == 0;
}

static bool same_labels(const digits *a, uint32_t at_a, const digits *b, uint32_t at_b,
                        uint32_t count)
{
    return memcmp(a->labels + at_a, b->labels + at_b, count) == 0;
}

START_TEST(threads_do_not_matter)
{
    digits one = generate(SEED, DIGITS_TRAIN, 0, FEW, 1);
    digits many = generate(SEED, DIGITS_TRAIN, 0, FEW, _i);
    ck_assert(same_images(&one, 0, &many, 0, FEW));
    ck_assert(same_labels(&one, 0, &many, 0, FEW));
    release(&many);
    release(&one);
}
END_TEST

/* Every machine and version draws these bytes: what was trained on them can be repeated. */
START_TEST(the_bytes_stay)
{
    digits d = generate(SEED, DIGITS_TRAIN, 0, FEW, 1);
    uint64_t hash = fnv1a(FNV1A_START, d.images, (size_t)FEW * DIGITS_PIXELS);
    ck_assert_uint_eq(fnv1a(hash, d.labels, FEW), UINT64_C(0xdd8812e63a7b9fe7));
    release(&d);
}
END_TEST

START_TEST(slices_are_parts_of_the_whole)
{
    static const struct {
        uint32_t first, count;
    } SLICES[] = {{0, 1}, {1, 1}, {0, 64}, {63, 2}, {1, 65}, {127, 130}, {299, 1}};
    digits whole = generate(SEED, DIGITS_TEST, 0, FEW, 2);
    for (size_t i = 0; i < sizeof SLICES / sizeof SLICES[0]; i++) {
        uint32_t first = SLICES[i].first, count = SLICES[i].count;
        digits part = generate(SEED, DIGITS_TEST, first, count, 1);
        ck_assert_msg(same_images(&whole, first, &part, 0, count), "images of slice %zu", i);
        ck_assert_msg(same_labels(&whole, first, &part, 0, count), "labels of slice %zu", i);
        release(&part);
    }
    release(&whole);
}
END_TEST

static void check_unlike(const digits *a, const digits *b)
{
    ck_assert(!same_labels(a, 0, b, 0, FEW));
    for (uint32_t i = 0; i < FEW; i++)
        ck_assert_msg(!same_images(a, i, b, i, 1), "image %u is the same", (unsigned)i);
}

/* All 64 bits of the seed count, and the splits of one seed have nothing in common. */
START_TEST(seeds_and_splits_differ)
{
    digits base = generate(SEED, DIGITS_TRAIN, 0, FEW, 1);
    digits low = generate(SEED + 1, DIGITS_TRAIN, 0, FEW, 1);
    digits high = generate(SEED + (UINT64_C(1) << 40), DIGITS_TRAIN, 0, FEW, 1);
    digits test = generate(SEED, DIGITS_TEST, 0, FEW, 1);
    check_unlike(&base, &low);
    check_unlike(&base, &high);
    check_unlike(&base, &test);
    release(&test);
    release(&high);
    release(&low);
    release(&base);
}
END_TEST

START_TEST(bounds_are_checked)
{
    uint8_t image[DIGITS_PIXELS], label = 99;
    memset(image, 0xa5, sizeof image);
    const digits_range one = {1, DIGITS_TRAIN, 0, 1}, beyond = {1, DIGITS_TRAIN, UINT32_MAX, 2};
    const digits_range none = {1, DIGITS_TRAIN, 5, 0}, last = {1, DIGITS_TRAIN, UINT32_MAX, 1};
    ck_assert_int_eq(digits_generate(&one, 0, image, &label), STATUS_INVALID);
    ck_assert_int_eq(digits_generate(&beyond, 1, image, &label), STATUS_INVALID);
    ck_assert_int_eq(digits_generate(&none, 1, image, &label), STATUS_OK);
    ck_assert(label == 99 && image[0] == 0xa5 && image[400] == 0xa5);
    ck_assert_int_eq(digits_generate(&last, 1, image, &label), STATUS_OK);
    ck_assert_int_lt(label, 10);
}
END_TEST

static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

START_TEST(all_images_differ)
{
    size_t count = N_TRAIN + N_TEST;
    uint64_t *hashes = malloc(count * sizeof *hashes);
    ck_assert_ptr_nonnull(hashes);
    digits train = generate(SEED, DIGITS_TRAIN, 0, N_TRAIN, 2);
    digits test = generate(SEED, DIGITS_TEST, 0, N_TEST, 2);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *image = i < N_TRAIN ? train.images + i * DIGITS_PIXELS
                                           : test.images + (i - N_TRAIN) * DIGITS_PIXELS;
        hashes[i] = fnv1a(FNV1A_START, image, DIGITS_PIXELS);
    }
    qsort(hashes, count, sizeof *hashes, compare_hashes);
    for (size_t i = 1; i < count; i++)
        ck_assert_msg(hashes[i] != hashes[i - 1], "two images have hash %016llx",
                      (unsigned long long)hashes[i]);
    release(&test);
    release(&train);
    free(hashes);
}
END_TEST

/* A class has n / 10 images, give or take 5 standard deviations: 5 * sqrt(0.09 n) = 1.5 sqrt(n). */
START_TEST(classes_are_balanced)
{
    digits d = generate(SEED, DIGITS_TRAIN, 0, N_TEST, 2);
    int of_class[10] = {0}, repeats = 0;
    for (uint32_t i = 0; i < d.count; i++) {
        ck_assert_int_lt(d.labels[i], 10);
        of_class[d.labels[i]]++;
        repeats += i > 0 && d.labels[i] == d.labels[i - 1];
    }
    double far = 1.5 * (N_TEST == 1000 ? 31.7 : 100.0);
    for (int k = 0; k < 10; k++)
        ck_assert_double_eq_tol(of_class[k], N_TEST / 10.0, far);
    ck_assert_double_eq_tol(repeats, N_TEST / 10.0, far); /* so the order is random */
    release(&d);
}
END_TEST

typedef struct look {
    double mean;         /* of the pixels, 0 to 255 */
    double x, y;         /* centre of mass, pixels */
    int width, height;   /* of the ink */
    int darkest, border; /* pixel values: the largest, and the largest on the outermost pixels */
} look;

static look look_at(const uint8_t *image)
{
    look l = {0};
    int left = DIGITS_SIDE, right = -1, top = DIGITS_SIDE, bottom = -1;
    double mass = 0.0;
    for (int i = 0; i < DIGITS_PIXELS; i++) {
        int x = i % DIGITS_SIDE, y = i / DIGITS_SIDE, ink = image[i];
        if (ink == 0)
            continue;
        mass += ink;
        l.x += (double)ink * x;
        l.y += (double)ink * y;
        left = x < left ? x : left;
        right = x > right ? x : right;
        top = y < top ? y : top;
        bottom = y > bottom ? y : bottom;
        l.darkest = ink > l.darkest ? ink : l.darkest;
        bool outermost = x == 0 || y == 0 || x == DIGITS_SIDE - 1 || y == DIGITS_SIDE - 1;
        l.border = outermost && ink > l.border ? ink : l.border;
    }
    l.mean = mass / DIGITS_PIXELS;
    l.x /= mass;
    l.y /= mass;
    l.width = right - left + 1;
    l.height = bottom - top + 1;
    return l;
}

/* As MNIST is made: 20 pixels for the longer side (19 where the edge fades), ink up to 255, centre
 * of mass at pixel 14 after rounding (about 1 % meet the empty border first). */
START_TEST(images_are_normalised)
{
    digits d = generate(SEED, DIGITS_TEST, 0, N_TEST, 2);
    int off_centre = 0;
    for (uint32_t i = 0; i < d.count; i++) {
        look l = look_at(d.images + (size_t)i * DIGITS_PIXELS);
        int longer = l.width > l.height ? l.width : l.height;
        ck_assert_msg(longer >= 18 && longer <= 20, "image %u: %d pixels", (unsigned)i, longer);
        ck_assert_int_eq(l.darkest, 255);
        ck_assert_int_eq(l.border, 0);
        off_centre += l.x < 13.49 || l.x > 14.51 || l.y < 13.49 || l.y > 14.51;
    }
    ck_assert_int_lt(off_centre, N_TEST / 50);
    release(&d);
}
END_TEST

/* MNIST's mean is 33.3 of 255, of an image from about 10 to 70; its ones have the least ink. */
START_TEST(ink_is_like_mnists)
{
    digits d = generate(SEED, DIGITS_TRAIN, 0, N_TEST, 2);
    double mean = 0.0, of_class[10] = {0}, least = 255.0, most = 0.0;
    int n[10] = {0};
    for (uint32_t i = 0; i < d.count; i++) {
        double ink = look_at(d.images + (size_t)i * DIGITS_PIXELS).mean;
        mean += ink / d.count;
        of_class[d.labels[i]] += ink;
        n[d.labels[i]]++;
        least = ink < least ? ink : least;
        most = ink > most ? ink : most;
    }
    ck_assert_double_eq_tol(mean, 33.3, 4.0);
    ck_assert(least > 3.0 && least < 15.0);
    ck_assert(most > 50.0 && most < 110.0);
    for (int k = 0; k < 10; k++) {
        if (k != 1)
            ck_assert_msg(of_class[k] / n[k] > 1.3 * of_class[1] / n[1], "class %d", k);
    }
    release(&d);
}
END_TEST

/* The label is what is drawn: a digit looks more like the mean of its own class than like the
 * others' means far more often than the one in ten of chance. */
START_TEST(labels_name_the_digits)
{
    enum { TRAIN = 2000, TEST = 500 };
    static double means[10][DIGITS_PIXELS];
    int n[10] = {0}, right = 0;
    digits train = generate(SEED, DIGITS_TRAIN, 0, TRAIN, 2);
    digits test = generate(SEED, DIGITS_TEST, 0, TEST, 2);
    for (int i = 0; i < TRAIN; i++)
        n[train.labels[i]]++;
    for (int i = 0; i < TRAIN * DIGITS_PIXELS; i++) {
        int label = train.labels[i / DIGITS_PIXELS];
        means[label][i % DIGITS_PIXELS] += (double)train.images[i] / n[label];
    }
    for (int i = 0; i < TEST; i++) {
        int best = -1;
        double nearest = 0.0;
        for (int k = 0; k < 10; k++) {
            double far = 0.0;
            for (int p = 0; p < DIGITS_PIXELS; p++) {
                double gap = means[k][p] - test.images[i * DIGITS_PIXELS + p];
                far += gap * gap;
            }
            if (best < 0 || far < nearest) {
                best = k;
                nearest = far;
            }
        }
        right += best == test.labels[i];
    }
    ck_assert_msg(right > TEST * 6 / 10 && right < TEST * 98 / 100, "%d of %d", right, TEST);
    release(&test);
    release(&train);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("digits");
    TCase *same = suite_case(suite, "same bytes", 10);
    tcase_add_loop_test(same, threads_do_not_matter, 1, 6);
    tcase_add_test(same, the_bytes_stay);
    tcase_add_test(same, slices_are_parts_of_the_whole);
    tcase_add_test(same, seeds_and_splits_differ);
    tcase_add_test(same, bounds_are_checked);
    TCase *looks = suite_case(suite, "looks", 30);
    tcase_add_test(looks, all_images_differ);
    tcase_add_test(looks, classes_are_balanced);
    tcase_add_test(looks, images_are_normalised);
    tcase_add_test(looks, ink_is_like_mnists);
    tcase_add_test(looks, labels_name_the_digits);
    return suite_run(suite);
}
