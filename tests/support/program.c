#include "tests/support/program.h"

#include "base/clock.h"
#include "base/file.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, OUTPUT_BYTES = 16 << 20, RUN_TIMEOUT_S = 120 };

static int output_file(char *path)
{
    strcpy(path, "/tmp/mnist_ddp-test-XXXXXX");
    return mkstemp(path);
}

program program_start(const char *const *argv)
{
    return program_start_after(argv, NULL, -1);
}

program program_start_after(const char *const *argv, int (*prepare)(int fd), int fd)
{
    program p = {0};
    int out = output_file(p.out_path), err = output_file(p.err_path);
    p.pid = fork();
    if (p.pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails midway leaves nobody behind */
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        if (prepare != NULL && prepare(fd) != 0)
            _exit(127);
        execvp(argv[0], (char *const *)(const void *)argv);
        _exit(127);
    }
    close(out);
    close(err);
    return p;
}

static char *text_of(const char *path)
{
    char *text = NULL;
    size_t size_bytes = 0;
    if (file_read(path, OUTPUT_BYTES, &text, &size_bytes) != STATUS_OK)
        return strdup("");
    return text;
}

void program_wait(program *p, int timeout_s)
{
    int64_t deadline = clock_deadline_ns((int64_t)timeout_s * 1000);
    int state = 0;
    while (waitpid(p->pid, &state, WNOHANG) == 0) {
        if (clock_passed(deadline)) {
            kill(-p->pid, SIGKILL);
            waitpid(p->pid, &state, 0);
            p->exit_code = -1;
            break;
        }
        clock_sleep_ms(2);
    }
    if (p->exit_code == 0)
        p->exit_code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
    p->out = text_of(p->out_path);
    p->err = text_of(p->err_path);
    unlink(p->out_path);
    unlink(p->err_path);
}

char *program_peek(const program *p)
{
    return text_of(p->err_path);
}

void program_close(program *p)
{
    free(p->out);
    free(p->err);
    *p = (program){0};
}

const char *program_mnist_ddp(void)
{
    static char path[FILE_PATH_BYTES];
    const char *folder = getenv("BUILD_DIR");
    snprintf(path, sizeof path, "%s/mnist_ddp", folder != NULL ? folder : ".");
    return path;
}

program program_mnist(const char *first, ...)
{
    const char *argv[MAX_WORDS] = {program_mnist_ddp(), first};
    int n = 2;
    va_list args;
    va_start(args, first);
    do
        argv[n] = va_arg(args, const char *);
    while (argv[n++] != NULL && n < MAX_WORDS);
    va_end(args);
    program p = program_start(argv);
    program_wait(&p, RUN_TIMEOUT_S);
    return p;
}

program program_start_with(const char *const *before, const char *const *flags)
{
    const char *argv[MAX_WORDS] = {NULL};
    int n = 0;
    for (size_t i = 0; before != NULL && before[i] != NULL && n < MAX_WORDS - 2; i++)
        argv[n++] = before[i];
    argv[n++] = program_mnist_ddp();
    for (size_t i = 0; flags[i] != NULL && n < MAX_WORDS - 1; i++)
        argv[n++] = flags[i];
    return program_start(argv);
}

program program_run_with(const char *const *before, const char *const *flags)
{
    program p = program_start_with(before, flags);
    program_wait(&p, RUN_S);
    return p;
}

void program_await_listed(const program *p, const char *const *facts)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    bool said = false;
    while (!said) {
        bool gone = process_is_gone(p->pid);
        char *text = program_peek(p);
        said = facts_listed_in_a_line(text, facts);
        if (!said && (clock_passed(deadline_ns) || gone)) {
            kill(-p->pid, SIGKILL);
            ASSERT_FACTS_LISTED(text, facts);
        }
        free(text);
        clock_sleep_ms(POLL_MS);
    }
}

program program_run_line(const char *line)
{
    static char copy[LINE_BYTES];
    const char *argv[MAX_WORDS] = {program_mnist_ddp()};
    int n = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[n++] = word;
    ck_assert_int_lt(n, MAX_WORDS);
    program p = program_start(argv);
    program_wait(&p, RUN_S);
    return p;
}

const char *program_flag(const char *name, int number)
{
    static char texts[16][48];
    static int next;
    char *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "%s%d", name, number);
    return text;
}

void program_clean_environment(void)
{
    static const char *const unset[] = {"RANK",
                                        "LOCAL_RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "NODE_RANK",
                                        "GROUP_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PET_NNODES",
                                        "PET_NODE_RANK",
                                        "PET_NPROC_PER_NODE",
                                        "PET_MASTER_ADDR",
                                        "PET_MASTER_PORT",
                                        "KUBERNETES_SERVICE_HOST",
                                        "JOB_COMPLETION_INDEX",
                                        "OMPI_COMM_WORLD_RANK",
                                        "PMI_RANK",
                                        "PMIX_RANK",
                                        "SLURM_STEP_ID",
                                        "OMP_NUM_THREADS",
                                        "NO_COLOR",
                                        "CLICOLOR_FORCE",
                                        "COLUMNS"};
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++)
        unsetenv(unset[i]);
    signal(SIGINT, SIG_DFL); /* a shell's background job starts with these ignored */
    signal(SIGQUIT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
}
