#include "tests/app/support/test_folder.h"

#include "base/clock.h"
#include "base/memory.h"
#include "data/digits.h"

#include <stdio.h>

char test_folder[64];

void test_folder_require(status st)
{
    if (st != STATUS_OK) {
        fprintf(stderr, "test folder: %s\n", status_text());
        exit(EXIT_FAILURE);
    }
}

char *test_folder_path(const char *name)
{
    static char paths[8][FILE_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, FILE_PATH_BYTES, "%s/%s", test_folder, name);
    return path;
}

static void write_idx(const char *name, uint32_t count, int dimensions, const uint8_t *data,
                      size_t size_bytes)
{
    uint8_t header[16] = {0, 0, 8, (uint8_t)dimensions};
    uint32_t sizes[3] = {count, 28, 28};
    for (int d = 0; d < dimensions; d++)
        for (int b = 0; b < 4; b++)
            header[4 + 4 * d + b] = (uint8_t)(sizes[d] >> (24 - 8 * b));
    file_part parts[] = {{header, 4 + 4 * (size_t)dimensions}, {data, size_bytes}};
    test_folder_require(file_write(test_folder_path(name), parts, 2));
}

static void write_split(digits_split split, const char *prefix, uint32_t count)
{
    char name[64];
    uint8_t *images = NULL, *labels = NULL;
    test_folder_require(memory_alloc((size_t)count * 784, (void **)&images));
    test_folder_require(memory_alloc(count, (void **)&labels));
    digits_range range = {7, split, 0, count};
    test_folder_require(digits_generate(&range, 1, images, labels));
    snprintf(name, sizeof name, "data/%s-images-idx3-ubyte", prefix);
    write_idx(name, count, 3, images, (size_t)count * 784);
    snprintf(name, sizeof name, "data/%s-labels-idx1-ubyte", prefix);
    write_idx(name, count, 1, labels, count);
    free(images);
    free(labels);
}

void test_folder_open(void)
{
    strcpy(test_folder, "/tmp/mnist_ddp-app-XXXXXX");
    if (mkdtemp(test_folder) == NULL)
        exit(EXIT_FAILURE);
    test_folder_require(file_make_folders(test_folder_path("data")));
    write_split(DIGITS_TRAIN, "train", TEST_FOLDER_TRAIN);
    write_split(DIGITS_TEST, "t10k", TEST_FOLDER_TEST);
    setenv("MNIST_DDP_DATA", test_folder_path("data"), 1);
    setenv("XDG_CACHE_HOME", test_folder_path("cache"), 1);
    setenv("TMPDIR", test_folder, 1);
    if (chdir(test_folder) != 0)
        exit(EXIT_FAILURE);
}

int test_folder_close(int exit_code)
{
    char shell[128];
    snprintf(shell, sizeof shell, "rm -rf '%s'", test_folder);
    return chdir("/") != 0 || system(shell) != 0 ? EXIT_FAILURE : exit_code;
}

void test_folder_clean(void)
{
    char command[192];
    snprintf(command, sizeof command,
             "find '%s' -mindepth 1 -maxdepth 1 ! -name data ! -name cache -exec rm -rf {} +",
             test_folder);
    ck_assert_int_eq(system(command), 0);
}

void test_folder_remove(const char *names)
{
    char command[256];
    snprintf(command, sizeof command, "cd '%s' && rm -rf %s", test_folder, names);
    ck_assert_int_eq(system(command), 0);
}

char *test_folder_read(const char *path)
{
    char *text = NULL;
    size_t size_bytes;
    ck_assert_msg(file_read(path, 1 << 20, &text, &size_bytes) == STATUS_OK, "%s", status_text());
    return text;
}

void test_folder_write(const char *path, const char *text)
{
    const file_part part = {text, strlen(text)};
    unlink(path);
    ck_assert_msg(file_write(path, &part, 1) == STATUS_OK, "%s", status_text());
}

void test_folder_await(const char *path)
{
    for (int64_t end_ns = clock_deadline_ns(RUN_S * 1000); !file_exists(path);) {
        ck_assert_msg(!clock_passed(end_ns), "%s did not come", path);
        clock_sleep_ms(POLL_MS);
    }
}

pid_t test_folder_await_pid(const char *path)
{
    pid_t pid = 0;
    test_folder_await(path);
    for (int64_t end_ns = clock_deadline_ns(5000); pid == 0 && !clock_passed(end_ns);) {
        char *text = test_folder_read(path);
        pid = (pid_t)atoi(text);
        free(text);
    }
    ck_assert_int_gt(pid, 1);
    return pid;
}

void test_folder_shift_labels(void)
{
    static const char *const names[] = {"train", "t10k"};
    char path[64];
    ck_assert_int_eq(system("rm -rf other && cp -r data other"), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "other/%s-labels-idx1-ubyte", names[i]);
        FILE *file = fopen(path, "r+b");
        ck_assert_ptr_nonnull(file);
        fseek(file, 8, SEEK_SET);
        for (int label; (label = fgetc(file)) != EOF;) {
            fseek(file, -1, SEEK_CUR);
            fputc((label + 1) % 10, file);
            fseek(file, 0, SEEK_CUR);
        }
        ck_assert_int_eq(fclose(file), 0);
    }
}
