/* Whatever happens to a checkpoint's writer, the one before or the new one is there, whole. */
#include "base/clock.h"
#include "base/random.h"
#include "model/checkpoint.h"
#include "tests/model/scratch.h"
#include "tests/model/trainee.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void limit_files(rlim_t size_bytes)
{
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){size_bytes, RLIM_INFINITY}), 0);
}

/* The second save fails for want of room: the first stays, and nothing half-written. The limit is
 * lifted for Check, which writes files too. */
static void save_without_room(rlim_t file_limit)
{
    checkpoint_state state = state_of(2);
    stamp(&mlp, 2, false);
    limit_files(file_limit);
    status st = checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL);
    limit_files(RLIM_INFINITY);
    ck_assert_msg(st == STATUS_IO, "%s: %s", status_name(st), status_text());
    ck_assert_msg(strstr(status_text(), "00000002.tmp/") != NULL, "%s", status_text());
    ck_assert_int_eq(count_names(), 1);
    expect_newest(1);
    ck_assert_int_eq(checkpoint_load_model(scratch, mlp.net, NULL), STATUS_OK);
}

/* Files may have at most so many bytes: the model file, then only the optimizer's, is too long. */
START_TEST(file_size_limit)
{
    static const rlim_t limits[] = {0, 100, 1 << 20, 2678000};
    save(1);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        save_without_room(limits[i]);
}
END_TEST

static bool put_line(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Enters a mount namespace in which `scratch` is a file system of `size_kib`; false if the kernel
 * does not allow it. */
static bool mount_small(int size_kib)
{
    char options[32], user[32], group[32];
    snprintf(options, sizeof options, "size=%dk", size_kib);
    snprintf(user, sizeof user, "0 %u 1", (unsigned)geteuid());
    snprintf(group, sizeof group, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && put_line("/proc/self/setgroups", "deny") &&
           put_line("/proc/self/uid_map", user) && put_line("/proc/self/gid_map", group) &&
           mount("tmpfs", scratch, "tmpfs", 0, options) == 0;
}

/* A checkpoint of the mlp with momentum takes 655 + 655 + 1 pages, and the published model 655: the
 * last size lacks only the last. */
static const int DISK_KIB[] = {7920, 8620, 10500, 10620, 12620, 13104};
enum { N_DISKS = sizeof DISK_KIB / sizeof DISK_KIB[0] };

START_TEST(full_disk)
{
    if (!mount_small(DISK_KIB[_i])) {
        fprintf(stderr, "SKIP: no small file system of our own for full_disk %d\n", _i);
        return;
    }
    save(1);
    save_without_room(RLIM_INFINITY);
    ck_assert_int_eq(umount(scratch), 0);
}
END_TEST

/* One writer: saves step after step until it is killed. */
static void save_for_ever(int64_t step)
{
    for (;; step++) {
        checkpoint_state state = state_of(step);
        stamp(&mlp, step, false);
        if (checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL) != STATUS_OK)
            _exit(1);
    }
}

/* A few saves long on this machine, so that kills come before, during and after them. One save has
 * begun at `started_ns` and just ended. */
static int64_t span_ms(int64_t started_ns)
{
    enum { MIN_MS = 120, SAVES = 6 };
    int64_t few_ms = SAVES * ((clock_now_ns() - started_ns) / 1000000);
    return few_ms < MIN_MS ? MIN_MS : few_ms;
}

START_TEST(killed_at_any_moment)
{
    enum { KILLS = 20 };
    bool found = false;
    checkpoint_state state = state_of(1);
    char path[FILE_PATH_BYTES];
    mt19937 generator;
    mt19937_init(&generator, (uint64_t)clock_now_ns());
    int64_t started_ns = clock_now_ns();
    save(1);
    int64_t most_ms = span_ms(started_ns);
    for (int i = 0; i < KILLS; i++) {
        int64_t before = state.at.step;
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0)
            save_for_ever(before + 1);
        clock_sleep_ms(mt19937_u32(&generator) % most_ms);
        kill(child, SIGKILL);
        int how = 0;
        ck_assert_int_eq(waitpid(child, &how, 0), child);
        ck_assert_msg(WIFSIGNALED(how), "the writer ended by itself, code %d", WEXITSTATUS(how));
        ck_assert_msg(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path) ==
                          STATUS_OK,
                      "%s", status_text());
        ck_assert(found && state.at.step >= before);
        expect_newest(state.at.step);
        ck_assert_int_eq(checkpoint_load_model(scratch, mlp.net, NULL), STATUS_OK);
    }
    ck_assert_int_gt(state.at.step, 1);
    save(state.at.step + 1);
    ck_assert_int_eq(count_names(), 2);
}
END_TEST

/* What the weights of a step get in a test. */
static checkpoint_test test_of(int64_t step)
{
    return (checkpoint_test){.images = 1000, .correct = step * 379 % 1000, .loss = 1};
}

static int64_t best_up_to(int64_t step)
{
    int64_t best = 1;
    for (int64_t s = 2; s <= step; s++)
        if (test_of(s).correct > test_of(best).correct)
            best = s;
    return best;
}

/* One checkpoint stays, and the best one. */
static void save_tested(int64_t step)
{
    checkpoint_state state = state_of(step);
    state.test = test_of(step);
    state.keep = 1;
    state.saved_step = step - 1;
    state.best_step = best_up_to(step);
    stamp(&mlp, step, false);
    if (checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL) != STATUS_OK)
        _exit(1);
}

/* The best of all that were ever saved is there, whole, and what the link names is whole. */
static void expect_best(int64_t newest)
{
    checkpoint_state best = {0}, linked = {0};
    bool found = false;
    ck_assert_int_eq(best_checkpoint_find(scratch, newest, &found, &best), STATUS_OK);
    ck_assert(found);
    ck_assert_int_eq(best.at.step, best_up_to(newest));
    ck_assert_int_eq(checkpoint_state_read(in_scratch("checkpoints/best/state.json"), &linked),
                     STATUS_OK);
    ck_assert(linked.at.step == best.at.step || linked.at.step == best_up_to(newest - 1));
    ck_assert_int_eq(checkpoint_load(in_scratch("checkpoints/best"), mlp.net, mlp.opt, NULL),
                     STATUS_OK);
    ck_assert(stamp(&mlp, linked.at.step, true));
    ck_assert_int_eq(best_checkpoint_link(scratch, best.at.step), STATUS_OK); /* as a resume does */
}

START_TEST(a_killed_run_has_its_best)
{
    enum { KILLS = 20 };
    mt19937 generator;
    int64_t newest = 1, started_ns = clock_now_ns();
    mt19937_init(&generator, (uint64_t)started_ns);
    save_tested(1);
    int64_t most_ms = span_ms(started_ns);
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0)
            for (int64_t step = newest + 1;; step++)
                save_tested(step);
        clock_sleep_ms(mt19937_u32(&generator) % most_ms);
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        bool found = false;
        checkpoint_state state = {0};
        char path[FILE_PATH_BYTES];
        ck_assert_int_eq(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path),
                         STATUS_OK);
        ck_assert(found && state.at.step >= newest);
        newest = state.at.step;
        expect_best(newest);
    }
    ck_assert_int_gt(newest, KILLS / 4);
    save_tested(newest + 1);
    ck_assert_int_le(count_names(), 3); /* the newest, the best, and the link */
}
END_TEST

/* As killed_at_any_moment, always saving the one step that is there already. */
START_TEST(killed_while_replacing)
{
    enum { KILLS = 10, MAX_DELAY_MS = 60 };
    mt19937 generator;
    mt19937_init(&generator, (uint64_t)clock_now_ns());
    save(1);
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        while (child == 0)
            save(1);
        clock_sleep_ms(mt19937_u32(&generator) % MAX_DELAY_MS);
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        expect_newest(1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_crash");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_test(core, file_size_limit);
    tcase_add_loop_test(core, full_disk, 0, N_DISKS);
    tcase_add_test(core, killed_at_any_moment);
    tcase_add_test(core, a_killed_run_has_its_best);
    tcase_add_test(core, killed_while_replacing);
    return suite_run(suite);
}
