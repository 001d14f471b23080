/* Files are written whole or not at all, and read within limits. */
#include "base/file.h"

#include "tests/support/suite.h"

#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

static void setup(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/mnist_ddp_test_XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static void teardown(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void expect_ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_message());
}

static void expect_failure(status st, status want, const char *words)
{
    ck_assert_int_eq(st, want);
    ck_assert_msg(strstr(status_message(), words) != NULL, "no \"%s\" in: %s", words,
                  status_message());
}

static void expect_content(const char *path, const char *want)
{
    char *text = NULL;
    size_t size = 0;
    expect_ok(file_read(path, 1000, &text, &size));
    ck_assert_uint_eq(size, strlen(want));
    ck_assert_str_eq(text, want); /* the zero behind the end, too */
    free(text);
}

static int count_files(void)
{
    int count = 0;
    DIR *listing = opendir(".");
    ck_assert_ptr_nonnull(listing);
    for (struct dirent *found = readdir(listing); found != NULL; found = readdir(listing))
        count += found->d_name[0] != '.';
    closedir(listing);
    return count;
}

START_TEST(folders_are_made_with_their_parents)
{
    expect_ok(file_make_folders("a/b/c"));
    expect_ok(file_make_folders("a/b/c"));
    expect_ok(file_make_folders("a//b/d/"));
    ck_assert(file_exists("a/b/d"));
    ck_assert(!file_exists("a/b/e"));
    expect_ok(file_write("a/file", NULL, 0));
    expect_failure(file_make_folders("a/file"), STATUS_IO, "a/file");
    expect_failure(file_make_folders("a/file/x"), STATUS_IO, "a/file/x");
    expect_failure(file_make_folders(""), STATUS_INVALID, "folder");
}
END_TEST

START_TEST(parts_are_written_in_order)
{
    const file_part parts[] = {{"one ", 4}, {"", 0}, {"two", 3}};
    expect_ok(file_write("f", parts, 3));
    expect_content("f", "one two");
    expect_ok(file_write("f", parts, 1));
    expect_content("f", "one ");
    expect_ok(file_write("f", NULL, 0));
    expect_content("f", "");
    expect_failure(file_write("no/f", parts, 1), STATUS_IO, "no/f");
}
END_TEST

START_TEST(replace_leaves_old_or_new)
{
    static char large[100000];
    const file_part old = {"old", 3}, new = {"new", 3}, too_large = {large, sizeof large};
    expect_ok(file_replace("f", &old, 1));
    expect_content("f", "old");
    expect_ok(file_replace("f", &new, 1));
    expect_content("f", "new");

    /* The disk is full, as far as this process can tell. */
    struct rlimit limit = {50000, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    status replaced = file_replace("f", &too_large, 1);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_failure(replaced, STATUS_IO, "f.tmp");
    expect_content("f", "new");
    ck_assert_int_eq(count_files(), 1);

    expect_ok(file_make_folders("taken"));
    expect_failure(file_replace("taken", &new, 1), STATUS_IO, "taken");
    ck_assert_int_eq(count_files(), 2);
    expect_ok(file_sync_folder("."));
    expect_failure(file_sync_folder("f"), STATUS_IO, "f");
}
END_TEST

START_TEST(reading_has_limits)
{
    const file_part part = {"12345", 5};
    char *text = NULL;
    size_t size = 0;
    expect_ok(file_write("f", &part, 1));
    expect_ok(file_read("f", 5, &text, &size));
    free(text);
    text = NULL;
    expect_failure(file_read("f", 4, &text, &size), STATUS_INVALID, "4 bytes");
    expect_failure(file_read(".", 4, &text, &size), STATUS_INVALID, "regular");
    expect_failure(file_read("absent", 4, &text, &size), STATUS_IO, "absent");
    ck_assert_ptr_null(text);
}
END_TEST

/* Files in /proc say that they are empty. */
START_TEST(a_file_of_unknown_size_is_read)
{
    char *text = NULL;
    size_t size_bytes = 0;
    ck_assert_int_eq(file_read("/proc/sys/kernel/random/boot_id", 100, &text, &size_bytes),
                     STATUS_OK);
    ck_assert_uint_eq(size_bytes, 37); /* a UUID and the line's end */
    ck_assert_uint_eq(strlen(text), 37);
    free(text);
    ck_assert_int_eq(file_read("/dev/null", 100, &text, &size_bytes), STATUS_INVALID);
}
END_TEST

START_TEST(joined_paths_fit_or_fail)
{
    char out[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    expect_ok(file_join("a", "b", out));
    ck_assert_str_eq(out, "a/b");
    memset(name, 'n', sizeof name);
    name[FILE_PATH_BYTES - 3] = '\0';
    expect_ok(file_join("a", name, out));
    ck_assert_uint_eq(strlen(out), FILE_PATH_BYTES - 1);
    expect_failure(file_join("ab", name, out), STATUS_INVALID, "too long");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_test(core, folders_are_made_with_their_parents);
    tcase_add_test(core, parts_are_written_in_order);
    tcase_add_test(core, replace_leaves_old_or_new);
    tcase_add_test(core, reading_has_limits);
    tcase_add_test(core, a_file_of_unknown_size_is_read);
    tcase_add_test(core, joined_paths_fit_or_fail);
    return suite_run(suite);
}
