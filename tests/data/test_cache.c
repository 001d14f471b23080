/* One decompressed copy for many processes: whole or absent, whichever process dies, and in memory
 * if there is no cache. */
#include "data/cache.h"

#include "base/clock.h"
#include "data/idx.h"
#include "tests/data/sandbox.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { FEW = 40, BIG_COUNT = 20000 };

static const char COPIES[] = "cache/mnist_ddp/idx";

/* The one decompressed copy in the cache; its path is valid until the next call. */
static const char *only_copy(void)
{
    static char path[FILE_PATH_BYTES];
    DIR *listing = opendir(COPIES);
    ck_assert_ptr_nonnull(listing);
    int found = 0;
    for (struct dirent *e = readdir(listing); e != NULL; e = readdir(listing)) {
        if (strstr(e->d_name, ".idx") == NULL)
            continue;
        expect_ok(file_join(COPIES, e->d_name, path));
        found++;
    }
    closedir(listing);
    ck_assert_int_eq(found, 1);
    return path;
}

static void expect_labels(const char *path, uint32_t count)
{
    idx_file file;
    expect_ok(idx_file_open(path, IDX_LABELS, &file));
    ck_assert_uint_eq(file.count, count);
    ck_assert_uint_eq(file.elements[count - 1], (count - 1) % 10);
    idx_file_close(&file);
}

/* A copy that is cut, too long or not labels is made anew. */
START_TEST(damaged_copy_is_replaced)
{
    put_file("labels.gz", gzipped(labels_idx(100)));
    expect_labels("labels.gz", 100);
    for (size_t size = 0; size <= 200; size += 50) {
        uint8_t wrong[200];
        memset(wrong, 0xff, sizeof wrong);
        write_bytes(only_copy(), wrong, size);
        expect_labels("labels.gz", 100);
    }
    ck_assert_int_eq(truncate(only_copy(), 107), 0);
    expect_labels("labels.gz", 100);
    struct stat info;
    ck_assert_int_eq(stat(only_copy(), &info), 0);
    ck_assert_int_eq(info.st_size, 108);
}
END_TEST

/* Another file under the same name gets another copy: by size, and by time alone. */
START_TEST(changed_original_is_read_anew)
{
    bytes b = labels_idx(100);
    put_file("labels.gz", gzipped(b));
    expect_labels("labels.gz", 100);
    put_file("labels.gz", gzipped(labels_idx(5000)));
    expect_labels("labels.gz", 5000);
    ck_assert_int_eq(sandbox_count(COPIES, ".idx"), 2);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000, .tv_nsec = 1}};
    ck_assert_int_eq(utimensat(AT_FDCWD, "labels.gz", times, 0), 0);
    expect_labels("labels.gz", 5000);
    ck_assert_int_eq(sandbox_count(COPIES, ".idx"), 3);
}
END_TEST

static uint8_t *read_copies(const char *path)
{
    idx_file file;
    if (idx_file_open(path, IDX_IMAGES, &file) != STATUS_OK)
        return NULL;
    return file.count == BIG_COUNT && has_pixels(file.elements, BIG_COUNT) ? file.mapping : NULL;
}

/* The inode that this process has mapped at `address`; 0: none, or memory. */
static unsigned long mapped_inode(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024], start[32];
    unsigned long inode = 0, value = 0;
    int n = snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)address);
    while (maps != NULL && inode == 0 && fgets(line, sizeof line, maps) != NULL)
        if (strncmp(line, start, (size_t)n) == 0 &&
            sscanf(line, "%*s %*s %*s %*s %lu", &value) == 1)
            inode = value;
    if (maps != NULL)
        fclose(maps);
    return inode;
}

static int wait_for(pid_t pid)
{
    int how = 0;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    return how;
}

/* Several processes start at once on an empty cache: all see the right bytes in one file. */
START_TEST(racing_processes_share_one_copy)
{
    enum { RANKS = 4 };
    pid_t pids[RANKS];
    put_file("images.gz", gzipped(images_idx(BIG_COUNT)));
    volatile unsigned long *inodes =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne((void *)inodes, MAP_FAILED);
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        ck_assert_int_ge(pids[rank], 0);
        if (pids[rank] == 0) {
            const uint8_t *mapping = read_copies("images.gz");
            inodes[rank] = mapping != NULL ? mapped_inode(mapping) : 0;
            _exit(mapping != NULL ? 0 : 1);
        }
    }
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(wait_for(pids[rank]), 0);
    struct stat info;
    ck_assert_int_eq(stat(only_copy(), &info), 0);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_uint_eq(inodes[rank], info.st_ino);
    ck_assert_int_eq(sandbox_count(COPIES, ".tmp"), 0);
    munmap((void *)(uintptr_t)inodes, 4096);
}
END_TEST

static void expect_no_half_copy(void)
{
    if (sandbox_count(COPIES, ".idx") == sandbox_count(COPIES, ".tmp"))
        return; /* temporary names only */
    DIR *listing = opendir(COPIES);
    ck_assert_ptr_nonnull(listing);
    for (struct dirent *e = readdir(listing); e != NULL; e = readdir(listing)) {
        char path[FILE_PATH_BYTES];
        struct stat info;
        if (strstr(e->d_name, ".idx") == NULL || strstr(e->d_name, ".tmp") != NULL)
            continue;
        expect_ok(file_join(COPIES, e->d_name, path));
        ck_assert_int_eq(stat(path, &info), 0);
        ck_assert_int_eq(info.st_size, 16 + (long)BIG_COUNT * PIXELS);
    }
    closedir(listing);
}

/* The kernel kills the writer when its file reaches a limit: certainly in the middle. */
START_TEST(writer_killed_in_the_middle_leaves_nothing)
{
    put_file("images.gz", gzipped(images_idx(BIG_COUNT)));
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct rlimit limit = {5000000, 5000000}, none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        setrlimit(RLIMIT_FSIZE, &limit);
        read_copies("images.gz");
        _exit(0);
    }
    int how = wait_for(pid);
    ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGXFSZ);
    ck_assert_int_eq(sandbox_count(COPIES, ".tmp"), 1);
    expect_no_half_copy();
    const uint8_t *mapping = read_copies("images.gz"); /* the lock went with its holder */
    ck_assert_msg(mapping != NULL, "%s", status_text());
    ck_assert_int_eq(sandbox_count(COPIES, ".tmp"), 0);
    only_copy();
}
END_TEST

START_TEST(writer_killed_at_any_time_leaves_nothing)
{
    put_file("images.gz", gzipped(images_idx(BIG_COUNT)));
    for (int round = 0; round < 8; round++) {
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            read_copies("images.gz");
            _exit(0);
        }
        usleep((unsigned)round * 9000);
        kill(pid, SIGKILL);
        wait_for(pid);
        expect_no_half_copy();
    }
    ck_assert_ptr_nonnull(read_copies("images.gz"));
    only_copy();
    ck_assert_int_eq(sandbox_count(COPIES, ".tmp"), 0);
}
END_TEST

START_TEST(lock_is_exclusive_and_waits_are_bounded)
{
    int first = -1, second = -1;
    expect_ok(file_make_folders(COPIES));
    expect_ok(cache_lock(COPIES, 0, &first));
    int64_t begin = clock_now_ns();
    status st = cache_lock(COPIES, 60, &second);
    ck_assert_int_eq(st, STATUS_TIMEOUT);
    ck_assert_int_ge(clock_now_ns() - begin, 60 * 1000000);
    expect_failure(st, COPIES, "lock", "process", NULL);
    ck_assert_int_eq(second, -1);
    cache_unlock(first);
    expect_ok(cache_lock(COPIES, 0, &second));
    cache_unlock(second);
    cache_unlock(-1);
}
END_TEST

START_TEST(entry_is_whole_or_absent)
{
    file_draft entry = {.fd = -1};
    expect_ok(cache_draft("./x.idx", &entry));
    expect_ok(file_append(entry.fd, "x", "half", 4));
    ck_assert(!file_exists("x.idx"));
    file_draft_drop(&entry);
    ck_assert_int_eq(sandbox_count(".", "x.idx"), 0);
    file_draft_drop(&entry);
    expect_ok(cache_draft("./x.idx", &entry));
    expect_ok(file_append(entry.fd, "x", "whole", 5));
    expect_ok(file_draft_commit(&entry));
    file_draft_drop(&entry); /* too late: nothing happens */
    char *text = NULL;
    size_t size = 0;
    expect_ok(file_read("x.idx", 100, &text, &size));
    ck_assert_str_eq(text, "whole");
    free(text);
    ck_assert_int_eq(sandbox_count(".", "x.idx"), 1);
    expect_ok(cache_draft("./y.idx", &entry));
    expect_ok(file_make_folders("y.idx"));
    expect_failure(file_draft_commit(&entry), "rename", "y.idx", NULL);
    ck_assert_int_eq(sandbox_count(".", "y.idx"), 1);
}
END_TEST

/* No variable, a relative one, a file in the way, a folder that may not be written. */
START_TEST(no_writable_cache_means_memory)
{
    put_file("images.gz", gzipped(images_idx(FEW)));
    put_file("occupied", labels_idx(1));
    char occupied[FILE_PATH_BYTES];
    expect_ok(file_join(sandbox, "occupied", occupied));
    const char *const caches[] = {NULL, "", "relative", occupied, "/dev/null"};
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        idx_file file;
        if (caches[i] != NULL) {
            sandbox_use_cache(caches[i]);
        } else {
            unsetenv("XDG_CACHE_HOME");
            unsetenv("HOME");
        }
        expect_ok(idx_file_open("images.gz", IDX_IMAGES, &file));
        ck_assert_uint_eq(file.count, FEW);
        ck_assert(has_pixels(file.elements, FEW));
        ck_assert_str_ne(file.uncached, ""); /* the reason */
        idx_file_close(&file);
    }
    ck_assert(!file_exists("relative"));
    ck_assert(!file_exists("cache"));
}
END_TEST

START_TEST(read_only_cache_is_still_read)
{
    put_file("labels.gz", gzipped(labels_idx(100)));
    put_file("later.gz", gzipped(labels_idx(200)));
    expect_labels("labels.gz", 100);
    ck_assert_int_eq(chmod(only_copy(), 0644), 0);
    ck_assert_int_eq(chmod(COPIES, 0555), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(65534), 0);
    expect_labels("labels.gz", 100);
    expect_labels("later.gz", 200); /* in memory */
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(COPIES, 0755), 0);
    only_copy();
}
END_TEST

START_TEST(home_is_the_second_choice)
{
    char home[FILE_PATH_BYTES];
    expect_ok(file_join(sandbox, "home", home));
    expect_ok(file_make_folders(home));
    put_file("labels.gz", gzipped(labels_idx(100)));
    sandbox_use_cache("/dev/null");
    setenv("HOME", home, 1);
    expect_labels("labels.gz", 100);
    ck_assert_int_eq(sandbox_count("home/.cache/mnist_ddp/idx", ".idx"), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, sandbox_create, sandbox_remove);
    tcase_add_test(core, damaged_copy_is_replaced);
    tcase_add_test(core, changed_original_is_read_anew);
    tcase_add_test(core, racing_processes_share_one_copy);
    tcase_add_test(core, writer_killed_in_the_middle_leaves_nothing);
    tcase_add_test(core, writer_killed_at_any_time_leaves_nothing);
    tcase_add_test(core, lock_is_exclusive_and_waits_are_bounded);
    tcase_add_test(core, entry_is_whole_or_absent);
    tcase_add_test(core, no_writable_cache_means_memory);
    tcase_add_test(core, read_only_cache_is_still_read);
    tcase_add_test(core, home_is_the_second_choice);
    return suite_run(suite);
}
