/* Files are written whole or not at all, and read within limits. */
#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <dirent.h>
#include <fcntl.h>
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
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

/* `st` is `want`, and the message holds all the facts that follow. */
#define expect_failure(st, want, ...) \
    do { \
        ck_assert_int_eq((st), (want)); \
        ASSERT_FACTS(status_text(), __VA_ARGS__); \
    } while (0)

static void expect_content(const char *path, const char *want)
{
    char *text = NULL;
    size_t size = 0;
    expect_ok(file_read(path, 1000, &text, &size));
    ck_assert_uint_eq(size, strlen(want));
    ck_assert_str_eq(text, want); /* the zero after the end, too */
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
    expect_failure(replaced, STATUS_IO, "File too large");
    ck_assert_ptr_nonnull(strstr(status_text(), "f.tmp")); /* and a number follows */
    expect_content("f", "new");
    ck_assert_int_eq(count_files(), 1);

    expect_ok(file_make_folders("taken"));
    expect_failure(file_replace("taken", &new, 1), STATUS_IO, "taken");
    ck_assert_int_eq(count_files(), 2);
    expect_ok(file_sync_folder("."));
    expect_failure(file_sync_folder("f"), STATUS_IO, "f");
}
END_TEST

/* Somebody who may write in the folder puts a link where the temporary file might come. */
START_TEST(planted_links_are_not_followed)
{
    const file_part old = {"precious", 8}, new = {"new", 3};
    char name[64];
    expect_ok(file_write("victim", &old, 1));
    snprintf(name, sizeof name, "f.tmp.%ld", (long)getpid());
    ck_assert_int_eq(symlink("victim", name), 0);
    ck_assert_int_eq(symlink("victim", "f.tmp"), 0);
    ck_assert_int_eq(symlink("victim", "f"), 0);
    expect_ok(file_replace("f", &new, 1));
    expect_content("victim", "precious");
    expect_content("f", "new");
    struct stat info;
    ck_assert_int_eq(lstat("f", &info), 0);
    ck_assert(S_ISREG(info.st_mode));
}
END_TEST

/* Every name is a new one, and nobody else's file is taken for it. */
START_TEST(drafts_have_names_of_their_own)
{
    file_draft drafts[20];
    struct stat info;
    umask(027);
    for (int i = 0; i < 20; i++) {
        expect_ok(file_draft_open("f", i % 2 ? FILE_DRAFT_PRIVATE : FILE_DRAFT_SHARED, &drafts[i]));
        ck_assert_int_eq(fstat(drafts[i].fd, &info), 0);
        ck_assert_int_eq(info.st_mode & 0777, i % 2 ? 0600 : 0640);
        ck_assert_int_eq(fcntl(drafts[i].fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(drafts[i].temporary, drafts[k].temporary);
    }
    ck_assert_int_eq(count_files(), 20);
    expect_ok(file_append(drafts[0].fd, "f", "0", 1));
    expect_ok(file_draft_commit(&drafts[0]));
    expect_content("f", "0");
    file_draft_drop(&drafts[1]);
    ck_assert_int_eq(count_files(), 19);
    static const char *const others[] = {"g.tmp-0123abcd", "f.tmp-mine", "f.tmp-0123abcd0",
                                         "f.tmp-0123ABCD", "f.tmp"};
    for (int i = 0; i < 5; i++)
        expect_ok(file_write(others[i], NULL, 0));
    file_draft_clean("f");
    ck_assert_int_eq(count_files(), 6); /* and "f" */
    for (int i = 0; i < 5; i++)
        ck_assert(file_exists(others[i]));
    for (int i = 2; i < 20; i++)
        file_draft_drop(&drafts[i]);
}
END_TEST

START_TEST(a_copy_is_a_file_of_its_own)
{
    static char large[300001];
    const file_part part = {large, sizeof large}, old = {"old", 3};
    char *data = NULL;
    size_t size = 0;
    memset(large, 'x', sizeof large);
    expect_ok(file_write("from", &part, 1));
    expect_ok(file_write("to", &old, 1));
    expect_ok(file_copy("from", "to"));
    expect_ok(file_write("from", &old, 1)); /* in place */
    expect_ok(file_read("to", sizeof large, &data, &size));
    ck_assert_uint_eq(size, sizeof large);
    ck_assert(memcmp(data, large, size) == 0);
    free(data);
    expect_ok(file_write("from", NULL, 0));
    expect_ok(file_copy("from", "to"));
    expect_content("to", "");
    /* The kernel copies nothing out of /proc by itself. */
    expect_ok(file_copy("/proc/sys/kernel/ostype", "to"));
    expect_content("to", "Linux\n");
    expect_failure(file_copy("absent", "to"), STATUS_IO, "absent");
    expect_content("to", "Linux\n");
    expect_failure(file_copy("from", "no/to"), STATUS_IO, "no/to");
    ck_assert_int_eq(count_files(), 2);
}
END_TEST

START_TEST(the_folder_of_a_path)
{
    static const char *const paths[][2] = {{"a", "."},      {"/a", "/"},        {"a/b", "a"},
                                           {"/a/b/", "/a"}, {"a/b//c", "a/b/"}, {"/", "/"}};
    char out[FILE_PATH_BYTES];
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        file_folder_of(paths[i][0], out);
        ck_assert_str_eq(out, paths[i][1]);
    }
}
END_TEST

START_TEST(a_path_is_in_a_folder_by_any_name)
{
    char here[FILE_PATH_BYTES], whole[2 * FILE_PATH_BYTES];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(whole, sizeof whole, "%s/run//a/../trace.json", here);
    ck_assert(file_is_in(whole, "run"));
    ck_assert(file_is_in("./run/trace.json", "run/"));
    ck_assert(file_is_in("run/b/trace.json", "./run"));
    ck_assert(!file_is_in("run2/trace.json", "run"));
    ck_assert(!file_is_in("run/../trace.json", "run"));
    ck_assert(!file_is_in("nowhere/t.json", "run"));
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
    expect_failure(file_read("f", 4, &text, &size), STATUS_INVALID, "f", "4 bytes");
    expect_failure(file_read(".", 4, &text, &size), STATUS_INVALID, ".", "regular");
    expect_failure(file_read("absent", 4, &text, &size), STATUS_IO, "absent");
    ck_assert_ptr_null(text);
}
END_TEST

/* Nobody writes to this FIFO, and nobody may be kept by it: the case has a time limit. */
START_TEST(a_fifo_is_not_waited_for)
{
    const file_part part = {"new", 3};
    char *text = NULL;
    size_t size = 0;
    ck_assert_int_eq(mkfifo("fifo", 0600), 0);
    expect_failure(file_read("fifo", 5, &text, &size), STATUS_INVALID, "fifo", "regular");
    expect_failure(file_copy("fifo", "to"), STATUS_INVALID, "fifo", "regular");
    ck_assert_int_eq(count_files(), 1);
    expect_ok(file_replace("fifo", &part, 1));
    expect_content("fifo", "new");
}
END_TEST

/* Whoever has the rights would lose it. The folder's /dev/null is a link, as /dev/stdout is. */
START_TEST(a_device_is_not_replaced)
{
    const file_part part = {"new", 3};
    ck_assert_int_eq(symlink("/dev/null", "null"), 0);
    expect_failure(file_replace("null", &part, 1), STATUS_IO, "null", "device");
    ck_assert_int_eq(count_files(), 1);
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

START_TEST(temporary_folders_are_new)
{
    char one[FILE_PATH_BYTES], two[FILE_PATH_BYTES];
    expect_ok(file_make_temporary_folder(".", "a", one));
    expect_ok(file_make_temporary_folder(".", "a", two));
    ck_assert(strncmp(one, "./a_", 4) == 0 && strcmp(one, two) != 0 && file_exists(two));
    ck_assert_int_eq(setenv("TMPDIR", folder, 1), 0);
    expect_ok(file_make_temporary_folder(NULL, "b", one));
    ck_assert(strncmp(one, folder, strlen(folder)) == 0 && file_exists(one));
    ck_assert_int_eq(setenv("TMPDIR", ".", 1), 0); /* it is no absolute path */
    expect_ok(file_make_temporary_folder(NULL, "c", one));
    ck_assert(strncmp(one, "/tmp/c_", 7) == 0 && rmdir(one) == 0);
    expect_failure(file_make_temporary_folder("no", "a", one), STATUS_IO, "No such file");
    memset(two, 'n', sizeof two - 1);
    two[FILE_PATH_BYTES - sizeof "/a_XXXXXX" + 1] = '\0'; /* one byte too many */
    expect_failure(file_make_temporary_folder(two, "a", one), STATUS_INVALID, "too long");
}
END_TEST

START_TEST(a_text_becomes_a_file_or_leaves_it)
{
    text_stream stream;
    expect_ok(text_stream_open(&stream));
    fputs("first", stream.file);
    expect_ok(text_stream_save(&stream, STATUS_OK, "f"));
    expect_content("f", "first");
    expect_ok(text_stream_open(&stream));
    fputs("half", stream.file);
    expect_failure(text_stream_save(&stream, FAIL(STATUS_PEER, "lost"), "f"), STATUS_PEER, "lost");
    expect_ok(text_stream_open(&stream));
    stream.failed = true;
    ck_assert_int_eq(text_stream_save(&stream, STATUS_OK, "f"), STATUS_NO_MEMORY);
    expect_content("f", "first");
}
END_TEST

START_TEST(json_is_read_or_its_line_is_named)
{
    static const char *const wrong[] = {"", "{\n\"a\": }", "{\n\"a\": 1, \"a\": 2}"};
    static const char *const places[] = {"f:1", "f:2", "f:2"};
    static const char right[] = "{\"a\": 1}";
    json_t *value = NULL;
    for (int i = 0; i < 3; i++) {
        expect_ok(file_replace("f", &(file_part){wrong[i], strlen(wrong[i])}, 1));
        expect_failure(json_text_read("f", 100, &value), STATUS_INVALID, places[i]);
    }
    expect_ok(file_replace("f", &(file_part){right, strlen(right)}, 1));
    ck_assert_int_eq(json_text_read("f", 7, &value), STATUS_INVALID);
    ck_assert_int_eq(json_text_read("absent", 100, &value), STATUS_IO);
    ck_assert_ptr_null(value);
    expect_ok(json_text_read("f", 8, &value));
    ck_assert_int_eq(json_integer_value(json_object_get(value, "a")), 1);
    expect_ok(json_text_save(value, JSON_COMPACT, "g"));
    expect_content("g", "{\"a\":1}\n");
    json_decref(value);
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
    expect_failure(file_join("ab", name, out), STATUS_INVALID, "path", "long");
}
END_TEST

START_TEST(the_holder_of_a_folder_is_named)
{
    char pid[32];
    int fd = -1, second = -1;
    snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    expect_ok(file_lock_folder(folder, &fd));
    expect_failure(file_lock_folder(folder, &second), STATUS_INVALID, folder, pid,
                   "test_base file");
    close(fd);
    expect_ok(file_lock_folder(folder, &second));
    close(second);
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
    tcase_add_test(core, planted_links_are_not_followed);
    tcase_add_test(core, drafts_have_names_of_their_own);
    tcase_add_test(core, a_copy_is_a_file_of_its_own);
    tcase_add_test(core, the_folder_of_a_path);
    tcase_add_test(core, a_path_is_in_a_folder_by_any_name);
    tcase_add_test(core, reading_has_limits);
    tcase_add_test(core, a_fifo_is_not_waited_for);
    tcase_add_test(core, a_device_is_not_replaced);
    tcase_add_test(core, a_file_of_unknown_size_is_read);
    tcase_add_test(core, temporary_folders_are_new);
    tcase_add_test(core, a_text_becomes_a_file_or_leaves_it);
    tcase_add_test(core, json_is_read_or_its_line_is_named);
    tcase_add_test(core, joined_paths_fit_or_fail);
    tcase_add_test(core, the_holder_of_a_folder_is_named);
    return suite_run(suite);
}
