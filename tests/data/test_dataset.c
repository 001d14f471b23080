/* Finding the data set, and opening what was found. */
#include "data/dataset.h"

#include "base/clock.h"
#include "data/digits.h"
#include "tests/data/sandbox.h"
#include "tests/support/suite.h"

enum { TRAIN_COUNT = 40, TEST_COUNT = 20 };

static const char COPIES[] = "cache/mnist_ddp/idx";

static void make_folder(const char *path)
{
    expect_ok(file_make_folders(path));
}

static void put(const char *folder, const char *name, bytes b)
{
    char path[FILE_PATH_BYTES];
    expect_ok(file_join(folder, name, path));
    put_file(path, b);
}

static void put_four(const char *folder)
{
    make_folder(folder);
    put(folder, "train-images-idx3-ubyte", images_idx(TRAIN_COUNT));
    put(folder, "train-labels-idx1-ubyte", labels_idx(TRAIN_COUNT));
    put(folder, "t10k-images-idx3-ubyte", images_idx(TEST_COUNT));
    put(folder, "t10k-labels-idx1-ubyte", labels_idx(TEST_COUNT));
}

static void expect_set(const dataset *set, uint32_t count)
{
    ck_assert_uint_eq(set->count, count);
    ck_assert(has_pixels(set->images, count));
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(set->labels[i], i % 10);
}

static void expect_both_splits(const dataset_location *location)
{
    dataset set;
    expect_ok(dataset_open(location, DATASET_TRAIN, &set));
    expect_set(&set, TRAIN_COUNT);
    dataset_close(&set);
    ck_assert_ptr_null(set.images);
    dataset_close(&set); /* accepts an empty one */
    expect_ok(dataset_open(location, DATASET_TEST, &set));
    expect_set(&set, TEST_COUNT);
    dataset_close(&set);
}

static void expect_found(const char *data_dir, const char *folder, const char *found_by)
{
    dataset_location location;
    expect_ok(dataset_locate(DATASET_MNIST, data_dir, &location));
    ck_assert_str_eq(location.folder, folder);
    ck_assert_str_eq(location.found_by, found_by);
    ck_assert(!location.embedded);
    expect_both_splits(&location);
}

/* Each place is taken away in turn, and the next one is found. */
START_TEST(places_are_searched_in_order)
{
    char cached[FILE_PATH_BYTES];
    snprintf(cached, sizeof cached, "%s/cache/mnist_ddp/mnist", sandbox);
    put_four("named");
    put_four("variable");
    put_four("data/MNIST/raw");
    put_four(cached);
    setenv("MNIST_DDP_DATA", "variable", 1);
    expect_found("named", "named", "--data-dir");
    expect_found(NULL, "variable", "$MNIST_DDP_DATA");
    setenv("MNIST_DDP_DATA", "", 1);
    expect_found(NULL, "data/MNIST/raw", "./data/MNIST/raw");
    ck_assert_int_eq(unlink("data/MNIST/raw/t10k-labels-idx1-ubyte"), 0);
    expect_found(NULL, cached, "cache");
}
END_TEST

START_TEST(torchvision_root_is_accepted)
{
    put_four("root/MNIST/raw");
    expect_found("root", "root/MNIST/raw", "--data-dir");
    setenv("MNIST_DDP_DATA", "root", 1);
    expect_found(NULL, "root/MNIST/raw", "$MNIST_DDP_DATA");
}
END_TEST

/* DIR/FashionMNIST beside DIR/MNIST: the folder of one data set is given. */
START_TEST(torchvision_data_set_is_accepted)
{
    put_four("root/FashionMNIST/raw");
    expect_found("root/FashionMNIST", "root/FashionMNIST/raw", "--data-dir");
    ck_assert_int_eq(unlink("root/FashionMNIST/raw/t10k-labels-idx1-ubyte"), 0);
    dataset_location location;
    expect_failure(dataset_locate(DATASET_MNIST, "root/FashionMNIST", &location),
                   "t10k-labels-idx1-ubyte", NULL);
    ck_assert_ptr_null(strstr(status_text(), "images"));
}
END_TEST

START_TEST(names_may_differ)
{
    make_folder("d");
    put("d", "train-images.idx3-ubyte", images_idx(TRAIN_COUNT));
    put("d", "train-labels-idx1-ubyte.gz", gzipped(labels_idx(TRAIN_COUNT)));
    put("d", "t10k-images.idx3-ubyte.gz", gzipped(images_idx(TEST_COUNT)));
    put("d", "t10k-labels-idx1-ubyte", labels_idx(TEST_COUNT));
    put("d", "t10k-labels-idx1-ubyte.gz", labels_idx(TEST_COUNT + 1)); /* plain wins */
    make_folder("d/train-images-idx3-ubyte");                          /* a file wins */
    expect_found("d", "d", "--data-dir");
    ck_assert_int_eq(sandbox_count(COPIES, ".idx"), 2);
}
END_TEST

START_TEST(missing_files_are_listed)
{
    dataset_location location;
    make_folder("d");
    put("d", "train-images-idx3-ubyte", images_idx(1));
    put("d", "t10k-images-idx3-ubyte.gz", gzipped(images_idx(1)));
    expect_failure(dataset_locate(DATASET_MNIST, "d", &location), "--data-dir d", "missing",
                   "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte", NULL);
    ck_assert_ptr_null(strstr(status_text(), "images"));
    setenv("MNIST_DDP_DATA", "d", 1);
    expect_failure(dataset_locate(DATASET_MNIST, NULL, &location), "$MNIST_DDP_DATA d", "missing",
                   NULL);
    setenv("MNIST_DDP_DATA", "nowhere", 1);
    expect_failure(dataset_locate(DATASET_MNIST, NULL, &location), "$MNIST_DDP_DATA nowhere",
                   "No such file", NULL);
    expect_failure(dataset_locate(DATASET_MNIST, "d/train-images-idx3-ubyte", &location),
                   "--data-dir", "directory", NULL);
    expect_failure(dataset_locate(DATASET_MNIST, "", &location), "--data-dir", NULL);
    ck_assert_int_eq(chmod("d", 0), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(65534), 0);
    expect_failure(dataset_locate(DATASET_MNIST, "d", &location), "--data-dir d",
                   "Permission denied", NULL);
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod("d", 0700), 0);
}
END_TEST

START_TEST(counts_must_agree)
{
    dataset_location location = {.folder = "d"};
    dataset set = {0};
    put_four("d");
    put("d", "train-labels-idx1-ubyte", labels_idx(TRAIN_COUNT + 1));
    expect_failure(dataset_open(&location, DATASET_TRAIN, &set), "train-images", "40 images",
                   "41 labels", NULL);
    ck_assert_ptr_null(set.images);
    put("d", "t10k-labels-idx1-ubyte", images_idx(TEST_COUNT));
    expect_failure(dataset_open(&location, DATASET_TEST, &set), "t10k-labels", "byte 3", "labels",
                   NULL);
    ck_assert_int_eq(unlink("d/t10k-labels-idx1-ubyte"), 0);
    expect_failure(dataset_open(&location, DATASET_TEST, &set), "t10k-labels-idx1-ubyte", NULL);
}
END_TEST

static void expect_digits(const dataset_location *location, dataset_split split)
{
    enum { N = 300 };
    static uint8_t images[N * PIXELS], labels[N];
    digits_split made = split == DATASET_TRAIN ? DIGITS_TRAIN : DIGITS_TEST;
    dataset set;
    expect_ok(dataset_open(location, split, &set));
    ck_assert_uint_eq(set.count, split == DATASET_TRAIN ? 60000 : 10000);
    uint32_t last = set.count - N;
    digits_range range = {1, made, last, N};
    expect_ok(digits_generate(&range, 1, images, labels));
    ck_assert_mem_eq(set.images + (size_t)last * PIXELS, images, sizeof images);
    ck_assert_mem_eq(set.labels + last, labels, sizeof labels);
    dataset_close(&set);
}

START_TEST(nothing_found_gives_the_embedded_digits)
{
    dataset_location location, again;
    int64_t begin = clock_now_ns();
    expect_ok(dataset_locate(DATASET_MNIST, NULL, &location));
    int64_t made_ns = clock_now_ns() - begin;
    ck_assert(location.embedded);
    ck_assert_str_eq(location.found_by, "embedded digits");
    ck_assert_ptr_nonnull(strstr(location.folder, "cache/mnist_ddp/digits-v2"));
    ck_assert_int_eq(sandbox_count(location.folder, "-ubyte"), 4);
    expect_digits(&location, DATASET_TRAIN);
    expect_digits(&location, DATASET_TEST);

    /* Found again without work; what is damaged is made anew. */
    begin = clock_now_ns();
    expect_ok(dataset_locate(DATASET_MNIST, NULL, &again));
    ck_assert_int_lt(clock_now_ns() - begin, made_ns / 4);
    ck_assert_str_eq(again.folder, location.folder);
    ck_assert_int_eq(truncate("cache/mnist_ddp/digits-v2/t10k-images-idx3-ubyte", 7000), 0);
    expect_ok(dataset_locate(DATASET_MNIST, NULL, &again));
    expect_digits(&again, DATASET_TEST);
    ck_assert_int_eq(sandbox_count(location.folder, ".tmp"), 0);
}
END_TEST

START_TEST(embedded_digits_without_a_cache)
{
    dataset_location location;
    sandbox_use_cache("/dev/null");
    expect_ok(dataset_locate(DATASET_MNIST, NULL, &location));
    ck_assert(location.embedded);
    ck_assert_str_eq(location.folder, "");
    expect_digits(&location, DATASET_TEST);
}
END_TEST

static uint64_t digest_of(const char *folder, bool gzip, int label)
{
    dataset sets[2];
    dataset_location location = {0};
    bytes labels = labels_idx(TEST_COUNT);
    labels.data[8 + TEST_COUNT - 1] = (uint8_t)label;
    make_folder(folder);
    put(folder, "train-images-idx3-ubyte", images_idx(TRAIN_COUNT));
    put(folder, "train-labels-idx1-ubyte", labels_idx(TRAIN_COUNT));
    put(folder, "t10k-images-idx3-ubyte", images_idx(TEST_COUNT));
    put(folder, gzip ? "t10k-labels-idx1-ubyte.gz" : "t10k-labels-idx1-ubyte",
        gzip ? gzipped(labels) : labels);
    snprintf(location.folder, sizeof location.folder, "%s", folder);
    for (int i = 0; i < 2; i++)
        expect_ok(dataset_open(&location, i == 0 ? DATASET_TRAIN : DATASET_TEST, &sets[i]));
    ck_assert_uint_eq(sets[0].version, 0); /* as old as a file's time can tell: not in the cache */
    uint64_t digest = dataset_digest(&sets[0], &sets[1]);
    dataset_close(&sets[0]);
    dataset_close(&sets[1]);
    return digest;
}

START_TEST(a_digest_is_of_all_bytes_in_any_format)
{
    uint64_t digest = digest_of("plain", false, 9);
    ck_assert_uint_eq(digest_of("gzip", true, 9), digest);
    ck_assert_uint_ne(digest_of("plain", false, 8),
                      digest); /* in place: all stat says is the same */
    ck_assert_uint_eq(digest_of("plain", false, 9), digest);
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp", "digests"), 0);
}
END_TEST

/* Every byte counts, and so does between which two labels and images meet. */
START_TEST(a_digest_is_kept_for_a_version)
{
    static uint8_t pixels[2 * PIXELS], labels[64];
    dataset train = {.count = 2, .images = pixels, .labels = labels, .version = 5};
    dataset test = {.count = 1, .images = pixels, .labels = labels, .version = 7};
    uint64_t kept = dataset_digest(&train, &test), seen[] = {kept, 0, 0, 0};
    pixels[2 * PIXELS - 1] ^= 128;
    ck_assert_uint_eq(dataset_digest(&train, &test), kept); /* nobody has looked */
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp/digests", ""), 2 + 2 /* . .. lock */);
    train.version++;
    seen[1] = dataset_digest(&train, &test);
    labels[1]++;
    train.version = 0; /* too new */
    seen[2] = dataset_digest(&train, &test);
    labels[1]--;
    train.count--;
    seen[3] = dataset_digest(&train, &test);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            ck_assert_uint_ne(seen[i], seen[j]);
    sandbox_use_cache("/dev/null");
    ck_assert_uint_eq(dataset_digest(&train, &test), seen[3]);
}
END_TEST

/* By the digest of their test labels, which all have under the same name. */
START_TEST(sets_are_known_by_their_labels)
{
    dataset_kind kind = DATASET_KINDS;
    const dataset_file *labels =
        &dataset_kind_facts((dataset_kind)_i)->files[mnist_files_index(DATASET_TEST, IDX_LABELS)];
    ck_assert(dataset_kind_by_labels(labels->sha256, &kind) && (int)kind == _i);
    if (labels->plain_sha256 != NULL)
        ck_assert(dataset_kind_by_labels(labels->plain_sha256, &kind) && (int)kind == _i);
    ck_assert(!dataset_kind_by_labels("0", &kind) && !dataset_kind_by_labels("", &kind));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dataset");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, sandbox_create, sandbox_remove);
    tcase_add_test(core, places_are_searched_in_order);
    tcase_add_test(core, torchvision_root_is_accepted);
    tcase_add_test(core, torchvision_data_set_is_accepted);
    tcase_add_loop_test(core, sets_are_known_by_their_labels, 0, DATASET_KINDS);
    tcase_add_test(core, names_may_differ);
    tcase_add_test(core, missing_files_are_listed);
    tcase_add_test(core, counts_must_agree);
    tcase_add_test(core, a_digest_is_of_all_bytes_in_any_format);
    tcase_add_test(core, a_digest_is_kept_for_a_version);
    TCase *embedded = suite_case(suite, "embedded", 60);
    tcase_add_checked_fixture(embedded, sandbox_create, sandbox_remove);
    tcase_add_test(embedded, nothing_found_gives_the_embedded_digits);
    tcase_add_test(embedded, embedded_digits_without_a_cache);
    return suite_run(suite);
}
