#include "app/launch/worker.h"

#include "app/common/elastic_link.h"
#include "app/common/round_fence.h"
#include "app/common/run_log.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/net/socket_address.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_NOT_STARTED = 127, INHERITED = 4 };

/* "NAME=value" one after the other, each with its zero byte. */
typedef struct variables {
    text_stream stream;
    char *text;
    size_t size_bytes;
    int count;
} variables;

__attribute__((format(printf, 2, 3))) static void add(variables *list, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(list->stream.file, fmt, args);
    va_end(args);
    fputc('\0', list->stream.file);
    list->count++;
}

int worker_threads(const worker_spec *spec)
{
    int share = cores_count() / spec->nproc;
    if (getenv("OMP_NUM_THREADS") != NULL || (spec->nproc == 1 && !spec->policy.own))
        return 0;
    /* Workers of our own share the cores out by --threads. */
    return spec->policy.own || share < 1 ? 1 : share;
}

static void list_place(variables *list, const worker *w, const worker_start *start)
{
    const worker_spec *spec = start->spec;
    add(list, "RANK=%d", w->rank);
    add(list, "LOCAL_RANK=%d", spec->virtual_local_rank ? 0 : w->local_rank);
    add(list, "WORLD_SIZE=%d", spec->world_size);
    add(list, "LOCAL_WORLD_SIZE=%d", spec->nproc);
    add(list, "NODE_RANK=%d", spec->node_rank);
    add(list, "GROUP_RANK=%d", spec->node_rank);
    add(list, "GROUP_WORLD_SIZE=%d", spec->nnodes);
    add(list, "ROLE_RANK=%d", w->rank);
    add(list, "ROLE_WORLD_SIZE=%d", spec->world_size);
    add(list, "ROLE_NAME=%s", spec->role);
    add(list, "MASTER_ADDR=%s", spec->master_addr);
    add(list, "MASTER_PORT=%d", spec->master_port);
}

/* The worker's own entry of the list of GPUs, or the GPU of its number. */
static void list_gpu(variables *list, int local_rank)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (at == NULL) {
        add(list, "CUDA_VISIBLE_DEVICES=%d", local_rank);
        return;
    }
    size_t length = 0;
    const char *entry = "";
    for (int i = 0; i <= local_rank && entry != NULL; i++)
        entry = comma_list_next(&at, &length);
    add(list, "CUDA_VISIBLE_DEVICES=%.*s", (int)length, entry != NULL ? entry : "");
}

/* gloo and TensorPipe of other programs take the address that this host's own name stands for, and
 * tell it the other hosts: that of a loopback, they cannot reach. */
static void list_interface(variables *list, const worker *w, const worker_start *start)
{
    static const char *const names[] = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"};
    char interface[SOCKET_ROUTE_NAME_BYTES];
    if (!start->spec->name_is_loopback || start->spec->nnodes == 1)
        return;
    socket_route_interface(start->spec->master_addr, interface);
    for (int i = 0; i < 2 && interface[0] != '\0'; i++) {
        if (getenv(names[i]) != NULL)
            continue;
        add(list, "%s=%s", names[i], interface);
        if (i == 0 && w->local_rank == 0 && start->attempt <= 1)
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

static void list_variables(variables *list, const worker *w, const worker_start *start)
{
    const worker_spec *spec = start->spec;
    char path[FILE_PATH_BYTES];
    int threads = worker_threads(spec);
    list_place(list, w, start);
    add(list, "TORCHELASTIC_RESTART_COUNT=%d", spec->restarts);
    add(list, "TORCHELASTIC_MAX_RESTARTS=%d", spec->max_restarts);
    add(list, "TORCHELASTIC_RUN_ID=%s", spec->run_id);
    add(list, "TORCHELASTIC_USE_AGENT_STORE=True");
    worker_logs_file(&spec->logs, start->attempt, w->local_rank, "error.json", path);
    add(list, "TORCHELASTIC_ERROR_FILE=%s", path);
    add(list, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", spec->policy.signal_names);
    if (getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL)
        add(list, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (threads > 0)
        add(list, "OMP_NUM_THREADS=%d", threads);
    list_interface(list, w, start);
    if (spec->virtual_local_rank)
        list_gpu(list, w->local_rank);
    worker_logs_dumps(&spec->logs, start->attempt, path);
    if (path[0] != '\0')
        add(list, "MNIST_DDP_DUMP_DIR=%s", path);
    if (spec->run_dir[0] != '\0')
        add(list, "MNIST_DDP_RUN_DIR=%s", spec->run_dir);
    add(list, "MNIST_DDP_LAUNCHED=%lld", (long long)start->started_ns);
    if (worker_spec_is_elastic(spec))
        add(list, "%s=%lld", ELASTIC_ROUND_VARIABLE, (long long)spec->round);
    if (w->rank_fd > 0) {
        add(list, "%s=%d", ELASTIC_FD_VARIABLE, w->rank_fd);
        add(list, "MNIST_DDP_JOIN_TIMEOUT=%lld", (long long)(spec->join_ms + 999) / 1000);
    }
    if (start->fence_fd > 0)
        add(list, "%s=%d", ROUND_FENCE_VARIABLE, start->fence_fd);
    if (has_status_line(w, start))
        add(list, "MNIST_DDP_LOG_TTY=%d", start->terminal_fd);
    if (spool_for(w) >= 0)
        add(list, "MNIST_DDP_RUN_LOG=%d", spool_for(w));
}

/* On success the text is the caller's to free. */
static status variables_read(variables *list, const worker *w, const worker_start *start)
{
    *list = (variables){0};
    TRY(text_stream_open(&list->stream));
    list_variables(list, w, start);
    return status_context(text_stream_close(&list->stream, &list->text, &list->size_bytes),
                          "environment of rank %d", w->rank);
}

/* Does the list have its own value for the variable of this "NAME=value"? */
static bool is_replaced(const variables *list, const char *entry)
{
    size_t name = strcspn(entry, "=");
    for (const char *own = list->text; own < list->text + list->size_bytes; own += strlen(own) + 1)
        if (strncmp(entry, own, name + 1) == 0)
            return true;
    return false;
}

static status make_environment(const worker *w, const worker_start *start, char ***out)
{
    variables list;
    TRY(variables_read(&list, w, start));
    size_t inherited = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        inherited++;
    size_t pointers = (inherited + (size_t)list.count + 1) * sizeof(char *);
    char **block = malloc(pointers + list.size_bytes);
    if (block == NULL) {
        free(list.text);
        return FAIL(STATUS_NO_MEMORY, "environment of rank %d: %zu variables", w->rank, inherited);
    }
    char *text = (char *)block + pointers;
    memcpy(text, list.text, list.size_bytes);
    size_t n = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        if (!is_replaced(&list, *entry))
            block[n++] = *entry;
    for (int i = 0; i < list.count; i++, text += strlen(text) + 1)
        block[n++] = text;
    block[n] = NULL;
    free(list.text);
    *out = block;
    return STATUS_OK;
}

status worker_describe_environment(const worker *w, const worker_start *start, char **out)
{
    variables list;
    TRY(variables_read(&list, w, start));
    for (size_t i = 0; i + 1 < list.size_bytes; i++)
        if (list.text[i] == '\0')
            list.text[i] = ' ';
    *out = list.text;
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
    worker_start_error report = {.local_rank = child->local_rank};
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
    report.error = errno;
    if (write(child->start->error_fd, &report, sizeof report) < 0)
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

static status open_link(worker *w, const worker_start *start)
{
    int fds[2];
    if (!start->spec->policy.keeps)
        return STATUS_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return FAIL(STATUS_IO, "socketpair: %s", file_limit_reason(errno));
    w->link_fd = fds[0];
    w->rank_fd = fds[1];
    return STATUS_OK;
}

status worker_launch(worker *w, const worker_start *start)
{
    child_start child = {
        .start = start, .local_rank = w->local_rank, .out_fd = -1, .err_fd = -1, .agent = getpid()};
    status st = open_link(w, start);
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

void worker_signal(const worker *w, const worker_start *start, int signal)
{
    if (w->pid == 0 || w->reaped)
        return;
    /* Before its setsid() it has no group yet. */
    if (!start->spec->program.own_session || kill(-w->pid, signal) != 0)
        kill(w->pid, signal);
}

void worker_ask(const worker *w, int signal)
{
    if (w->pid != 0 && !w->reaped)
        sigqueue(w->pid, SIGUSR1, (union sigval){.sival_int = signal});
}

/* What list_place() says to a new process. */
static elastic_place place_of(const worker *w, const worker_spec *spec)
{
    elastic_place place = {.round = spec->round,
                           .rank = w->rank,
                           .world_size = spec->world_size,
                           .local_rank = spec->virtual_local_rank ? 0 : w->local_rank,
                           .local_world_size = spec->nproc,
                           .node_rank = spec->node_rank,
                           .nnodes = spec->nnodes,
                           .restarts = spec->restarts,
                           .master_port = spec->master_port};
    snprintf(place.master_addr, sizeof place.master_addr, "%s", spec->master_addr);
    return place;
}

void worker_tell(const worker *w, const worker_start *start, elastic_word word)
{
    elastic_message message = {.word = word, .round = start->spec->round};
    if (word == ELASTIC_JOIN)
        message.place = place_of(w, start->spec);
    if (elastic_link_send(w->link_fd, &message) != STATUS_OK)
        worker_signal(w, start, SIGTERM);
}

bool worker_has_left(worker *w)
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

bool worker_has_ended(worker *w)
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

void worker_close(worker *w, output_console *console)
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
