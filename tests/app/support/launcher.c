#include "tests/app/support/launcher.h"

#include "base/clock.h"
#include "tests/app/support/launched_worker.h"
#include "tests/support/process.h"
#include "tests/support/runner.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 10000, OUTPUT_BYTES = 1 << 20 };

static char folder[64];
char *launcher_output;

void launcher_setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/test_launch_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TEST_FOLDER", folder, 1);
    unsetenv("RANK");
    unsetenv("OMP_NUM_THREADS");
}

void launcher_teardown(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    ck_assert_int_eq(system(line), 0);
    free(launcher_output);
    launcher_output = NULL;
}

worker_spec launcher_plan(int nproc)
{
    return (worker_spec){.nproc = nproc,
                         .nnodes = 1,
                         .world_size = nproc,
                         .master_addr = "127.0.0.1",
                         .store_on_loopback = true,
                         .health_check_port = -1,
                         .run_id = "none",
                         .role = "default",
                         .rdzv = {.join_ms = 10000, .keep_alive_ms = 500, .keep_alive_misses = 4},
                         .monitor_ms = 20};
}

void launcher_path(const char *name, char out[FILE_PATH_BYTES])
{
    ck_assert(file_join(folder, name, out) == STATUS_OK);
}

pid_t launcher_start(const char *mode, const worker_spec *spec, const char *log, rlim_t max_files)
{
    char path[FILE_PATH_BYTES], name[64];
    char *argv[] = {"test_app", name, "--an-argument", NULL};
    char *flags[] = {"mnist_ddp", "train", NULL};
    options opts;
    worker_spec own = *spec;
    launcher_path(log, path);
    snprintf(name, sizeof name, "%s", runner_test); /* the worker is this program again */
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
        worker_spec_complete(&opts, 3, argv, &own) != STATUS_OK)
        _exit(LAUNCHED_WORKER_BAD);
    _exit(agent_run(&own, clock_now_ns()));
}

int launcher_finish(pid_t pid, const char *log)
{
    char path[FILE_PATH_BYTES];
    int how = 0;
    size_t size_bytes;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    launcher_path(log, path);
    free(launcher_output);
    ck_assert(file_read(path, OUTPUT_BYTES, &launcher_output, &size_bytes) == STATUS_OK);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1 - WTERMSIG(how);
}

int launcher_run(const char *mode, int nproc)
{
    worker_spec spec = launcher_plan(nproc);
    return launcher_finish(launcher_start(mode, &spec, "log", 0), "log");
}

void launcher_check_said(const char *words)
{
    ck_assert_msg(strstr(launcher_output, words) != NULL, "\"%s\" is not in:\n%s", words,
                  launcher_output);
}

pid_t launcher_rank(int rank)
{
    char name[32], path[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "pid.%d", rank);
    launcher_path(name, path);
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

void launcher_check_gone(int nproc, int64_t within_ms)
{
    int64_t end_ns = clock_deadline_ns(within_ms);
    for (int rank = 0; rank < nproc; rank++) {
        pid_t pid = launcher_rank(rank);
        ck_assert_int_gt(pid, 0);
        while (!process_is_gone(pid) && !clock_passed(end_ns))
            clock_sleep_ms(2);
        ck_assert_msg(process_is_gone(pid), "rank %d is left over as process %d", rank, (int)pid);
    }
}
