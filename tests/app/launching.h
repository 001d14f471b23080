/* What the tests of the launcher share: launch_run in a process of its own. It executes the very
 * test program again; with TEST_WORKER set that acts as a worker. */
#ifndef MNIST_DDP_TESTS_APP_LAUNCHING_H
#define MNIST_DDP_TESTS_APP_LAUNCHING_H

#include "app/exit_codes.h"
#include "app/launch/launch.h"
#include "base/clock.h"
#include "base/file.h"
#include "dist/store/store.h"
#include "tests/app/launch_workers.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 10000, OUTPUT_BYTES = 1 << 20 };

static char folder[64];
static char *output; /* stderr of the last launcher */

static inline void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/test_launch_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TEST_FOLDER", folder, 1);
    unsetenv("RANK");
    unsetenv("OMP_NUM_THREADS");
}

static inline void remove_folder(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    ck_assert_int_eq(system(line), 0);
    free(output);
    output = NULL;
}

static inline launch_plan plan_of(int nproc)
{
    return (launch_plan){.nproc = nproc,
                         .nnodes = 1,
                         .world_size = nproc,
                         .master_addr = "127.0.0.1",
                         .store_on_loopback = true,
                         .run_id = "none",
                         .role = "default",
                         .join_ms = 10000,
                         .monitor_ms = 20,
                         .keep_alive_ms = 500,
                         .keep_alive_misses = 4};
}

static inline void path_of(const char *name, char out[FILE_PATH_BYTES])
{
    ck_assert(file_join(folder, name, out) == STATUS_OK);
}

/* Starts a launcher in a process of its own; its stderr goes to folder/`log`. */
static inline pid_t start(const char *mode, const launch_plan *plan, const char *log,
                          rlim_t max_files)
{
    char path[FILE_PATH_BYTES], *argv[] = {"test_app_launch", "--an-argument", NULL};
    char *flags[] = {"mnist_ddp", "train", NULL};
    options opts;
    launch_settings settings;
    path_of(log, path);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    close_range(3, ~0u, 0); /* what the test framework keeps open */
    /* A background job of a shell starts with these ignored. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    setenv("TEST_WORKER", mode, 1);
    struct rlimit files = {.rlim_cur = max_files, .rlim_max = max_files};
    if (max_files > 0)
        setrlimit(RLIMIT_NOFILE, &files);
    if (options_parse(2, flags, &opts) != STATUS_OK ||
        launch_settings_make(&opts, plan, 2, argv, &settings) != STATUS_OK)
        _exit(BAD);
    _exit(launch_run(&settings, clock_now_ns()));
}

/* Waits for the launcher and reads what it wrote. Its exit code; -1 - signal if one ended it. */
static inline int finish(pid_t pid, const char *log)
{
    char path[FILE_PATH_BYTES];
    int how = 0;
    size_t size_bytes;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    path_of(log, path);
    free(output);
    ck_assert(file_read(path, OUTPUT_BYTES, &output, &size_bytes) == STATUS_OK);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1 - WTERMSIG(how);
}

static inline int launch(const char *mode, int nproc)
{
    launch_plan plan = plan_of(nproc);
    return finish(start(mode, &plan, "log", 0), "log");
}

static inline void check_said(const char *words)
{
    ck_assert_msg(strstr(output, words) != NULL, "\"%s\" is not in:\n%s", words, output);
}

/* The process that a rank has noted, once it has; 0 if it does not by the deadline. */
static inline pid_t pid_of(int rank)
{
    char name[32], path[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "pid.%d", rank);
    path_of(name, path);
    int pid = 0;
    for (int64_t end_ns = clock_deadline_ns(WAIT_MS); pid == 0 && !clock_passed(end_ns);) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fscanf(file, "%d", &pid) != 1)
            clock_sleep_ms(2);
        if (file != NULL)
            fclose(file);
    }
    return pid;
}

/* Gone, or a zombie that nobody has reaped. */
static inline bool is_gone(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state == 'Z' || state == 'X';
}

static inline void check_gone(int nproc, int64_t within_ms)
{
    int64_t end_ns = clock_deadline_ns(within_ms);
    for (int rank = 0; rank < nproc; rank++) {
        pid_t pid = pid_of(rank);
        ck_assert_int_gt(pid, 0);
        while (!is_gone(pid) && !clock_passed(end_ns))
            clock_sleep_ms(2);
        ck_assert_msg(is_gone(pid), "rank %d is left over as process %d", rank, (int)pid);
    }
}

#endif
