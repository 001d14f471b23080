#include "app/launch/workers.h"

#include "app/common/elastic_link.h"
#include "app/common/exit_codes.h"
#include "app/common/run_log.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_NOT_STARTED = 127, INHERITED = 4 };

/* Threads that a worker may use if nobody has said how many: its share of the cores. 0: it need not
 * be told, as it is the only worker or OMP_NUM_THREADS is set. */
static int threads_of(const worker_spec *spec)
{
    int share = cores_count() / spec->nproc;
    if (getenv("OMP_NUM_THREADS") != NULL || (spec->nproc == 1 && !spec->policy.own))
        return 0;
    /* Workers of our own share the cores out by --threads. */
    return spec->policy.own || share < 1 ? 1 : share;
}

static void list_place(FILE *list, const worker *w, const worker_start *start)
{
    const worker_spec *spec = start->spec;
    entrypoint_word(list, "RANK=%d", w->rank);
    entrypoint_word(list, "LOCAL_RANK=%d", spec->virtual_local_rank ? 0 : w->local_rank);
    entrypoint_word(list, "WORLD_SIZE=%d", spec->world_size);
    entrypoint_word(list, "LOCAL_WORLD_SIZE=%d", spec->nproc);
    entrypoint_word(list, "NODE_RANK=%d", spec->node_rank);
    entrypoint_word(list, "GROUP_RANK=%d", spec->node_rank);
    entrypoint_word(list, "GROUP_WORLD_SIZE=%d", spec->nnodes);
    entrypoint_word(list, "ROLE_RANK=%d", w->rank);
    entrypoint_word(list, "ROLE_WORLD_SIZE=%d", spec->world_size);
    entrypoint_word(list, "ROLE_NAME=%s", spec->role);
    entrypoint_word(list, "MASTER_ADDR=%s", spec->master_addr);
    entrypoint_word(list, "MASTER_PORT=%d", spec->master_port);
}

/* The worker's own entry of the list of GPUs, or the GPU of its number. */
static void list_gpu(FILE *list, int local_rank)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (at == NULL) {
        entrypoint_word(list, "CUDA_VISIBLE_DEVICES=%d", local_rank);
        return;
    }
    size_t length = 0;
    const char *entry = "";
    for (int i = 0; i <= local_rank && entry != NULL; i++)
        entry = comma_list_next(&at, &length);
    entrypoint_word(list, "CUDA_VISIBLE_DEVICES=%.*s", (int)length, entry != NULL ? entry : "");
}

/* gloo and TensorPipe of other programs take the address that this host's own name stands for, and
 * tell it the other hosts: that of a loopback, they cannot reach. */
static void list_interface(FILE *list, const worker *w, const worker_start *start)
{
    static const char *const names[] = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"};
    char interface[SOCKET_ROUTE_NAME_BYTES];
    if (!start->spec->name_is_loopback || start->spec->nnodes == 1)
        return;
    socket_route_interface(start->spec->master_addr, interface);
    for (int i = 0; i < 2 && interface[0] != '\0'; i++) {
        if (getenv(names[i]) != NULL)
            continue;
        entrypoint_word(list, "%s=%s", names[i], interface);
        if (i == 0 && w->local_rank == 0 && start->attempt <= 1 && !start->has_told)
            LOG_I("%s=%s: this host's own name stands for a loopback address (set it yourself for "
                  "another interface)",
                  names[i], interface);
    }
}

/* The one rank that draws one, unless what it says is hidden. */
static bool has_status_line(const worker *w, const worker_start *start)
{
    return w->rank == 0 && start->terminal_fd > 0 && !start->spec->logs.hidden[w->local_rank];
}

/* What the launcher says before rank 0 has the run's folder; -1: not to be passed on. */
static int spool_for(const worker *w)
{
    return w->rank == 0 ? run_log_spool() : -1;
}

static void list_variables(FILE *list, const worker *w, const worker_start *start)
{
    const worker_spec *spec = start->spec;
    char path[FILE_PATH_BYTES];
    int threads = threads_of(spec);
    list_place(list, w, start);
    entrypoint_word(list, "TORCHELASTIC_RESTART_COUNT=%d", spec->now.restarts);
    entrypoint_word(list, "TORCHELASTIC_MAX_RESTARTS=%d", spec->max_restarts);
    entrypoint_word(list, "TORCHELASTIC_RUN_ID=%s", spec->run_id);
    entrypoint_word(list, "TORCHELASTIC_USE_AGENT_STORE=True");
    worker_logs_file(&spec->logs, start->attempt, w->local_rank, "error.json", path);
    entrypoint_word(list, "TORCHELASTIC_ERROR_FILE=%s", path);
    entrypoint_word(list, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", spec->policy.signal_names);
    if (getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL)
        entrypoint_word(list, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (threads > 0)
        entrypoint_word(list, "OMP_NUM_THREADS=%d", threads);
    list_interface(list, w, start);
    if (spec->virtual_local_rank)
        list_gpu(list, w->local_rank);
    worker_logs_dumps(&spec->logs, start->attempt, path);
    if (path[0] != '\0')
        entrypoint_word(list, "MNIST_DDP_DUMP_DIR=%s", path);
    if (spec->run_dir[0] != '\0')
        entrypoint_word(list, "MNIST_DDP_RUN_DIR=%s", spec->run_dir);
    entrypoint_word(list, "MNIST_DDP_LAUNCHED=%lld", (long long)start->started_ns);
    if (worker_spec_is_elastic(spec))
        entrypoint_word(list, "%s=%lld", ELASTIC_ROUND_VARIABLE, (long long)spec->now.round);
    if (w->rank_fd > 0) {
        entrypoint_word(list, "%s=%d", ELASTIC_FD_VARIABLE, w->rank_fd);
        entrypoint_word(list, "MNIST_DDP_JOIN_TIMEOUT=%lld",
                        (long long)(spec->rdzv.join_ms + 999) / 1000);
    }
    if (start->fence_fd > 0)
        entrypoint_word(list, "%s=%d", ROUND_FENCE_VARIABLE, start->fence_fd);
    if (has_status_line(w, start))
        entrypoint_word(list, "MNIST_DDP_LOG_TTY=%d", start->terminal_fd);
    if (spool_for(w) >= 0)
        entrypoint_word(list, "MNIST_DDP_RUN_LOG=%d", spool_for(w));
}

/* All of them, one after the other. *text is the caller's to free. */
static status make_variables(const worker *w, const worker_start *start, char **text,
                             size_t *size_bytes)
{
    text_stream list;
    TRY(text_stream_open(&list));
    list_variables(list.file, w, start);
    return status_context(text_stream_close(&list, text, size_bytes), "environment of rank %d",
                          w->rank);
}

static status make_environment(const worker *w, const worker_start *start, char ***out)
{
    char *list = NULL;
    size_t size_bytes = 0;
    text_stream all;
    TRY(make_variables(w, start, &list, &size_bytes));
    status st = text_stream_open(&all);
    for (char **entry = environ; *entry != NULL && st == STATUS_OK; entry++) {
        const char *own = list, *end = list + size_bytes; /* its entry there, if it has one */
        while (own < end && strncmp(*entry, own, strcspn(*entry, "=") + 1) != 0)
            own += strlen(own) + 1;
        if (own >= end)
            entrypoint_word(all.file, "%s", *entry);
    }
    if (st == STATUS_OK)
        fwrite(list, 1, size_bytes, all.file);
    free(list);
    if (st == STATUS_OK)
        st = entrypoint_list(&all, out);
    return status_context(st, "environment of rank %d", w->rank);
}

status worker_describe_environment(const worker *w, const worker_start *start, char **out)
{
    size_t size_bytes = 0;
    TRY(make_variables(w, start, out, &size_bytes));
    for (size_t i = 0; i + 1 < size_bytes; i++)
        if ((*out)[i] == '\0')
            (*out)[i] = ' ';
    return STATUS_OK;
}

/* Sets how the program begins: which signals it ignores, and which are blocked. Until its last line
 * those that the agent waits for are still blocked. */
static status reset_signals(const worker_start *start)
{
    /* A signal of the terminal goes to its whole process group. If the worker is of the agent's, it
     * leaves these to the agent. */
    static const int terminal[] = {SIGINT, SIGQUIT, SIGHUP};
    /* The agent blocks or ignores these for itself. Others that are ignored (nohup) stay so. */
    static const int agents[] = {SIGTERM, SIGPIPE, SIGCHLD, SIGXFSZ, SIGUSR1};
    sigset_t mask = start->signal_mask;
    for (size_t i = 0; i < sizeof agents / sizeof agents[0]; i++)
        signal(agents[i], SIG_DFL);
    for (size_t i = 0; i < sizeof terminal / sizeof terminal[0]; i++)
        if (!start->spec->program.own_session)
            signal(terminal[i], SIG_IGN);
    /* A rank of `train` waits for SIGTERM and SIGUSR1 with a thread. Blocked until that runs, they
     * do not end the rank. Other programs get them at once. */
    int (*change)(sigset_t *, int) = start->spec->policy.listens ? sigaddset : sigdelset;
    change(&mask, SIGTERM);
    change(&mask, SIGUSR1);
    return sigprocmask(SIG_SETMASK, &mask, NULL) == 0 ? STATUS_OK : STATUS_IO;
}

typedef struct worker_start_error {
    int local_rank, error;
} worker_start_error;

/* What a child needs between fork and exec, all made before. */
typedef struct child_start {
    const worker_start *start;
    int local_rank;
    char **argv, **env;
    char title[48];           /* argv[0] of a rank of ours: ps and top show it */
    int out_fd, err_fd;       /* -1: the agent's own */
    int inherited[INHERITED]; /* the terminal's descriptor, the spool's, the fence's, the link's;
                               * -1: none */
    pid_t agent;
} child_start;

/* Only calls that are safe while another thread of the agent (the store's) may hold any lock. */
__attribute__((noreturn)) static void become_worker(const child_start *child)
{
    const entrypoint *program = &child->start->spec->program;
    worker_start_error failure = {.local_rank = child->local_rank};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        goto failed;
    if (getppid() != child->agent)
        _exit(EXIT_NOT_STARTED); /* the agent died before the line above */
    if (program->own_session)
        setsid();
    file_limit_set(child->start->file_limit);
    if (reset_signals(child->start) != STATUS_OK ||
        (child->out_fd >= 0 && dup2(child->out_fd, STDOUT_FILENO) < 0) ||
        (child->err_fd >= 0 && dup2(child->err_fd, STDERR_FILENO) < 0))
        goto failed;
    for (int i = 0; i < INHERITED; i++)
        if (child->inherited[i] >= 0 && fcntl(child->inherited[i], F_SETFD, 0) != 0)
            goto failed;
    execve(program->path, child->argv, child->env);

failed:
    failure.error = errno;
    if (write(child->start->error_fd, &failure, sizeof failure) < 0)
        _exit(EXIT_NOT_STARTED); /* the exit code says enough */
    _exit(EXIT_NOT_STARTED);
}

/* *fd: what the worker writes to; -1: the agent's own. */
static status open_stream(const worker *w, const worker_start *start, int which,
                          output_stream *stream, int *fd)
{
    const worker_logs *logs = &start->spec->logs;
    worker_route route;
    worker_logs_route(logs, start->attempt, w->local_rank, which, &route);
    if (route.prefixed)
        worker_logs_prefix(logs, start->spec->role, w->rank, w->local_rank, stream->prefix);
    return output_stream_open(stream, &route, fd);
}

static status prepare(worker *w, const worker_start *start, child_start *child)
{
    TRY(make_environment(w, start, &child->env));
    TRY(entrypoint_argv(&start->spec->program, w->local_rank, &child->argv));
    snprintf(child->title, sizeof child->title, WORKER_TITLE " %d/%d", w->rank,
             start->spec->world_size);
    if (start->spec->policy.own && !worker_spec_is_elastic(start->spec)) /* whose rank stays */
        child->argv[0] = child->title;
    TRY(open_stream(w, start, LOGS_STDOUT, &w->out, &child->out_fd));
    child->inherited[0] = has_status_line(w, start) ? start->terminal_fd : -1;
    child->inherited[1] = spool_for(w);
    child->inherited[2] = start->fence_fd > 0 ? start->fence_fd : -1;
    child->inherited[3] = w->rank_fd > 0 ? w->rank_fd : -1;
    return open_stream(w, start, LOGS_STDERR, &w->err, &child->err_fd);
}

/* Forks and executes the program as worker->rank, with the agent's environment and torchrun's
 * variables. STATUS_IO with the reason. */
static status worker_launch(worker *w, const worker_start *start)
{
    child_start child = {
        .start = start, .local_rank = w->local_rank, .out_fd = -1, .err_fd = -1, .agent = getpid()};
    int link[2] = {0, 0};
    status st = STATUS_OK;
    if (start->spec->policy.keeps &&
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) != 0)
        st = FAIL(STATUS_IO, "socketpair: %s", file_limit_reason(errno));
    w->link_fd = link[0];
    w->rank_fd = link[1];
    if (st == STATUS_OK)
        st = prepare(w, start, &child);
    if (st == STATUS_OK) {
        pid_t pid = fork();
        if (pid == 0)
            become_worker(&child);
        w->pid = pid > 0 ? pid : 0;
        w->running = pid > 0;
        if (pid < 0)
            st = FAIL(STATUS_IO, "fork: %s (fewer ranks, or raise ulimit -u)", strerror(errno));
    }
    if (st != STATUS_OK)
        status_context(st, "rank %d cannot be started", w->rank);
    if (child.out_fd >= 0)
        close(child.out_fd);
    if (child.err_fd >= 0)
        close(child.err_fd);
    if (w->rank_fd > 0)
        close(w->rank_fd);
    w->rank_fd = 0;
    free(child.argv);
    free(child.env);
    return st;
}

/* Sends a signal to it, and to its process group if it has one of its own. Also after its end,
 * until it is reaped. */
static void worker_signal(const worker *w, const worker_start *start, int signal)
{
    if (w->pid == 0 || w->reaped)
        return;
    /* Before its setsid() it has no group yet. */
    if (!start->spec->program.own_session || kill(-w->pid, signal) != 0)
        kill(w->pid, signal);
}

/* Elastic: says `word` of its round; ELASTIC_JOIN gives it its place in the one that begins. What
 * it does not hear it need not: it has ended then, or does not read, and is told to end. */
static void worker_tell(const worker *w, const worker_start *start, elastic_word word)
{
    const worker_spec *spec = start->spec;
    elastic_message message = {.word = word,
                               .round = spec->now.round,
                               /* What list_place() says to a new process; of ELASTIC_JOIN. */
                               .place = {.round = spec->now.round,
                                         .rank = w->rank,
                                         .world_size = spec->world_size,
                                         .local_rank = spec->virtual_local_rank ? 0 : w->local_rank,
                                         .local_world_size = spec->nproc,
                                         .node_rank = spec->node_rank,
                                         .nnodes = spec->nnodes,
                                         .restarts = spec->now.restarts,
                                         .master_port = spec->master_port}};
    snprintf(message.place.master_addr, sizeof message.place.master_addr, "%s", spec->master_addr);
    if (elastic_link_send(w->link_fd, &message) != STATUS_OK)
        worker_signal(w, start, SIGTERM);
}

/* Elastic: whether it has left its round since the last call. */
static bool worker_has_left(worker *w)
{
    elastic_message message;
    bool came = false;
    if (w->link_fd <= 0)
        return false;
    status st = elastic_link_receive(w->link_fd, &message, &came);
    if (st != STATUS_OK) { /* it ends, or is none of ours */
        close(w->link_fd);
        w->link_fd = 0;
    }
    if (st != STATUS_OK || !came || message.word != ELASTIC_LEFT || !w->running)
        return false;
    w->running = false;
    w->waits = true;
    w->unmet = message.unmet;
    return true;
}

/* Whether it has ended: then sets wait_status and ended_ns. It stays a zombie, so that nobody else
 * gets its number, until worker_close. */
static bool worker_has_ended(worker *w)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    w->running = w->waits = false;
    w->ended_ns = clock_now_ns();
    w->wait_status =
        info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status & 0xff, 0) : info.si_status & 0x7f;
    return true;
}

/* Reaps it, shows begun lines, frees everything. The process must have ended. */
static void worker_close(worker *w, output_console *console)
{
    if (w->pid > 0 && !w->reaped && !w->running)
        waitpid(w->pid, NULL, WNOHANG);
    w->reaped = true;
    if (w->link_fd > 0)
        close(w->link_fd);
    w->link_fd = 0;
    output_stream_close(&w->out, console);
    output_stream_close(&w->err, console);
}

/* A process beside the agent. If the agent is killed, it kills the process groups of the workers.
 * The workers themselves end with the agent (PR_SET_PDEATHSIG); what they have started does not.
 * ps shows it as "mnist_ddp: orphan_reaper of PID", the agent's; it ends with the agent. */

enum { TITLE_ROOM = 4096 };

/* What ps shows, over the words of the agent's command line, which this process has a copy of. Only
 * where they are is known, and how long by /proc. */
static void set_title(const char *title)
{
    char line[TITLE_ROOM];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0 || memcmp(line, program_invocation_name, (size_t)n) != 0)
        return;
    memset(program_invocation_name, 0, (size_t)n);
    size_t length = strlen(title), most = (size_t)n - 1;
    memcpy(program_invocation_name, title, length < most ? length : most);
}

/* Only calls that are safe while another thread of the agent may have held any lock. */
__attribute__((noreturn)) static void guard(int fd, const pid_t *groups, int n, const char *title)
{
    char none;
    setsid(); /* the terminal's signals are not for it */
    prctl(PR_SET_NAME, "orphan_reaper");
    set_title(title);
    if (dup2(fd, 0) != 0 || close_range(1, ~0u, 0) != 0 || chdir("/") != 0)
        _exit(EXIT_FAILURE);
    while (read(0, &none, 1) < 0 && errno == EINTR)
        continue;
    for (int i = 0; i < n; i++)
        if (groups[i] > 1)
            kill(-groups[i], SIGKILL);
    _exit(EXIT_SUCCESS);
}

/* It is no child of the caller's, and holds none of its files. It shares the list of groups. When
 * the pipe to it is closed it kills those that are in the list then. */
static status start_reaper(worker_group *group, int n)
{
    int fds[2];
    char title[64];
    snprintf(title, sizeof title, "mnist_ddp: orphan_reaper of %d", (int)getpid());
    void *shared = mmap(NULL, (size_t)n * sizeof *group->groups, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return FAIL(STATUS_NO_MEMORY, "%d groups", n);
    group->groups = shared;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "orphan_reaper: pipe: %s", file_limit_reason(errno));
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0)
            guard(fds[0], group->groups, n, title);
        _exit(EXIT_SUCCESS);
    }
    int error = errno;
    close(fds[0]);
    group->reaper_fd = fds[1];
    if (child > 0)
        waitpid(child, NULL, 0);
    return child > 0 ? STATUS_OK : FAIL(STATUS_IO, "orphan_reaper: fork: %s", strerror(error));
}

enum { MAX_ROUNDS = 64, WRITE_ENDS = 2 /* a worker's, until it is started */ };

/* Opens child_fd and error_fd. */
static status open_descriptors(worker_group *group)
{
    int fds[2];
    sigset_t child;
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, the kernel reaps the workers itself */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &child, NULL) == 0)
        group->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (group->child_fd < 0)
        return FAIL(STATUS_IO, "signalfd: %s", file_limit_reason(errno));
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "pipe: %s", file_limit_reason(errno));
    group->error_fd = fds[0];
    group->start.error_fd = fds[1];
    return STATUS_OK;
}

status worker_group_create(const worker_start *start, output_console *console, worker_group *out)
{
    int n = start->spec->nproc, threads = threads_of(start->spec);
    *out = (worker_group){
        .start = *start, .child_fd = -1, .reaper_fd = -1, .console = console, .cause = -1};
    TRY(open_descriptors(out));
    if (start->spec->program.own_session)
        TRY(start_reaper(out, n));
    out->workers = calloc((size_t)n, sizeof *out->workers);
    if (out->workers == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d workers", n);
    out->n = n;
    /* Rank 0 of a training draws its status line on the terminal itself. All that goes through the
     * console erases it, so it may be there unless another process shows on the terminal what the
     * ranks print. */
    if (start->spec->policy.listens && terminal_of(STDERR_FILENO).erases &&
        (start->spec->stdout_has_result || !terminal_may_follow(STDOUT_FILENO)))
        out->start.terminal_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    for (int i = 0; i < n; i++) {
        output_stream_init(&out->workers[i].out);
        output_stream_init(&out->workers[i].err);
    }
    if (!start->spec->policy.own && threads > 0 && !start->spec->counts_nodes)
        LOG_I("OMP_NUM_THREADS=%d for each of %d ranks (the cores shared out; set it yourself for "
              "another number)",
              threads, n);
    return STATUS_OK;
}

void worker_group_clear(worker_group *group, int attempt)
{
    const worker_spec *spec = group->start.spec;
    int first = worker_spec_first_rank(spec, spec->node_rank);
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        if (w->waits) {
            w->rank = first + i;
            continue;
        }
        if (group->groups != NULL && !w->running)
            group->groups[i] = 0; /* before its number can be another's */
        worker_close(w, group->console);
        *w = (worker){
            .local_rank = i, .rank = first + i, .attempt = attempt, .out = w->out, .err = w->err};
    }
    free(group->snapshots);
    group->snapshots = NULL;
    group->running = group->n_failed = 0;
    group->cause = -1;
    group->start.attempt = attempt;
}

void worker_group_destroy(worker_group *group)
{
    if (group->workers == NULL)
        return;
    worker_group_clear(group, 0);
    if (group->start.terminal_fd > 0) { /* rank 0 may have been killed */
        output_console_write(group->console, STDERR_FILENO, TERMINAL_ERASE, strlen(TERMINAL_ERASE));
        close(group->start.terminal_fd);
    }
    free(group->workers);
    if (group->reaper_fd >= 0)
        close(group->reaper_fd);
    if (group->groups != NULL)
        munmap(group->groups, (size_t)group->n * sizeof *group->groups);
    close(group->child_fd);
    close(group->error_fd);
    close(group->start.error_fd);
    *group = (worker_group){0};
}

/* Node 0's agent serves the store. Ranks for which that has no descriptor left would wait for each
 * other. Other programs may do without the store. */
static status check_descriptors(const worker_group *group)
{
    const worker_start *start = &group->start;
    const worker_spec *spec = start->spec;
    int n = spec->world_size + WRITE_ENDS;
    if (spec->node_rank != 0 || !spec->policy.own)
        return STATUS_OK;
    for (int i = 0; i < group->n; i++) {
        for (int which = LOGS_STDOUT; which <= LOGS_STDERR; which++) {
            worker_route route;
            worker_logs_route(&spec->logs, start->attempt, i, which, &route);
            if (route.piped)
                n += 1 + (route.file[0] != '\0') + (route.filter != NULL);
        }
    }
    return status_context(file_limit_check(n), "%d ranks here, %d in all, need", group->n,
                          spec->world_size);
}

status worker_group_start(worker_group *group)
{
    TRY(check_descriptors(group));
    status st = STATUS_OK;
    for (int i = 0; i < group->n && st == STATUS_OK; i++) {
        worker *w = &group->workers[i];
        bool goes_on = w->waits;
        if (goes_on) {
            worker_tell(w, &group->start, ELASTIC_JOIN);
            w->running = true;
            w->waits = false;
        } else {
            st = worker_launch(w, &group->start);
        }
        group->running += w->running;
        if (group->groups != NULL && w->running)
            group->groups[i] = w->pid;
        if (st != STATUS_OK)
            st = status_context(st, "%d of %d ranks were started", i, group->n);
    }
    return st;
}

void worker_group_signal(const worker_group *group, int signal)
{
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running)
            worker_signal(&group->workers[i], &group->start, signal);
}

void worker_group_tell(const worker_group *group, elastic_word word)
{
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running)
            worker_tell(&group->workers[i], &group->start, word);
}

bool worker_group_some_wait(const worker_group *group)
{
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].waits)
            return true;
    return false;
}

void worker_group_resume(worker_group *group)
{
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        group->running += w->waits;
        w->running = w->running || w->waits;
        w->waits = false;
    }
}

void worker_group_ask(const worker_group *group, int signal)
{
    for (int i = 0; i < group->n; i++) /* by SIGUSR1, which carries the signal */
        if (group->workers[i].running)
            sigqueue(group->workers[i].pid, SIGUSR1, (union sigval){.sival_int = signal});
}

worker *worker_group_next_ended(worker_group *group)
{
    struct signalfd_siginfo info;
    while (read(group->child_fd, &info, sizeof info) == (ssize_t)sizeof info)
        continue; /* one signal may stand for several workers: all are asked */
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        bool waited = w->waits;
        if ((!w->running && !waited) || !worker_has_ended(w))
            continue;
        if (!waited) {
            group->running--;
            return w;
        }
        LOG_W("rank %d (pid %d) has ended while it waited for its next round: a new one takes its "
              "place, without its state",
              w->rank, (int)w->pid);
    }
    return NULL;
}

/* How other libraries say that another rank went away. */
static const char *const LOST_PEER_WORDS[] = {"Connection closed by peer",
                                              "Connection reset by peer",
                                              "Socket closed",
                                              "Broken pipe",
                                              "ncclRemoteError",
                                              "remote process exited",
                                              "communicator was aborted",
                                              "failed to recv, got 0 bytes"};

/* Whether the process ended because it lost another. Only the last lines show it: an error that it
 * survived does not count. */
static bool lost_a_peer(const output_stream *err)
{
    enum { LAST_LINES = 8 };
    int64_t first = err->lines_seen > LAST_LINES ? err->lines_seen - LAST_LINES : 0;
    for (int64_t k = first; k < err->lines_seen; k++)
        for (size_t i = 0; i < sizeof LOST_PEER_WORDS / sizeof LOST_PEER_WORDS[0]; i++)
            if (strstr(output_stream_line(err, k), LOST_PEER_WORDS[i]) != NULL)
                return true;
    return false;
}

cause_priority worker_failure_priority(const worker *w)
{
    int code = WIFEXITED(w->wait_status) ? WEXITSTATUS(w->wait_status) : -1;
    if (code == EXIT_CODE_PEER)
        return first_cause_priority(STATUS_PEER);
    if (code == EXIT_CODE_TIMEOUT)
        return first_cause_priority(STATUS_TIMEOUT);
    return code >= 0 && lost_a_peer(&w->err) ? CAUSE_LOST : CAUSE_OWN;
}

/* The worker that failed first, of those whose failure says most. */
static void choose_cause(worker_group *group)
{
    int chosen = -1;
    cause_priority best = CAUSE_LOST;
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (w->failure_order <= 0)
            continue;
        cause_priority priority = worker_failure_priority(w);
        if (chosen < 0 || priority > best ||
            (priority == best && w->failure_order < group->workers[chosen].failure_order)) {
            chosen = i;
            best = priority;
        }
    }
    group->cause = chosen;
}

void worker_group_note_failure(worker_group *group, worker *w)
{
    w->failure_order = ++group->n_failed;
    choose_cause(group);
}

bool worker_group_only_lost(const worker_group *group)
{
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (w->failure_order > 0 && worker_failure_priority(w) != CAUSE_LOST)
            return false;
    }
    return group->cause >= 0;
}

void worker_group_drop_cause_by(worker_group *group, int signal)
{
    if (group->cause < 0)
        return;
    int how = group->workers[group->cause].wait_status;
    if (!WIFSIGNALED(how) || WTERMSIG(how) != signal)
        return;
    for (int i = 0; i < group->n; i++)
        group->workers[i].failure_order = 0;
    group->cause = -1;
}

void worker_group_snapshot_ranks(worker_group *group)
{
    const worker_logs *logs = &group->start.spec->logs;
    char folder[FILE_PATH_BYTES];
    int found = 0;
    worker_logs_dumps(logs, group->start.attempt, folder);
    if (group->snapshots != NULL || folder[0] == '\0')
        return;
    rank_snapshot *snapshots = calloc((size_t)group->n, sizeof *snapshots);
    if (snapshots == NULL)
        return;
    for (int i = 0; i < group->n; i++) {
        rank_snapshot rank;
        if (rank_status_read(folder, group->workers[i].rank, &rank) != STATUS_OK)
            continue; /* its pid stays 0 */
        snapshots[i] = rank;
        found++;
    }
    if (found > 0)
        group->snapshots = snapshots;
    else
        free(snapshots); /* a program without status pages */
}

/* Streams 2 * i and 2 * i + 1 are worker i's. */
static output_stream *stream_of(const worker_group *group, int index)
{
    worker *w = &group->workers[index / 2];
    return index % 2 == 0 ? &w->out : &w->err;
}

int worker_group_poll(worker_group *group, struct pollfd *out)
{
    int n = 0;
    for (int i = 0; i < 2 * group->n; i++) {
        output_stream *stream = stream_of(group, i);
        stream->polled = stream->fd >= 0 && !output_console_is_full(group->console, stream->target);
        if (stream->polled)
            out[n++] = (struct pollfd){.fd = stream->fd, .events = POLLIN};
    }
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running && group->workers[i].link_fd > 0)
            out[n++] = (struct pollfd){.fd = group->workers[i].link_fd, .events = POLLIN};
    return n;
}

void worker_group_read(worker_group *group, const struct pollfd *polled)
{
    for (int i = 0; i < 2 * group->n; i++) {
        output_stream *stream = stream_of(group, i);
        if (stream->polled && polled++->revents != 0)
            output_stream_read(stream, group->console);
    }
    for (int i = 0; i < group->n; i++)
        group->running -= worker_has_left(&group->workers[i]);
}

/* What a worker has left in its pipe. What it has started may write on for ever: that is not waited
 * for. */
static void read_rest(output_stream *stream, output_console *console)
{
    for (int i = 0; i < MAX_ROUNDS && output_stream_read(stream, console); i++)
        output_console_flush(console);
}

void worker_group_finish(worker_group *group, worker_leftovers leftovers)
{
    const worker_logs *logs = &group->start.spec->logs;
    worker_logs_check_disk(logs);
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        worker_route route;
        read_rest(&w->out, group->console);
        read_rest(&w->err, group->console);
        if (leftovers == KILL_LEFTOVERS && group->start.spec->program.own_session)
            worker_signal(w, &group->start, SIGKILL);
        worker_logs_route(logs, w->attempt, i, LOGS_STDERR, &route);
        if (!route.piped)
            output_stream_take_file(&w->err, route.file);
    }
    worker_start_error error;
    while (read(group->error_fd, &error, sizeof error) == (ssize_t)sizeof error)
        if (error.local_rank >= 0 && error.local_rank < group->n)
            group->workers[error.local_rank].start_errno = error.error;
    if (group->cause >= 0)
        choose_cause(group); /* with what they said last */
}

int worker_group_exited_with(const worker_group *group, int code)
{
    int n = 0;
    for (int i = 0; i < group->n; i++) {
        int how = group->workers[i].wait_status;
        n += group->workers[i].pid != 0 && WIFEXITED(how) && WEXITSTATUS(how) == code;
    }
    return n;
}

__attribute__((noreturn)) static void drain(worker_group *group, struct pollfd *polled)
{
    output_console console;
    sigset_t none;
    setsid();
    run_log_end();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* those of the agent were for itself */
    if (group->reaper_fd >= 0)
        close(group->reaper_fd);
    output_console_init(&console);
    group->console = &console;
    for (int n; (n = worker_group_poll(group, polled)) > 0;) {
        if (poll(polled, (nfds_t)n, -1) < 0 && errno != EINTR)
            break;
        worker_group_read(group, polled);
        output_console_flush(&console);
    }
    _exit(EXIT_SUCCESS);
}

void worker_group_drain_leftovers(const worker_group *group)
{
    worker_group own = *group;
    struct pollfd *polled = calloc((size_t)group->n * WORKER_GROUP_FDS + 1, sizeof *polled);
    if (polled == NULL)
        return;
    if (worker_group_poll(&own, polled) > 0) {
        pid_t pid = fork();
        if (pid == 0)
            drain(&own, polled);
        if (pid < 0)
            LOG_W("what the ranks have left running loses its stderr: fork: %s", strerror(errno));
    }
    free(polled);
}
