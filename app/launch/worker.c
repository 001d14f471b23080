#include "app/launch/worker.h"

#include "app/launch/worker_environment.h"
#include "base/clock.h"
#include "base/file_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_NOT_STARTED = 127 };

/* Handlers end with exec, but until then a signal would run the launcher's in the child. What is
 * ignored stays ignored, unless the launcher itself ignores it. */
static void reset_signals(bool own_session)
{
    /* The launcher decides what a signal to the terminal's whole process group means. */
    static const int ignored[] = {SIGINT, SIGQUIT, SIGHUP};
    static const int restored[] = {SIGTERM, SIGPIPE, SIGCHLD, SIGXFSZ, SIGUSR1};
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
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0] && !own_session; i++)
        sigaction(ignored[i], &action, NULL);
}

/* What a child needs between fork and exec, all made before. */
typedef struct child_start {
    const worker_start *start;
    int local_rank;
    char **argv, **env;
    int out_fd, err_fd; /* -1: the launcher's own */
    pid_t launcher;
} child_start;

/* Only calls that are safe while another thread of the launcher (the store's) may hold any lock. */
__attribute__((noreturn)) static void become_worker(const child_start *child)
{
    const entrypoint *program = &child->start->spec->program;
    worker_start_error report = {.local_rank = child->local_rank};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        goto failed;
    if (getppid() != child->launcher)
        _exit(EXIT_NOT_STARTED); /* it died before the line above */
    if (program->own_session)
        setsid();
    file_limit_set(child->start->file_limit);
    reset_signals(program->own_session); /* while they are still blocked */
    if (sigprocmask(SIG_SETMASK, &child->start->signal_mask, NULL) != 0 ||
        (child->out_fd >= 0 && dup2(child->out_fd, STDOUT_FILENO) < 0) ||
        (child->err_fd >= 0 && dup2(child->err_fd, STDERR_FILENO) < 0))
        goto failed;
    execve(program->path, child->argv, child->env);

failed:
    report.error = errno;
    if (write(child->start->error_fd, &report, sizeof report) < 0)
        _exit(EXIT_NOT_STARTED); /* the exit code says enough */
    _exit(EXIT_NOT_STARTED);
}

static status open_file(const worker *w, const worker_start *start, const char *name, int *fd)
{
    char path[FILE_PATH_BYTES];
    worker_logs_file(&start->spec->logs, start->attempt, w->local_rank, name, path);
    const char *file = path[0] != '\0' ? path : "/dev/null";
    *fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    return *fd >= 0 ? STATUS_OK
                    : FAIL(STATUS_IO, "open %s: %s%s", file, strerror(errno),
                           errno == EMFILE ? " (raise ulimit -n)" : "");
}

static status open_pipe(const worker *w, worker_output *output, int *fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "rank %d cannot be started: pipe: %s (raise ulimit -n)", w->rank,
                    strerror(errno));
    output->fd = ends[0];
    *fd = ends[1];
    /* Only the reading end: a worker's writes may wait. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "rank %d: its output: %s", w->rank, strerror(errno));
    return STATUS_OK;
}

/* Where one stream of a worker goes. *fd: what the child writes to; -1: the launcher's own. stderr
 * always comes through the launcher, which keeps its last lines, unless it is a file. */
static status open_stream(worker *w, const worker_start *start, int which, int *fd)
{
    const worker_logs *logs = &start->spec->logs;
    bool err = which == LOGS_STDERR;
    worker_output *output = err ? &w->err : &w->out;
    int target = err ? STDERR_FILENO : STDOUT_FILENO, i = w->local_rank;
    if ((logs->tees[i] & which) != 0) {
        TRY(open_file(w, start, err ? "stderr.log" : "stdout.log", &output->file));
        worker_logs_prefix(logs, start->spec->role, w->rank, i, output->prefix);
        output->target = logs->hidden[i] ? -1 : target;
        return open_pipe(w, output, fd);
    }
    if ((logs->redirects[i] & which) != 0)
        return open_file(w, start, err ? "stderr.log" : "stdout.log", fd);
    if (err) {
        output->target = logs->hidden[i] ? -1 : target;
        return open_pipe(w, output, fd);
    }
    if (!logs->hidden[i])
        return STATUS_OK;
    *fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return *fd >= 0 ? STATUS_OK : FAIL(STATUS_IO, "open /dev/null: %s", strerror(errno));
}

static status prepare(worker *w, const worker_start *start, child_start *child)
{
    const worker_place place = {.rank = w->rank,
                                .local_rank = w->local_rank,
                                .attempt = start->attempt,
                                .master_port = start->master_port,
                                .started_ns = start->started_ns,
                                .log_tty = start->log_tty};
    TRY(worker_environment_create(start->spec, &place, &child->env));
    TRY(entrypoint_argv(&start->spec->program, w->local_rank, &child->argv));
    TRY(open_stream(w, start, LOGS_STDOUT, &child->out_fd));
    return open_stream(w, start, LOGS_STDERR, &child->err_fd);
}

status worker_launch(worker *w, const worker_start *start)
{
    child_start child = {.start = start,
                         .local_rank = w->local_rank,
                         .out_fd = -1,
                         .err_fd = -1,
                         .launcher = getpid()};
    worker_output_init(&w->out);
    worker_output_init(&w->err);
    status st = prepare(w, start, &child);
    if (st == STATUS_OK) {
        pid_t pid = fork();
        if (pid == 0)
            become_worker(&child);
        w->pid = pid > 0 ? pid : 0;
        w->running = pid > 0;
        if (pid > 0 && start->spec->program.own_session)
            orphan_reaper_watch(&start->reaper, pid);
        if (pid < 0)
            st = FAIL(STATUS_IO,
                      "rank %d cannot be started: fork: %s (fewer ranks, or raise ulimit -u)",
                      w->rank, strerror(errno));
    }
    if (child.out_fd >= 0)
        close(child.out_fd);
    if (child.err_fd >= 0)
        close(child.err_fd);
    free(child.argv);
    free(child.env);
    return st;
}

void worker_signal(const worker *w, const worker_start *start, int signal)
{
    if (w->pid == 0 || w->reaped)
        return;
    /* Before its setsid() it has no group yet. */
    if (!start->spec->program.own_session || kill(-w->pid, signal) != 0)
        kill(w->pid, signal);
}

bool worker_has_ended(worker *w)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    w->running = false;
    w->ended_ns = clock_now_ns();
    w->wait_status =
        info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status & 0xff, 0) : info.si_status & 0x7f;
    return true;
}

void worker_close(worker *w, agent_console *console)
{
    if (w->pid > 0 && !w->reaped && !w->running)
        waitpid(w->pid, NULL, WNOHANG);
    w->reaped = true;
    worker_output_close(&w->out, console);
    worker_output_close(&w->err, console);
}
