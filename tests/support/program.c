#include "tests/support/program.h"

#include "base/clock.h"
#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 64, OUTPUT_BYTES = 16 << 20, RUN_TIMEOUT_S = 120 };

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
    const char *argv[MAX_ARGS] = {program_mnist_ddp(), first};
    int n = 2;
    va_list args;
    va_start(args, first);
    do
        argv[n] = va_arg(args, const char *);
    while (argv[n++] != NULL && n < MAX_ARGS);
    va_end(args);
    program p = program_start(argv);
    program_wait(&p, RUN_TIMEOUT_S);
    return p;
}
