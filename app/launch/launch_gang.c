#include "app/launch/launch_gang.h"

#include "app/exit_codes.h"
#include "app/launch/launch_ending.h"
#include "app/launch/launch_hang.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLED_MS = 5000, MAX_ROUNDS = 64 };

status launch_gang_create(const launch_start *start, launch_console *console, launch_gang *out)
{
    int n = start->settings->plan.nproc;
    int fds[2];
    *out = (launch_gang){.start = *start, .error_fd = -1, .console = console, .cause = -1};
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "launcher: pipe: %s", strerror(errno));
    out->error_fd = fds[0];
    out->start.error_fd = fds[1];
    out->start.guardian.fd = -1;
    if (start->settings->program.own_session)
        TRY(launch_guardian_start(n, &out->start.guardian));
    out->workers = calloc((size_t)n, sizeof *out->workers);
    if (out->workers == NULL)
        return FAIL(STATUS_NO_MEMORY, "launcher: %d workers", n);
    out->n = n;
    for (int i = 0; i < n; i++) {
        launch_stream_init(&out->workers[i].out);
        launch_stream_init(&out->workers[i].err);
    }
    return STATUS_OK;
}

static void close_workers(launch_gang *gang)
{
    for (int i = 0; i < gang->n; i++) {
        launch_worker *worker = &gang->workers[i];
        if (worker->pid > 0 && !worker->running && !worker->reaped)
            launch_guardian_forget(&gang->start.guardian, worker->pid);
        launch_worker_close(worker, gang->console);
    }
}

void launch_gang_destroy(launch_gang *gang)
{
    if (gang->workers == NULL)
        return;
    close_workers(gang);
    free(gang->sights);
    free(gang->workers);
    launch_guardian_close(&gang->start.guardian);
    close(gang->error_fd);
    close(gang->start.error_fd);
    *gang = (launch_gang){0};
}

static void enter(launch_gang *gang, launch_phase phase, int64_t phase_ms)
{
    gang->phase = phase;
    gang->deadline_ns = clock_deadline_ns(phase_ms);
    gang->console->hurried = phase != PHASE_RUNNING;
}

static void signal_all(launch_gang *gang, int signal, launch_phase phase, int64_t phase_ms)
{
    for (int i = 0; i < gang->n; i++)
        if (gang->workers[i].running)
            launch_worker_signal(&gang->workers[i], &gang->start, signal);
    enter(gang, phase, phase_ms);
}

static const launch_rules *rules_of(const launch_gang *gang)
{
    return &gang->start.settings->rules;
}

status launch_gang_start(launch_gang *gang, int generation, int stopped_by)
{
    const launch_plan *plan = &gang->start.settings->plan;
    status st = STATUS_OK;
    close_workers(gang);
    free(gang->sights);
    gang->sights = NULL;
    gang->start.generation = generation;
    gang->running = gang->n_failed = 0;
    gang->cause = -1;
    gang->signal = stopped_by;
    gang->phase = PHASE_RUNNING;
    gang->console->hurried = gang->hurried = false;
    for (int i = 0; i < gang->n && stopped_by == 0 && st == STATUS_OK; i++) {
        launch_worker *worker = &gang->workers[i];
        *worker = (launch_worker){.local_rank = i, .rank = plan->node_rank * plan->nproc + i};
        st = launch_worker_start(worker, &gang->start);
        gang->running += worker->running;
        if (st != STATUS_OK)
            st = status_context(st, "%d of %d ranks were started", i, gang->n);
    }
    gang->broken = st != STATUS_OK;
    if (gang->broken)
        signal_all(gang, SIGTERM, PHASE_STOPPING, rules_of(gang)->stop_ms);
    return st;
}

bool launch_gang_is_over(const launch_gang *gang)
{
    return gang->running == 0 || gang->phase == PHASE_GIVEN_UP;
}

/* What the ranks note of themselves is looked at before the first of them is stopped. */
static void enter_grace(launch_gang *gang)
{
    if (gang->sights == NULL)
        gang->sights = launch_hang_look(gang);
    enter(gang, PHASE_GRACE, LAUNCH_GRACE_MS);
}

void launch_gang_stop(launch_gang *gang)
{
    if (gang->phase == PHASE_RUNNING)
        enter_grace(gang);
}

/* The worker that failed first, of those that tell most. */
static void choose_cause(launch_gang *gang)
{
    int chosen = -1;
    cause_weight best = CAUSE_LOST;
    for (int i = 0; i < gang->n; i++) {
        const launch_worker *worker = &gang->workers[i];
        if (worker->failed_as <= 0)
            continue;
        cause_weight weight = launch_ending_weight(worker);
        if (chosen < 0 || weight > best ||
            (weight == best && worker->failed_as < gang->workers[chosen].failed_as)) {
            chosen = i;
            best = weight;
        }
    }
    gang->cause = chosen;
}

/* Ended as it should: by itself, or because it was asked for a last checkpoint. */
static bool ended_well(const launch_gang *gang, int wait_status)
{
    return wait_status == 0 || (rules_of(gang)->own && WIFEXITED(wait_status) &&
                                WEXITSTATUS(wait_status) == EXIT_CODE_PREEMPTED);
}

static void note_end(launch_gang *gang, int index)
{
    launch_worker *worker = &gang->workers[index];
    int how = worker->wait_status;
    /* One that got the launcher's signal too, and did not listen. */
    bool asked = gang->phase == PHASE_SAVING && WIFSIGNALED(how) &&
                 (WTERMSIG(how) == SIGUSR1 || WTERMSIG(how) == gang->signal);
    worker->was_stopped = gang->phase >= PHASE_STOPPING || asked;
    gang->running--;
    if (asked) /* and the others would wait for it */
        signal_all(gang, SIGTERM, PHASE_STOPPING, rules_of(gang)->signal_ms);
    if (ended_well(gang, worker->wait_status) || worker->was_stopped)
        return;
    worker->failed_as = ++gang->n_failed;
    choose_cause(gang);
    if (gang->phase == PHASE_RUNNING || gang->phase == PHASE_SAVING)
        enter_grace(gang);
}

void launch_gang_reap(launch_gang *gang)
{
    for (int i = 0; i < gang->n; i++)
        if (gang->workers[i].running && launch_worker_has_ended(&gang->workers[i]))
            note_end(gang, i);
}

/* Sent to the whole process group, it may have ended a worker before it came to the launcher. */
static void forgive(launch_gang *gang, int signal)
{
    if (gang->cause < 0)
        return;
    int how = gang->workers[gang->cause].wait_status;
    if (!WIFSIGNALED(how) || WTERMSIG(how) != signal)
        return;
    for (int i = 0; i < gang->n; i++)
        gang->workers[i].failed_as = 0;
    gang->cause = -1;
}

void launch_gang_take_signal(launch_gang *gang, int signal)
{
    const launch_rules *rules = rules_of(gang);
    if (launch_gang_is_over(gang))
        return;
    if (gang->phase == PHASE_SAVING) {
        signal_all(gang, SIGTERM, PHASE_STOPPING, rules->signal_ms);
        return;
    }
    if (gang->phase >= PHASE_STOPPING) {
        if (gang->signal != 0 || gang->hurried)
            signal_all(gang, SIGKILL, PHASE_KILLED, KILLED_MS);
        gang->hurried = true;
        return;
    }
    forgive(gang, signal);
    bool failed = gang->cause >= 0;
    bool saves = launch_rules_saves(rules, signal) && !failed;
    if (failed)
        gang->hurried = true;
    else
        gang->signal = signal;
    if (saves && gang->phase == PHASE_RUNNING)
        signal_all(gang, SIGUSR1, PHASE_SAVING, rules->save_ms);
    else
        signal_all(gang, rules->own ? SIGTERM : signal, PHASE_STOPPING, rules->signal_ms);
    if (failed)
        return;
    launch_console_say(gang->console, "warning: SIG%s: stopping %d rank%s%s\n",
                       sigabbrev_np(signal), gang->running, gang->running == 1 ? "" : "s",
                       gang->phase == PHASE_SAVING
                           ? " at the next step, with a checkpoint; once more to stop at once"
                           : "");
}

/* Streams 2 * i and 2 * i + 1 are worker i's. */
static launch_stream *stream_of(const launch_gang *gang, int index)
{
    launch_worker *worker = &gang->workers[index / 2];
    return index % 2 == 0 ? &worker->out : &worker->err;
}

int launch_gang_poll(launch_gang *gang, struct pollfd *out)
{
    int n = 0;
    for (int i = 0; i < 2 * gang->n; i++) {
        launch_stream *stream = stream_of(gang, i);
        stream->polled = stream->fd >= 0 && !launch_console_is_full(gang->console, stream->target);
        if (stream->polled)
            out[n++] = (struct pollfd){.fd = stream->fd, .events = POLLIN};
    }
    return n;
}

int launch_gang_wait_ms(const launch_gang *gang)
{
    return gang->phase == PHASE_RUNNING ? -1 : clock_remaining_ms(gang->deadline_ns);
}

void launch_gang_read(launch_gang *gang, const struct pollfd *polled)
{
    for (int i = 0; i < 2 * gang->n; i++) {
        launch_stream *stream = stream_of(gang, i);
        if (stream->polled && polled++->revents != 0)
            launch_stream_read(stream, gang->console);
    }
}

void launch_gang_pass_deadline(launch_gang *gang)
{
    if (gang->phase == PHASE_RUNNING || launch_gang_is_over(gang) ||
        !clock_passed(gang->deadline_ns))
        return;
    if (gang->phase <= PHASE_SAVING) {
        signal_all(gang, SIGTERM, PHASE_STOPPING, rules_of(gang)->stop_ms);
    } else if (gang->phase == PHASE_STOPPING) {
        signal_all(gang, SIGKILL, PHASE_KILLED, KILLED_MS);
    } else {
        launch_console_say(gang->console,
                           "error: %d ranks did not end %d s after SIGKILL (a stuck device or "
                           "disk?)\n",
                           gang->running, KILLED_MS / 1000);
        gang->phase = PHASE_GIVEN_UP;
    }
}

static void read_start_errors(launch_gang *gang)
{
    launch_start_error error;
    while (read(gang->error_fd, &error, sizeof error) == (ssize_t)sizeof error)
        if (error.local_rank >= 0 && error.local_rank < gang->n)
            gang->workers[error.local_rank].start_errno = error.error;
}

/* What a worker has left in its pipe; not all that others may add for ever. */
static void read_rest(launch_stream *stream, launch_console *console)
{
    for (int i = 0; i < MAX_ROUNDS && launch_stream_read(stream, console); i++)
        launch_console_flush(console);
}

void launch_gang_finish(launch_gang *gang)
{
    const launch_logs *logs = &gang->start.settings->logs;
    char path[FILE_PATH_BYTES];
    bool failed = gang->phase != PHASE_RUNNING;
    for (int i = 0; i < gang->n; i++) {
        launch_worker *worker = &gang->workers[i];
        read_rest(&worker->out, gang->console);
        read_rest(&worker->err, gang->console);
        /* What a rank that ended well has left running is meant to run. */
        if (failed && gang->start.settings->program.own_session)
            launch_worker_signal(worker, &gang->start, SIGKILL);
        if ((logs->redirects[i] & ~logs->tees[i] & LAUNCH_STDERR) != 0) {
            launch_logs_file(logs, gang->start.generation, i, "stderr.log", path);
            launch_stream_take_file(&worker->err, path);
        }
    }
    read_start_errors(gang);
    if (gang->cause >= 0)
        choose_cause(gang); /* with what they said last */
}

/* At least one of the ranks ended with this exit code, and the others with it or 0. */
static bool all_ended_with(const launch_gang *gang, int code, bool or_zero)
{
    int n = 0;
    for (int i = 0; i < gang->n; i++) {
        int how = gang->workers[i].wait_status;
        if (gang->workers[i].pid == 0 || !WIFEXITED(how) ||
            (WEXITSTATUS(how) != code && !(or_zero && how == 0)))
            return false;
        n += WEXITSTATUS(how) == code;
    }
    return n > 0;
}

launch_result launch_gang_result(const launch_gang *gang)
{
    bool own = rules_of(gang)->own;
    if (gang->broken || gang->phase == PHASE_GIVEN_UP)
        return LAUNCH_BROKEN;
    if (gang->cause >= 0)
        return LAUNCH_FAILED;
    if ((own || gang->signal != 0) && all_ended_with(gang, EXIT_CODE_PREEMPTED, own))
        return LAUNCH_PREEMPTED;
    if (gang->signal != 0)
        return LAUNCH_SIGNALED;
    return gang->phase == PHASE_RUNNING ? LAUNCH_DONE : LAUNCH_STOPPED;
}
