/* A run that is killed, or whose disk fails or is full, at every system call on its folder in turn,
 * through two saves to its end, and through a resume: what is resumed has the bits of a run that
 * nothing happened to, and nobody is told "saved" who has an older model.
 */
#include "base/clock.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/syscall_faults.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>

/* Two steps, and a checkpoint behind each. */
#define JOB \
    "train", "--model", "mlp", "--device", "reference", "--optimizer", "sgd", "--lr", "0.05", \
        "--limit", "16", "--batch-size", "16", "--threads", "1", "--eval-every", "0", "--epochs", \
        "2", "--run-dir"

/* A launcher's ranks write its name into state.json, the last of the files compared. */
enum { ALL_FILES = 4, LAUNCHED_FILES = 3 };
enum { MAX_CALLS = 2000, LEAST_CALLS = 100, TIMEOUT_S = 60 };

/* Two folders, in memory if the machine lets us: what is on trial is the order of things, and their
 * ends, not how long a disk takes. */
static char base[FILE_PATH_BYTES / 2], part[FILE_PATH_BYTES], whole[FILE_PATH_BYTES];

static void clear(const char *path)
{
    char line[FILE_PATH_BYTES + 16];
    snprintf(line, sizeof line, "rm -rf '%s'", path);
    if (system(line) != 0)
        abort();
}

static void copy(const char *from, const char *to)
{
    char line[2 * FILE_PATH_BYTES + 16];
    snprintf(line, sizeof line, "cp -r '%s' '%s'", from, to);
    ck_assert_int_eq(system(line), 0);
}

static void open_base(void)
{
    strcpy(base, "/dev/shm/mnist_ddp-app-XXXXXX");
    if (mkdtemp(base) == NULL)
        snprintf(base, sizeof base, "%s", test_folder);
    snprintf(part, sizeof part, "%s/part", base);
    snprintf(whole, sizeof whole, "%s/whole", base);
}

/* The newest checkpoint and the published model, which must hold the same bytes in both folders:
 * then whatever follows is the same as well. */
static void assert_same_run(const char *when, int n_files)
{
    static const char *const files[] = {
        "model.safetensors", "checkpoints/00000002/model.safetensors",
        "checkpoints/00000002/optimizer.safetensors", "checkpoints/00000002/state.json"};
    for (int i = 0; i < n_files; i++) {
        char paths[2][FILE_PATH_BYTES], *data[2] = {NULL, NULL};
        size_t size[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(file_join(k == 0 ? part : whole, files[i], paths[k]), STATUS_OK);
            ck_assert_msg(file_read(paths[k], 64 << 20, &data[k], &size[k]) == STATUS_OK, "%s: %s",
                          when, status_text());
        }
        ck_assert_msg(size[0] == size[1] && memcmp(data[0], data[1], size[0]) == 0,
                      "%s: another %s", when, files[i]);
        free(data[0]);
        free(data[1]);
    }
}

static double failed_checkpoints(void)
{
    char *text = NULL;
    size_t size = 0;
    char path[FILE_PATH_BYTES];
    ck_assert_int_eq(file_join(part, "result.json", path), STATUS_OK);
    ck_assert_msg(file_read(path, 1 << 16, &text, &size) == STATUS_OK, "%s", status_text());
    double n = training_number(text, "failed_checkpoints");
    free(text);
    return n;
}

static bool says_saved(const program *p)
{
    char model[FILE_PATH_BYTES + 32];
    snprintf(model, sizeof model, "%s/model.safetensors", part);
    return facts_in_a_line(p->out, "saved", model, NULL) ||
           facts_in_a_line(p->err, "saved", model, NULL);
}

static const struct {
    const char *name;
    int error;
} faults[] = {{"SIGKILL", 0}, {"EIO", EIO}, {"ENOSPC", ENOSPC}};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

/* Names of files and folders that were on their way and did not arrive. */
static void assert_nothing_left(const char *when)
{
    char pattern[FILE_PATH_BYTES];
    glob_t found = {0};
    ck_assert_int_eq(file_join(part, "*.tmp*", pattern), STATUS_OK);
    ck_assert_msg(glob(pattern, 0, NULL, &found) == GLOB_NOMATCH, "%s: %s is left", when,
                  found.gl_pathc > 0 ? found.gl_pathv[0] : "?");
    globfree(&found);
}

/* Continues what the fault has left, without one. */
static void finish(const char *when)
{
    program rest = program_run_with(NULL, WORDS(JOB, part, "--resume=auto"));
    ck_assert_msg(rest.exit_code == 0 && says_saved(&rest), "resumed after %s: exit %d: %s", when,
                  rest.exit_code, rest.err);
    assert_same_run(when, ALL_FILES);
    assert_nothing_left(when);
    program_close(&rest);
}

/* Runs with the fault at call `at`, from a copy of the folder `from` (NULL: from the beginning);
 * false where the run ended before. */
static bool visit(int kind, int at, const char *from)
{
    char when[192];
    syscall_fault fault = {.folder = part, .at = at, .error = faults[kind].error};
    syscall_report report;
    clear(part);
    if (from != NULL)
        copy(from, part);
    program p = syscall_faults_run(
        (const char *const[]){program_mnist_ddp(), JOB, part, "--resume=auto", NULL}, &fault,
        TIMEOUT_S, &report);
    snprintf(when, sizeof when, "%s at call %d, %s of TRAINING_EPOCH%s", faults[kind].name, at,
             report.name, report.path);
    ck_assert_msg(report.hit || p.exit_code == 0, "undisturbed, exit %d: %s", p.exit_code, p.err);
    if (report.hit && faults[kind].error == 0)
        ck_assert_msg(p.exit_code == 128 + SIGKILL, "%s: exit %d", when, p.exit_code);
    else
        ck_assert_msg(p.exit_code == 0 || p.exit_code == 74, "%s: exit %d: %s", when, p.exit_code,
                      p.err);
    ck_assert_msg(p.exit_code != 0 || says_saved(&p), "%s: not saved, exit 0: %s", when, p.err);
    if (says_saved(&p)) {
        assert_same_run(when, ALL_FILES);
        bool lost = facts_in_a_line(p.err, "checkpoint not written", NULL);
        ck_assert_msg(p.exit_code != 0 || lost == (failed_checkpoints() > 0), "%s: %s", when,
                      p.err);
    }
    if (p.exit_code != 0)
        finish(when);
    program_close(&p);
    return report.hit;
}

static void sweep(int kind, const char *from, int least)
{
    int at = 1;
    int64_t started_ns = clock_now_ns();
    while (visit(kind, at, from)) {
        at++;
        ck_assert_int_le(at, MAX_CALLS);
    }
    printf("%s at each of %d system calls %s: all came to the same bits, %.1f s\n",
           faults[kind].name, at - 1, from == NULL ? "of two saves" : "of a resume",
           clock_seconds(clock_now_ns() - started_ns));
    ck_assert_int_ge(at - 1, least);
}

/* What nothing happens to. */
static void run_whole(const char *const *more)
{
    const char *flags[MAX_WORDS] = {JOB, whole};
    int n = 0;
    while (flags[n] != NULL)
        n++;
    for (; *more != NULL; more++)
        flags[n++] = *more;
    clear(whole);
    program p = program_run_with(NULL, flags);
    ASSERT_EXIT(p, 0);
    program_close(&p);
}

START_TEST(every_call_of_two_saves)
{
    run_whole(WORDS(NULL));
    sweep(_i, NULL, LEAST_CALLS);
}
END_TEST

/* Of a run that was killed behind the last checkpoint's commit, before its model was published: all
 * that is left to do is to publish it. */
START_TEST(every_call_of_a_resume)
{
    char stale[FILE_PATH_BYTES];
    syscall_report report;
    syscall_fault fault = {.folder = part, .only = "copy_file_range", .at = 3};
    ck_assert_int_eq(file_join(base, "stale", stale), STATUS_OK);
    run_whole(WORDS(NULL));
    clear(part);
    clear(stale);
    program p = syscall_faults_run((const char *const[]){program_mnist_ddp(), JOB, part, NULL},
                                   &fault, TIMEOUT_S, &report);
    ASSERT_EXIT(p, 128 + SIGKILL);
    program_close(&p);
    copy(part, stale);
    sweep(_i, stale, LEAST_CALLS / 4);
}
END_TEST

/* The names of new folders are made durable, each in the one above it: a machine that stops loses
 * no run whose folder's parents were new. The n-th sync under `base` fails, which tells what it
 * was. */
START_TEST(new_parents_are_synced)
{
    static const char *const synced[] = {"", "/new", "/new/parents"};
    syscall_report report;
    char nested[FILE_PATH_BYTES];
    ck_assert_int_eq(file_join(base, "new/parents/run", nested), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        char above[FILE_PATH_BYTES];
        syscall_fault fault = {.folder = base, .only = "fsync", .at = i + 1, .error = EIO};
        ck_assert_int_eq(file_join(base, "new", above), STATUS_OK);
        clear(above);
        program p =
            syscall_faults_run((const char *const[]){program_mnist_ddp(), JOB, nested, NULL},
                               &fault, TIMEOUT_S, &report);
        ASSERT_EXIT(p, 74);
        ck_assert_str_eq(report.path, synced[i]);
        program_close(&p);
    }
}
END_TEST

#define TWO_RANKS "--nproc-per-node", "2", "--max-restarts", "1"

/* Rank 0 is killed where one file takes another's place, or is copied to be published: the launcher
 * starts the ranks again, and the one command ends as if nothing had been. */
static const char *const moments[] = {"rename", "copy_file_range"};
enum { N_MOMENTS = sizeof moments / sizeof moments[0] };

START_TEST(ranks_started_again_publish_the_same)
{
    int at = 1;
    syscall_report report = {.hit = true};
    run_whole(WORDS("--nproc-per-node", "2"));
    for (; at <= MAX_CALLS && report.hit; at++) {
        char when[64];
        syscall_fault fault = {.folder = part, .only = moments[_i], .at = at};
        clear(part);
        program p = syscall_faults_run(
            (const char *const[]){program_mnist_ddp(), JOB, part, TWO_RANKS, NULL}, &fault,
            TIMEOUT_S, &report);
        snprintf(when, sizeof when, "rank 0 killed at %s %d", moments[_i], at);
        ck_assert_msg(p.exit_code == 0 && says_saved(&p), "%s: exit %d: %s", when, p.exit_code,
                      p.err);
        ck_assert_msg(!report.hit || facts_in_a_line(p.err, "rank 0", "1 of 1", NULL), "%s: %s",
                      when, p.err);
        assert_same_run(when, LAUNCHED_FILES);
        assert_nothing_left(when);
        program_close(&p);
    }
    printf("rank 0 killed at each of %d calls of %s\n", at - 2, moments[_i]);
    ck_assert_int_ge(at - 2, 4);
}
END_TEST

int main(void)
{
    program_clean_environment();
    if (!syscall_faults_allowed())
        return TEST_SKIPPED;
    test_folder_open();
    open_base();
    setvbuf(stdout, NULL, _IOLBF, 0);
    Suite *suite = suite_create("save_faults");
    TCase *saves = suite_case(suite, "saves", 10 * RUN_S);
    tcase_add_loop_test(saves, every_call_of_two_saves, 0, N_FAULTS);
    TCase *resumes = suite_case(suite, "resumes", 5 * RUN_S);
    tcase_add_loop_test(resumes, every_call_of_a_resume, 0, N_FAULTS - 1); /* no disk fills */
    TCase *moments_only = suite_case(suite, "moments", 5 * RUN_S);
    tcase_add_test(moments_only, new_parents_are_synced);
    tcase_add_loop_test(moments_only, ranks_started_again_publish_the_same, 0, N_MOMENTS);
    int failed = suite_run(suite);
    clear(base);
    return test_folder_close(failed);
}
