#include "app/launch/launch.h"

#include "app/exit_codes.h"
#include "app/launch/launch_goodbye.h"
#include "app/launch/launch_report.h"
#include "app/launch/launch_worker.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* A launch goes through these phases in order, and need not enter all. */
typedef enum launch_phase {
    PHASE_RUNNING,
    PHASE_GRACE,    /* a worker failed; the others may notice by themselves */
    PHASE_STOPPING, /* all have got SIGTERM */
    PHASE_KILLED,   /* all have got SIGKILL */
    PHASE_GIVEN_UP, /* and some did not end */
} launch_phase;

enum { KILLED_MS = 5000, STDERR_FULL_MS = 500, CHUNK_BYTES = 4096 /* PIPE_BUF */ };

static const int STOP_SIGNALS[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

typedef struct launcher {
    const launch_plan *plan;
    launch_start start;
    launch_worker *workers; /* plan->nproc */
    struct pollfd *polled;  /* 2 + plan->nproc */
    store_server *server;   /* node 0 only */
    int stop_fd, child_fd;  /* signalfds: STOP_SIGNALS, SIGCHLD */
    int error_fds[2];
    int running;
    launch_phase phase;
    int64_t deadline_ns; /* of the phase; not of PHASE_RUNNING */
    int cause;           /* index of the worker that failed first; -1 */
    int signal;          /* that stopped the launcher; 0 */
    bool stderr_gone;
    int patience_ms; /* with a reader of stderr that does not read, outside PHASE_RUNNING */
    int64_t memory_kills;
} launcher;

/* Writes to the launcher's stderr. A reader that is slow is waited for, but not while something is
 * to be stopped: then the text is dropped. */
static void forward(void *ctx, const char *text, size_t size_bytes)
{
    launcher *self = ctx;
    while (size_bytes > 0 && !self->stderr_gone) {
        struct pollfd fds[2] = {{.fd = STDERR_FILENO, .events = POLLOUT},
                                {.fd = self->stop_fd, .events = POLLIN}};
        int ready = poll(fds, 2, self->phase == PHASE_RUNNING ? -1 : self->patience_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0)
            self->patience_ms = 0; /* once, not for every line */
        if (ready <= 0 || fds[0].revents == 0)
            return;
        size_t chunk = size_bytes < CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
        ssize_t n = write(STDERR_FILENO, text, chunk);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            self->stderr_gone = true; /* its reader left; the run goes on */
        if (n > 0) {
            text += n;
            size_bytes -= (size_t)n;
        }
    }
}

/* A line of the launcher's own, which may not block it either. */
__attribute__((format(printf, 2, 3))) static void say(launcher *self, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (length > 0)
        forward(self, line, strlen(line));
}

static void signal_workers(launcher *self, int signal, launch_phase phase, int64_t phase_ms)
{
    for (int i = 0; i < self->plan->nproc; i++)
        if (self->workers[i].running)
            kill(self->workers[i].pid, signal);
    self->phase = phase;
    self->deadline_ns = clock_deadline_ns(phase_ms);
}

/* How much an ending tells about the first cause. Survivors of a dead or stuck rank leave with two
 * codes: those that waited for it themselves know more than those that lost a survivor, whichever
 * of them ends first. */
static int weight(const launch_worker *worker)
{
    int code = launch_report_exit_code(worker);
    return code == EXIT_CODE_PEER ? 0 : code == EXIT_CODE_TIMEOUT ? 1 : 2;
}

static void note_end(launcher *self, int index, int wait_status)
{
    launch_worker *worker = &self->workers[index];
    worker->running = false;
    worker->wait_status = wait_status;
    worker->was_stopped = self->phase >= PHASE_STOPPING;
    worker->ended_ns = clock_now_ns();
    self->running--;
    if (wait_status == 0 || worker->was_stopped)
        return;
    if (self->cause < 0 || weight(worker) > weight(&self->workers[self->cause]))
        self->cause = index;
    if (self->phase == PHASE_RUNNING) {
        self->phase = PHASE_GRACE;
        self->deadline_ns = clock_deadline_ns(LAUNCH_GRACE_MS);
    }
}

/* Only our own children: another's are not ours to reap. */
static void reap(launcher *self)
{
    struct signalfd_siginfo info;
    while (read(self->child_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    }
    for (int i = 0; i < self->plan->nproc; i++) {
        int how = 0;
        if (self->workers[i].running && waitpid(self->workers[i].pid, &how, WNOHANG) > 0)
            note_end(self, i, how);
    }
}

static void take_stop_signal(launcher *self)
{
    struct signalfd_siginfo info;
    while (read(self->stop_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int signal = (int)info.ssi_signo;
        if (self->phase >= PHASE_STOPPING && self->signal != 0) {
            signal_workers(self, SIGKILL, PHASE_KILLED, KILLED_MS);
            continue;
        }
        if (self->phase >= PHASE_STOPPING)
            continue; /* a failure is being dealt with */
        /* Sent to the whole process group, it may have ended a worker before it came here. */
        if (self->cause >= 0 && WIFSIGNALED(self->workers[self->cause].wait_status) &&
            WTERMSIG(self->workers[self->cause].wait_status) == signal)
            self->cause = -1;
        signal_workers(self, SIGTERM, PHASE_STOPPING, LAUNCH_SIGNAL_MS);
        if (self->cause >= 0)
            continue;
        self->signal = signal;
        say(self, "warning: SIG%s: stopping %d rank%s\n", sigabbrev_np(signal), self->running,
            self->running == 1 ? "" : "s");
    }
}

static void pass_deadline(launcher *self)
{
    if (self->phase == PHASE_RUNNING || !clock_passed(self->deadline_ns))
        return;
    if (self->phase == PHASE_GRACE) {
        signal_workers(self, SIGTERM, PHASE_STOPPING, LAUNCH_STOP_MS);
    } else if (self->phase == PHASE_STOPPING) {
        signal_workers(self, SIGKILL, PHASE_KILLED, KILLED_MS);
    } else {
        say(self, "error: %d ranks did not end %d s after SIGKILL (a stuck device or disk?)\n",
            self->running, KILLED_MS / 1000);
        self->phase = PHASE_GIVEN_UP;
    }
}

/* Waits, without a deadline of its own while all is well: ranks have theirs. */
static void watch(launcher *self)
{
    while (self->running > 0 && self->phase != PHASE_GIVEN_UP) {
        nfds_t n = 0;
        self->polled[n++] = (struct pollfd){.fd = self->stop_fd, .events = POLLIN};
        self->polled[n++] = (struct pollfd){.fd = self->child_fd, .events = POLLIN};
        for (int i = 0; i < self->plan->nproc; i++) /* poll skips a negative descriptor */
            self->polled[n++] = (struct pollfd){.fd = self->workers[i].stderr_fd, .events = POLLIN};
        int wait_ms = self->phase == PHASE_RUNNING ? -1 : clock_remaining_ms(self->deadline_ns);
        if (poll(self->polled, n, wait_ms) < 0 && errno != EINTR) {
            say(self, "error: launcher: poll: %s\n", strerror(errno));
            signal_workers(self, SIGKILL, PHASE_GIVEN_UP, 0);
            return;
        }
        if (self->polled[0].revents != 0)
            take_stop_signal(self);
        if (self->polled[1].revents != 0)
            reap(self);
        for (int i = 0; i < self->plan->nproc; i++)
            if (self->polled[2 + i].revents != 0)
                launch_worker_read(&self->workers[i], forward, self);
        pass_deadline(self);
    }
}

/* Blocks what the launcher waits for before a thread or a worker can get it. A signal that was
 * ignored (nohup, a shell's background job) stays so. */
static status take_signals(launcher *self)
{
    sigset_t stop, child, both;
    struct sigaction action;
    sigemptyset(&stop);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (size_t i = 0; i < sizeof STOP_SIGNALS / sizeof STOP_SIGNALS[0]; i++)
        if (sigaction(STOP_SIGNALS[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&stop, STOP_SIGNALS[i]);
    sigorset(&both, &stop, &child);
    if (sigprocmask(SIG_BLOCK, &both, &self->start.signal_mask) != 0)
        return FAIL(STATUS_IO, "launcher: signals: %s", strerror(errno));
    sigdelset(&self->start.signal_mask, SIGTERM); /* how a worker is stopped */
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &action, NULL); /* ignored, ends could not be waited for */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    self->stop_fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    self->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->stop_fd < 0 || self->child_fd < 0 ||
        pipe2(self->error_fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "launcher: signalfd, pipe: %s", strerror(errno));
    self->start.error_fd = self->error_fds[1];
    return STATUS_OK;
}

static status start_store(launcher *self)
{
    const launch_plan *plan = self->plan;
    self->start.master_port = plan->master_port;
    if (plan->node_rank == 0) {
        const char *host = plan->store_on_loopback ? plan->master_addr : NULL;
        TRY(store_server_create(host, plan->master_port, &self->server));
        self->start.master_port = store_server_port(self->server);
    }
    log_line(plan->nnodes > 1 ? LOG_INFO : LOG_DEBUG,
             "node %d of %d: ranks %d to %d of %d; the store is at %s:%d", plan->node_rank,
             plan->nnodes, plan->node_rank * plan->nproc,
             plan->node_rank * plan->nproc + plan->nproc - 1, plan->world_size, plan->master_addr,
             self->start.master_port);
    return STATUS_OK;
}

static status start_workers(launcher *self)
{
    const launch_plan *plan = self->plan;
    for (int i = 0; i < plan->nproc; i++) {
        launch_worker *worker = &self->workers[i];
        worker->local_rank = i;
        worker->rank = plan->node_rank * plan->nproc + i;
        status st = launch_worker_start(worker, &self->start);
        if (st != STATUS_OK)
            return status_context(st, "%d of %d ranks were started", i, plan->nproc);
        self->running++;
    }
    return STATUS_OK;
}

static void read_start_errors(launcher *self)
{
    launch_start_error error;
    while (read(self->error_fds[0], &error, sizeof error) == (ssize_t)sizeof error)
        if (error.local_rank >= 0 && error.local_rank < self->plan->nproc)
            self->workers[error.local_rank].start_errno = error.error;
}

/* All workers have ended: the last lines, the report, the exit code. */
static int conclude(launcher *self)
{
    for (int i = 0; i < self->plan->nproc; i++)
        launch_worker_read(&self->workers[i], forward, self);
    read_start_errors(self);
    if (self->signal != 0)
        return 128 + self->signal;
    if (self->cause < 0)
        return self->phase == PHASE_RUNNING ? 0 : EXIT_CODE_INTERNAL;
    char *text = NULL;
    int64_t kills = launch_report_memory_kills();
    launch_report report = {.workers = self->workers,
                            .n_workers = self->plan->nproc,
                            .cause = self->cause,
                            .started_ns = self->start.started_ns,
                            .memory_killed = self->memory_kills >= 0 && kills > self->memory_kills};
    if (launch_report_create(&report, &text) == STATUS_OK)
        forward(self, text, strlen(text));
    else
        LOG_E("rank %d failed; %s", self->workers[self->cause].rank, status_message());
    free(text);
    return launch_report_exit_code(&self->workers[self->cause]);
}

static status launcher_init(launcher *self, const launch_plan *plan, char **argv,
                            int64_t started_ns)
{
    *self = (launcher){.plan = plan,
                       .start = {.plan = plan, .argv = argv, .started_ns = started_ns},
                       .stop_fd = -1,
                       .child_fd = -1,
                       .error_fds = {-1, -1},
                       .cause = -1,
                       .patience_ms = STDERR_FULL_MS,
                       .memory_kills = launch_report_memory_kills()};
    self->start.log_tty = isatty(STDERR_FILENO) == 1;
    self->workers = calloc((size_t)plan->nproc, sizeof *self->workers);
    self->polled = calloc((size_t)plan->nproc + 2, sizeof *self->polled);
    if (self->workers == NULL || self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "launcher: %d workers", plan->nproc);
    for (int i = 0; i < plan->nproc; i++)
        self->workers[i].stderr_fd = -1;
    return take_signals(self);
}

static void launcher_close(launcher *self)
{
    for (int i = 0; self->workers != NULL && i < self->plan->nproc; i++)
        launch_worker_close(&self->workers[i], forward, self);
    store_server_destroy(self->server);
    int fds[] = {self->stop_fd, self->child_fd, self->error_fds[0], self->error_fds[1]};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(self->workers);
    free(self->polled);
}

int launch_run(const launch_plan *plan, int argc, char **argv, int64_t started_ns)
{
    launcher self;
    int code = EXIT_CODE_INTERNAL;
    ASSERT(argc > 0 && plan->nproc > 0);
    status st = launcher_init(&self, plan, argv, started_ns);
    if (st != STATUS_OK)
        goto out;
    st = start_store(&self);
    if (st != STATUS_OK) {
        code = EXIT_CODE_RENDEZVOUS;
        goto out;
    }
    st = start_workers(&self);
    if (st != STATUS_OK) {
        LOG_E("%s", status_message());
        signal_workers(&self, SIGTERM, PHASE_STOPPING, LAUNCH_STOP_MS);
    }
    watch(&self);
    code = conclude(&self);
    if (plan->nnodes > 1)
        launch_goodbye(plan, self.start.master_port, code, self.stop_fd);
    st = STATUS_OK;

out:
    if (st != STATUS_OK)
        LOG_E("%s", status_message());
    launcher_close(&self);
    return code;
}
