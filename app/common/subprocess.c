#include "app/common/subprocess.h"

#include "base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_BYTES = 16 << 20, SAID_BYTES = 300, STOP_MS = 10000 };

/* A program that was started. */
typedef struct running {
    pid_t pid;
    int pidfd, out, err; /* out, err: files in memory */
} running;

__attribute__((noreturn)) static void become(const subprocess *program, const running *r,
                                             pid_t parent)
{
    sigset_t none;
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || in < 0 || dup2(in, STDIN_FILENO) < 0 ||
        dup2(r->out, STDOUT_FILENO) < 0 || dup2(r->err, STDERR_FILENO) < 0)
        _exit(127);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* this process may have blocked some for itself */
    if (program->folder == NULL || chdir(program->folder) == 0)
        execvpe(program->argv[0], program->argv, program->env != NULL ? program->env : environ);
    dprintf(STDERR_FILENO, "start %s: %s\n", program->argv[0], strerror(errno));
    _exit(127);
}

static status start(const subprocess *program, running *r)
{
    pid_t parent = getpid();
    r->out = memfd_create("stdout", MFD_CLOEXEC);
    r->err = memfd_create("stderr", MFD_CLOEXEC);
    if (r->out < 0 || r->err < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", strerror(errno));
    signal(SIGCHLD, SIG_DFL); /* ignored, the kernel would reap the program */
    pid_t pid = fork();
    if (pid == 0)
        become(program, r, parent);
    if (pid < 0)
        return FAIL(STATUS_IO, "fork: %s", strerror(errno));
    setpgid(pid, pid); /* whichever of the two is first */
    r->pid = pid;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (r->pidfd < 0) {
        kill(-pid, SIGKILL);
        return FAIL(STATUS_IO, "pidfd_open: %s", strerror(errno));
    }
    return STATUS_OK;
}

/* Returns when the program has ended or was killed; true: the deadline passed. */
static bool wait_for(const subprocess *program, const running *r)
{
    bool stopped = false;
    int64_t deadline_ns = clock_deadline_ns(program->timeout_ms);
    struct pollfd fds[2] = {{.fd = r->pidfd, .events = POLLIN},
                            {.fd = program->signals ? program->signals->fd : -1, .events = POLLIN}};
    for (;;) {
        int n = poll(fds, 2, clock_remaining_ms(deadline_ns));
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0 && fds[0].revents != 0)
            return false;
        if (n <= 0 || (stop_signals_next(program->signals) != 0 && stopped)) {
            kill(-r->pid, SIGKILL);
            return n == 0 && !stopped;
        }
        if (program->signals->first != 0 && !stopped) {
            kill(r->pid, SIGTERM);
            deadline_ns = clock_deadline_ns(STOP_MS);
            stopped = true;
        }
    }
}

/* Kills what the program left running, and takes its state: waitpid's. */
static int reap(const running *r)
{
    siginfo_t info;
    int state = 0;
    while (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    kill(-r->pid, SIGKILL); /* until waitpid its number is its own */
    while (waitpid(r->pid, &state, 0) < 0 && errno == EINTR) {
    }
    return state;
}

static status read_all(int fd, char **out)
{
    struct stat about;
    size_t all = fstat(fd, &about) == 0 ? (size_t)about.st_size : 0;
    size_t size = all < OUTPUT_BYTES ? all : OUTPUT_BYTES;
    char *text = malloc(size + 1);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes of output", size);
    ssize_t n = pread(fd, text, size, (off_t)(all - size));
    text[n > 0 ? n : 0] = '\0';
    *out = text;
    return STATUS_OK;
}

/* The last line with words in it, with ": " before it; "" if there is none. */
static void last_line(int fd, char out[SAID_BYTES])
{
    char *text = NULL;
    out[0] = '\0';
    if (read_all(fd, &text) != STATUS_OK)
        return;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    const char *line = strrchr(text, '\n');
    if (length > 0)
        snprintf(out, SAID_BYTES, ": %s", line != NULL ? line + 1 : text);
    free(text);
}

static status judge(const subprocess *program, const running *r, int state, bool timed_out)
{
    char said[SAID_BYTES];
    last_line(r->err, said);
    if (program->signals != NULL && program->signals->first != 0)
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    if (timed_out)
        return FAIL(STATUS_TIMEOUT, "killed after %lld s%s",
                    (long long)(program->timeout_ms / 1000), said);
    if (WIFSIGNALED(state))
        return FAIL(STATUS_PEER, "ended by SIG%s%s", sigabbrev_np(WTERMSIG(state)), said);
    if (WEXITSTATUS(state) != 0)
        return FAIL(STATUS_PEER, "exit code %d%s", WEXITSTATUS(state), said);
    return STATUS_OK;
}

status subprocess_run(const subprocess *program, char **out)
{
    running r = {.pidfd = -1, .out = -1, .err = -1};
    status st = start(program, &r);
    bool timed_out = st == STATUS_OK && wait_for(program, &r);
    int state = r.pid > 0 ? reap(&r) : 0;
    if (st == STATUS_OK)
        st = judge(program, &r, state, timed_out);
    if (st == STATUS_OK)
        st = read_all(r.out, out);
    const int fds[] = {r.pidfd, r.out, r.err};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return st;
}
