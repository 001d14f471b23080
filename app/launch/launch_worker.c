#include "app/launch/launch_worker.h"

#include "app/launch/launch_environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    EXIT_NOT_STARTED = 127,
    MAX_READS = 64, /* of one worker's stderr before others have their turn: a full pipe's worth */
};

/* Handlers end with exec, but until then a signal would run the launcher's in the child. What is
 * ignored stays ignored, unless the launcher itself ignores it. */
static void reset_signals(void)
{
    /* The launcher decides what a signal to the terminal's whole process group means. */
    static const int ignored[] = {SIGINT, SIGQUIT, SIGHUP};
    static const int restored[] = {SIGTERM, SIGPIPE, SIGCHLD};
    struct sigaction action;
    for (int signal = 1; signal < NSIG; signal++) {
        if (sigaction(signal, NULL, &action) != 0 || action.sa_handler == SIG_IGN)
            continue;
        action = (struct sigaction){.sa_handler = SIG_DFL};
        sigaction(signal, &action, NULL);
    }
    action = (struct sigaction){.sa_handler = SIG_DFL};
    for (size_t i = 0; i < sizeof restored / sizeof restored[0]; i++)
        sigaction(restored[i], &action, NULL);
    action.sa_handler = SIG_IGN;
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        sigaction(ignored[i], &action, NULL);
}

/* Between fork and exec: only calls that are safe while another thread of the launcher (the
 * store's) may hold any lock. */
__attribute__((noreturn)) static void become_worker(const launch_start *start, int local_rank,
                                                    char **env, int stderr_fd, pid_t launcher)
{
    launch_start_error report = {.local_rank = local_rank};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        goto failed;
    if (getppid() != launcher)
        _exit(EXIT_NOT_STARTED); /* it died before the line above */
    reset_signals();             /* while they are still blocked */
    if (sigprocmask(SIG_SETMASK, &start->signal_mask, NULL) != 0 ||
        dup2(stderr_fd, STDERR_FILENO) < 0)
        goto failed;
    execve("/proc/self/exe", start->argv, env);

failed:
    report.error = errno;
    if (write(start->error_fd, &report, sizeof report) < 0)
        _exit(EXIT_NOT_STARTED); /* the exit code says enough */
    _exit(EXIT_NOT_STARTED);
}

status launch_worker_start(launch_worker *worker, const launch_start *start)
{
    status st = STATUS_OK;
    int ends[2] = {-1, -1};
    char **env = NULL;
    pid_t launcher = getpid(), pid = -1;
    TRY(launch_environment_create(start, worker->rank, worker->local_rank, &env));
    if (pipe2(ends, O_CLOEXEC) != 0) {
        st = FAIL(STATUS_IO, "rank %d cannot be started: pipe: %s (raise ulimit -n)", worker->rank,
                  strerror(errno));
        goto out;
    }
    /* Only the reading end: a worker's writes may wait. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
        st = FAIL(STATUS_IO, "rank %d: its stderr: %s", worker->rank, strerror(errno));
        goto out;
    }
    pid = fork();
    if (pid == 0)
        become_worker(start, worker->local_rank, env, ends[1], launcher);
    if (pid < 0) {
        st =
            FAIL(STATUS_IO, "rank %d cannot be started: fork: %s (fewer ranks, or raise ulimit -u)",
                 worker->rank, strerror(errno));
        goto out;
    }
    worker->pid = pid;
    worker->running = true;
    worker->stderr_fd = ends[0];
    ends[0] = -1;

out:
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    free(env);
    return st;
}

/* Remembers a line for the report, without what a progress bar has overwritten. */
static void keep_line(launch_worker *worker, const char *text, size_t size_bytes)
{
    const char *bar = memrchr(text, '\r', size_bytes);
    if (bar != NULL) {
        size_bytes -= (size_t)(bar + 1 - text);
        text = bar + 1;
    }
    if (size_bytes == 0)
        return;
    char *copy = strndup(text, size_bytes < WORKER_KEPT_BYTES ? size_bytes : WORKER_KEPT_BYTES);
    if (copy == NULL)
        return; /* the line was shown; only the report lacks it */
    char **place = &worker->lines[worker->lines_seen % WORKER_LINES];
    free(*place);
    *place = copy;
    worker->lines_seen++;
}

/* Forwards what is whole in worker->line; all of it if the buffer is full or `flush` is set. */
static void forward_lines(launch_worker *worker, bool flush, launch_forward_fn forward, void *ctx)
{
    size_t done = 0;
    for (;;) {
        const char *at = worker->line + done;
        const char *end = memchr(at, '\n', worker->line_bytes - done);
        if (end == NULL)
            break;
        keep_line(worker, at, (size_t)(end - at));
        done += (size_t)(end + 1 - at);
    }
    size_t rest = worker->line_bytes - done;
    /* A progress bar's line has no end; it is shown at once. */
    bool bar = rest > 0 && worker->line[done] == '\r';
    if (rest == WORKER_LINE_BYTES || (flush && rest > 0))
        keep_line(worker, worker->line + done, rest);
    if (bar || flush || rest == WORKER_LINE_BYTES)
        done = worker->line_bytes;
    if (done > 0)
        forward(ctx, worker->line, done);
    if (flush && rest > 0)
        forward(ctx, "\n", 1);
    memmove(worker->line, worker->line + done, worker->line_bytes - done);
    worker->line_bytes -= done;
}

static void end_stderr(launch_worker *worker, launch_forward_fn forward, void *ctx)
{
    if (worker->stderr_fd < 0)
        return;
    close(worker->stderr_fd);
    worker->stderr_fd = -1;
    forward_lines(worker, true, forward, ctx);
}

void launch_worker_read(launch_worker *worker, launch_forward_fn forward, void *ctx)
{
    for (int i = 0; i < MAX_READS && worker->stderr_fd >= 0; i++) {
        ssize_t n = read(worker->stderr_fd, worker->line + worker->line_bytes,
                         WORKER_LINE_BYTES - worker->line_bytes);
        if (n > 0) {
            worker->line_bytes += (size_t)n;
            forward_lines(worker, false, forward, ctx);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            end_stderr(worker, forward, ctx);
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

void launch_worker_close(launch_worker *worker, launch_forward_fn forward, void *ctx)
{
    end_stderr(worker, forward, ctx);
    for (int i = 0; i < WORKER_LINES; i++)
        free(worker->lines[i]);
    memset(worker->lines, 0, sizeof worker->lines);
    worker->lines_seen = 0;
}
