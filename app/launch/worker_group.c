#include "app/launch/worker_group.h"

#include "app/common/run_log.h"
#include "app/launch/process_failure.h"
#include "base/host.h"
#include "base/log.h"
#include "dist/health/hang_report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ROUNDS = 64, WRITE_ENDS = 2 /* of a worker, until it is started */ };

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

/* Rank 0 of a training draws its status line on the terminal itself. All that goes through the
 * console erases it, so it may be there unless another process shows on the terminal what the ranks
 * print. */
static int find_terminal(const worker_spec *spec)
{
    bool is_apart = spec->stdout_has_result || !terminal_may_follow(STDOUT_FILENO);
    return spec->policy.listens && is_apart && terminal_of(STDERR_FILENO).erases
               ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
               : 0;
}

/* Rank 0 may have been killed. */
static void erase_status_line(const worker_group *group)
{
    if (group->start.terminal_fd <= 0)
        return;
    output_console_write(group->console, STDERR_FILENO, TERMINAL_ERASE, strlen(TERMINAL_ERASE));
    close(group->start.terminal_fd);
}

status worker_group_create(const worker_start *start, output_console *console, worker_group *out)
{
    int n = start->spec->nproc, threads = worker_threads(start->spec);
    *out = (worker_group){
        .start = *start, .child_fd = -1, .reaper.fd = -1, .console = console, .cause = -1};
    TRY(open_descriptors(out));
    if (start->spec->program.own_session)
        TRY(orphan_reaper_start(n, &out->reaper));
    out->workers = calloc((size_t)n, sizeof *out->workers);
    if (out->workers == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d workers", n);
    out->n = n;
    out->start.terminal_fd = find_terminal(start->spec);
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
        if (w->pid > 0 && !w->running && !w->reaped)
            orphan_reaper_forget(&group->reaper, w->pid);
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
    erase_status_line(group);
    free(group->workers);
    orphan_reaper_close(&group->reaper);
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
        if (w->running && !goes_on && group->start.spec->program.own_session)
            orphan_reaper_watch(&group->reaper, w->pid);
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
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running)
            worker_ask(&group->workers[i], signal);
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

/* The worker that failed first, of those that tell most. */
static void choose_cause(worker_group *group)
{
    int chosen = -1;
    cause_priority best = CAUSE_LOST;
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (w->failure_order <= 0)
            continue;
        cause_priority priority = process_failure_priority(w);
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
        if (w->failure_order > 0 && process_failure_priority(w) != CAUSE_LOST)
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

char *worker_group_describe_ranks(const worker_group *group)
{
    return group->snapshots != NULL ? hang_report_lines(group->snapshots, group->n) : NULL;
}

void worker_group_name_hung(const worker_group *group, char out[HANG_REPORT_WHO_BYTES])
{
    out[0] = '\0';
    if (group->snapshots != NULL)
        hang_report_name(group->snapshots, group->n, out);
}

const char *worker_group_last_place(const worker_group *group, int index)
{
    return group->snapshots != NULL && group->snapshots[index].pid != 0
               ? group->snapshots[index].doing
               : "";
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

static void read_start_errors(worker_group *group)
{
    worker_start_error error;
    while (read(group->error_fd, &error, sizeof error) == (ssize_t)sizeof error)
        if (error.local_rank >= 0 && error.local_rank < group->n)
            group->workers[error.local_rank].start_errno = error.error;
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
    read_start_errors(group);
    if (group->cause >= 0)
        choose_cause(group); /* with what they said last */
}

bool worker_group_all_exited_with(const worker_group *group, int code, bool or_zero)
{
    int n = 0;
    for (int i = 0; i < group->n; i++) {
        int how = group->workers[i].wait_status;
        if (group->workers[i].pid == 0 || !WIFEXITED(how) ||
            (WEXITSTATUS(how) != code && !(or_zero && how == 0)))
            return false;
        n += WEXITSTATUS(how) == code;
    }
    return n > 0;
}

bool worker_group_some_exited_with(const worker_group *group, int code)
{
    for (int i = 0; i < group->n; i++) {
        int how = group->workers[i].wait_status;
        if (group->workers[i].pid != 0 && WIFEXITED(how) && WEXITSTATUS(how) == code)
            return true;
    }
    return false;
}

__attribute__((noreturn)) static void drain(worker_group *group, struct pollfd *polled)
{
    output_console console;
    sigset_t none;
    setsid();
    run_log_end();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* those of the agent were for itself */
    orphan_reaper_close(&group->reaper);
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
