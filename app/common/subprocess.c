#include "app/common/subprocess.h"

#include "base/clock.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT_BYTES = SUBPROCESS_KEPT_BYTES, SAID_BYTES = 300, GRACE_MS = 10000 };

static const char ERROR[] = "error: ";

/* The end of what a program writes. */
typedef struct tail {
    int from, into; /* the ends of a pipe; -1: closed */
    char *text;     /* (2 KEPT_BYTES + 1) */
    size_t used;    /* at most KEPT_BYTES between two calls */
} tail;

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static status tail_open(tail *t)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "a pipe from a program: %s", strerror(errno));
    *t = (tail){.from = ends[0], .into = ends[1], .text = calloc(2 * KEPT_BYTES + 1, 1)};
    fcntl(t->from, F_SETFL, O_NONBLOCK); /* of this end alone */
    return t->text != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%d bytes", 2 * KEPT_BYTES);
}

/* Takes all that is in the pipe, which holds less than KEPT_BYTES. Does not wait. */
static void tail_read(tail *t)
{
    ssize_t n = t->from >= 0 ? read(t->from, t->text + t->used, KEPT_BYTES) : -1;
    if (n == 0)
        close_end(&t->from);
    t->used += n > 0 ? (size_t)n : 0;
    if (t->used > KEPT_BYTES) {
        memmove(t->text, t->text + t->used - KEPT_BYTES, KEPT_BYTES);
        t->used = KEPT_BYTES;
    }
    t->text[t->used] = '\0';
}

static void tail_close(tail *t)
{
    close_end(&t->from);
    close_end(&t->into);
    free(t->text);
}

/* A program that was started. */
typedef struct running {
    pid_t pid;
    int pidfd, stops; /* stops: readable if a signal came that stops it; -1: closed */
    tail out, err;
    bool stopped, timed_out;
} running;

__attribute__((noreturn)) static void become(const subprocess *program, const running *r,
                                             pid_t parent)
{
    sigset_t none;
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || in < 0 || dup2(in, STDIN_FILENO) < 0 ||
        dup2(r->out.into, STDOUT_FILENO) < 0 || dup2(r->err.into, STDERR_FILENO) < 0)
        _exit(127);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* this process may have blocked some for itself */
    if (program->folder == NULL || chdir(program->folder) == 0)
        execvpe(program->argv[0], program->argv, program->env != NULL ? program->env : environ);
    dprintf(STDERR_FILENO, "start %s: %s\n", program->argv[0], strerror(errno));
    _exit(127);
}

/* A descriptor that is readable if a stop came. */
static int watch_stops(const stop_signals *signals)
{
    if (signals == NULL)
        return stop_signals_watch_blocked();
    return signals->fd > 0 ? fcntl(signals->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

static status start(const subprocess *program, running *r)
{
    pid_t parent = getpid();
    TRY(tail_open(&r->out));
    TRY(tail_open(&r->err));
    r->stops = watch_stops(program->signals);
    signal(SIGCHLD, SIG_DFL); /* ignored, the kernel would reap the program */
    pid_t pid = fork();
    if (pid == 0)
        become(program, r, parent);
    if (pid < 0)
        return FAIL(STATUS_IO, "fork: %s", strerror(errno));
    setpgid(pid, pid); /* whichever of the two is first */
    close_end(&r->out.into);
    close_end(&r->err.into);
    r->pid = pid;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (r->pidfd < 0) {
        kill(-pid, SIGKILL);
        return FAIL(STATUS_IO, "pidfd_open: %s", strerror(errno));
    }
    return STATUS_OK;
}

/* Returns when the program has ended or was killed. */
static void wait_for(const subprocess *program, running *r)
{
    int64_t deadline_ns = clock_deadline_ns(program->timeout_ms);
    for (;;) {
        int left_ms = clock_remaining_ms(deadline_ns);
        struct pollfd fds[] = {{r->pidfd, POLLIN, 0},
                               {r->stops, POLLIN, 0},
                               {r->out.from, POLLIN, 0},
                               {r->err.from, POLLIN, 0}};
        int n = poll(fds, sizeof fds / sizeof fds[0], left_ms);
        tail_read(&r->out);
        tail_read(&r->err);
        if (n > 0 && fds[0].revents != 0)
            return;
        bool stop = n > 0 && fds[1].revents != 0;
        if (left_ms == 0 || (stop && r->stopped)) {
            r->timed_out = !r->stopped;
            kill(-r->pid, SIGKILL);
            return;
        }
        if (!stop)
            continue;
        r->stopped = true;
        kill(r->pid, SIGTERM);
        deadline_ns = clock_deadline_ns(program->grace_ms > 0 ? program->grace_ms : GRACE_MS);
        if (program->signals != NULL)
            stop_signals_next(program->signals);
        else
            close_end(&r->stops); /* it stays pending: a second one is not told from it */
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

/* The last error, where a line names one: reports and hints may follow. NULL: none does. */
static char *last_error(char *text)
{
    char *found = NULL;
    for (char *at = strstr(text, ERROR); at != NULL; at = strstr(at + 1, ERROR))
        found = at;
    return found;
}

/* The last error, else the last line with words in it, with ": " before it; "" if there is none.
 * Cuts the text. */
static void last_words(char *text, char out[SAID_BYTES])
{
    size_t length = strlen(text);
    out[0] = '\0';
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    char *words = last_error(text), *line = strrchr(text, '\n');
    if (length == 0)
        return;
    if (words == NULL)
        words = line != NULL ? line + 1 : text;
    words[strcspn(words, "\n")] = '\0';
    strcpy(out, ": ");
    printable_copy(PRINTABLE_LINE, words, out + 2, SAID_BYTES - 2);
}

/* The failure of a program that did not end by itself. */
static status judge_wait(const subprocess *program, running *r)
{
    char said[SAID_BYTES];
    if (r->stopped)
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    if (!r->timed_out)
        return STATUS_OK;
    last_words(r->err.text, said);
    return FAIL(STATUS_TIMEOUT, "killed after %lld s%s", (long long)(program->timeout_ms / 1000),
                said);
}

static char *take(char **text)
{
    char *taken = *text;
    *text = NULL;
    return taken;
}

status subprocess_watch(const subprocess *program, subprocess_end *out)
{
    static const tail closed = {.from = -1, .into = -1};
    running r = {.pidfd = -1, .stops = -1, .out = closed, .err = closed};
    status st = start(program, &r);
    if (st == STATUS_OK)
        wait_for(program, &r);
    int state = r.pid > 0 ? reap(&r) : 0;
    if (st == STATUS_OK) {
        tail_read(&r.out);
        tail_read(&r.err);
        st = judge_wait(program, &r);
    }
    if (st == STATUS_OK)
        *out = (subprocess_end){state, take(&r.out.text), take(&r.err.text)};
    close_end(&r.pidfd);
    close_end(&r.stops);
    tail_close(&r.out);
    tail_close(&r.err);
    return st;
}

status subprocess_run(const subprocess *program, char **out)
{
    char said[SAID_BYTES];
    subprocess_end end;
    TRY(subprocess_watch(program, &end));
    status st = STATUS_OK;
    last_words(end.err, said);
    if (WIFSIGNALED(end.wait_status))
        st = FAIL(STATUS_PEER, "ended by SIG%s%s", sigabbrev_np(WTERMSIG(end.wait_status)), said);
    else if (WEXITSTATUS(end.wait_status) != 0)
        st = FAIL(STATUS_PEER, "exit code %d%s", WEXITSTATUS(end.wait_status), said);
    if (st == STATUS_OK)
        *out = take(&end.out);
    free(end.out);
    free(end.err);
    return st;
}
