/* The real MNIST, if $MNIST_DDP_DATA names it. */
#include "base/clock.h"
#include "data/dataset.h"
#include "tests/data/sandbox.h"
#include "tests/support/suite.h"

static char mnist_folder[FILE_PATH_BYTES]; /* what $MNIST_DDP_DATA said */

static uint64_t pixel_sum(const dataset *set)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < (size_t)set->count * DATASET_PIXELS; i++)
        sum += set->images[i];
    return sum;
}

/* The sums are those of mean 0.1307 and of the test images, times 255 * 784 * count. */
START_TEST(mnist_is_read)
{
    static const uint8_t TRAIN[] = {5, 0, 4, 1, 9, 2, 1, 3, 1, 4};
    static const uint8_t TEST[] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9};
    dataset_location location;
    dataset train, test;
    expect_ok(dataset_locate(DATASET_MNIST, mnist_folder, &location));
    ck_assert(!location.embedded);
    expect_ok(dataset_open(&location, DATASET_TRAIN, &train));
    expect_ok(dataset_open(&location, DATASET_TEST, &test));
    ck_assert_uint_eq(train.count, 60000);
    ck_assert_uint_eq(test.count, 10000);
    ck_assert_mem_eq(train.labels, TRAIN, sizeof TRAIN);
    ck_assert_mem_eq(test.labels, TEST, sizeof TEST);
    ck_assert_uint_eq(pixel_sum(&train), 1567298545);
    ck_assert_uint_eq(pixel_sum(&test), 264923200);
    dataset_close(&train);
    dataset_close(&test);
}
END_TEST

START_TEST(second_start_does_not_decompress)
{
    dataset_location location;
    dataset set;
    expect_ok(dataset_locate(DATASET_MNIST, mnist_folder, &location));
    expect_ok(dataset_open(&location, DATASET_TRAIN, &set));
    dataset_close(&set);
    int64_t begin = clock_now_ns();
    expect_ok(dataset_open(&location, DATASET_TRAIN, &set));
    int64_t elapsed_ns = clock_now_ns() - begin;
    dataset_close(&set);
    ck_assert_msg(elapsed_ns < 100 * 1000000, "%.1f ms", (double)elapsed_ns * 1e-6);
}
END_TEST

int main(void)
{
    const char *named = getenv("MNIST_DDP_DATA");
    if (named == NULL || named[0] == '\0' || realpath(named, mnist_folder) == NULL) {
        printf("SKIP: $MNIST_DDP_DATA does not name the folder of MNIST's files\n");
        return TEST_SKIPPED;
    }
    Suite *suite = suite_create("mnist");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, sandbox_create, sandbox_remove);
    tcase_add_test(core, mnist_is_read);
    tcase_add_test(core, second_start_does_not_decompress);
    return suite_run(suite);
}
