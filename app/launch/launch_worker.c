#include "app/launch/launch_worker.h"

#include "app/launch/launch_environment.h"
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
    const launch_start *start;
    int local_rank;
    char **argv, **env;
    int out_fd, err_fd; /* -1: the launcher's own */
    pid_t launcher;
} child_start;

/* Only calls that are safe while another thread of the launcher (the store's) may hold any lock. */
__attribute__((noreturn)) static void become_worker(const child_start *child)
{
    const launch_program *program = &child->start->settings->program;
    launch_start_error report = {.local_rank = child->local_rank};
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

static status open_file(const launch_worker *worker, const launch_start *start, const char *name,
                        int *fd)
{
    char path[FILE_PATH_BYTES];
    launch_logs_file(&start->settings->logs, start->generation, worker->local_rank, name, path);
    const char *file = path[0] != '\0' ? path : "/dev/null";
    *fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    return *fd >= 0 ? STATUS_OK
                    : FAIL(STATUS_IO, "open %s: %s%s", file, strerror(errno),
                           errno == EMFILE ? " (raise ulimit -n)" : "");
}

static status open_pipe(const launch_worker *worker, launch_stream *stream, int *fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "rank %d cannot be started: pipe: %s (raise ulimit -n)",
                    worker->rank, strerror(errno));
    stream->fd = ends[0];
    *fd = ends[1];
    /* Only the reading end: a worker's writes may wait. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "rank %d: its output: %s", worker->rank, strerror(errno));
    return STATUS_OK;
}

/* Where one stream of a worker goes. *fd: what the child writes to; -1: the launcher's own. stderr
 * always comes through the launcher, which keeps its last lines, unless it is a file. */
static status open_stream(launch_worker *worker, const launch_start *start, int which, int *fd)
{
    const launch_logs *logs = &start->settings->logs;
    bool err = which == LAUNCH_STDERR;
    launch_stream *stream = err ? &worker->err : &worker->out;
    int target = err ? STDERR_FILENO : STDOUT_FILENO, i = worker->local_rank;
    if ((logs->tees[i] & which) != 0) {
        TRY(open_file(worker, start, err ? "stderr.log" : "stdout.log", &stream->file));
        launch_logs_prefix(logs, &start->settings->plan, worker->rank, i, stream->prefix);
        stream->target = logs->hidden[i] ? -1 : target;
        return open_pipe(worker, stream, fd);
    }
    if ((logs->redirects[i] & which) != 0)
        return open_file(worker, start, err ? "stderr.log" : "stdout.log", fd);
    if (err) {
        stream->target = logs->hidden[i] ? -1 : target;
        return open_pipe(worker, stream, fd);
    }
    if (!logs->hidden[i])
        return STATUS_OK;
    *fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return *fd >= 0 ? STATUS_OK : FAIL(STATUS_IO, "open /dev/null: %s", strerror(errno));
}

static status prepare(launch_worker *worker, const launch_start *start, child_start *child)
{
    const launch_place place = {.rank = worker->rank,
                                .local_rank = worker->local_rank,
                                .generation = start->generation,
                                .master_port = start->master_port,
                                .started_ns = start->started_ns,
                                .log_tty = start->log_tty};
    TRY(launch_environment_create(start->settings, &place, &child->env));
    TRY(launch_program_argv(&start->settings->program, worker->local_rank, &child->argv));
    TRY(open_stream(worker, start, LAUNCH_STDOUT, &child->out_fd));
    return open_stream(worker, start, LAUNCH_STDERR, &child->err_fd);
}

status launch_worker_start(launch_worker *worker, const launch_start *start)
{
    child_start child = {.start = start,
                         .local_rank = worker->local_rank,
                         .out_fd = -1,
                         .err_fd = -1,
                         .launcher = getpid()};
    launch_stream_init(&worker->out);
    launch_stream_init(&worker->err);
    status st = prepare(worker, start, &child);
    if (st == STATUS_OK) {
        pid_t pid = fork();
        if (pid == 0)
            become_worker(&child);
        worker->pid = pid > 0 ? pid : 0;
        worker->running = pid > 0;
        if (pid > 0 && start->settings->program.own_session)
            launch_guardian_watch(&start->guardian, pid);
        if (pid < 0)
            st = FAIL(STATUS_IO,
                      "rank %d cannot be started: fork: %s (fewer ranks, or raise ulimit -u)",
                      worker->rank, strerror(errno));
    }
    if (child.out_fd >= 0)
        close(child.out_fd);
    if (child.err_fd >= 0)
        close(child.err_fd);
    free(child.argv);
    free(child.env);
    return st;
}

void launch_worker_signal(const launch_worker *worker, const launch_start *start, int signal)
{
    if (worker->pid == 0 || worker->reaped)
        return;
    /* Before its setsid() it has no group yet. */
    if (!start->settings->program.own_session || kill(-worker->pid, signal) != 0)
        kill(worker->pid, signal);
}

bool launch_worker_has_ended(launch_worker *worker)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return false;
    worker->running = false;
    worker->ended_ns = clock_now_ns();
    worker->wait_status =
        info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status & 0xff, 0) : info.si_status & 0x7f;
    return true;
}

void launch_worker_close(launch_worker *worker, launch_console *console)
{
    if (worker->pid > 0 && !worker->reaped && !worker->running)
        waitpid(worker->pid, NULL, WNOHANG);
    worker->reaped = true;
    launch_stream_close(&worker->out, console);
    launch_stream_close(&worker->err, console);
}
