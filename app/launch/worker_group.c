#include "app/launch/worker_group.h"

#include "app/exit_codes.h"
#include "app/launch/launch_hang.h"
#include "app/launch/process_failure.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLED_MS = 5000, MAX_ROUNDS = 64 };

status worker_group_create(const worker_start *start, agent_console *console, worker_group *out)
{
    int n = start->spec->plan.nproc;
    int fds[2];
    *out = (worker_group){.start = *start, .error_fd = -1, .console = console, .cause = -1};
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "launcher: pipe: %s", strerror(errno));
    out->error_fd = fds[0];
    out->start.error_fd = fds[1];
    out->start.reaper.fd = -1;
    if (start->spec->program.own_session)
        TRY(orphan_reaper_start(n, &out->start.reaper));
    out->workers = calloc((size_t)n, sizeof *out->workers);
    if (out->workers == NULL)
        return FAIL(STATUS_NO_MEMORY, "launcher: %d workers", n);
    out->n = n;
    for (int i = 0; i < n; i++) {
        worker_output_init(&out->workers[i].out);
        worker_output_init(&out->workers[i].err);
    }
    return STATUS_OK;
}

static void close_workers(worker_group *group)
{
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        if (w->pid > 0 && !w->running && !w->reaped)
            orphan_reaper_forget(&group->start.reaper, w->pid);
        worker_close(w, group->console);
    }
}

void worker_group_destroy(worker_group *group)
{
    if (group->workers == NULL)
        return;
    close_workers(group);
    free(group->sights);
    free(group->workers);
    orphan_reaper_close(&group->start.reaper);
    close(group->error_fd);
    close(group->start.error_fd);
    *group = (worker_group){0};
}

static void enter(worker_group *group, group_phase phase, int64_t phase_ms)
{
    group->phase = phase;
    group->deadline_ns = clock_deadline_ns(phase_ms);
    group->console->hurried = phase != PHASE_RUNNING;
}

static void signal_all(worker_group *group, int signal, group_phase phase, int64_t phase_ms)
{
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running)
            worker_signal(&group->workers[i], &group->start, signal);
    enter(group, phase, phase_ms);
}

static const shutdown_policy *rules_of(const worker_group *group)
{
    return &group->start.spec->policy;
}

status worker_group_start(worker_group *group, int attempt, int stopped_by)
{
    const launch_plan *plan = &group->start.spec->plan;
    status st = STATUS_OK;
    close_workers(group);
    free(group->sights);
    group->sights = NULL;
    group->start.attempt = attempt;
    group->running = group->n_failed = 0;
    group->cause = -1;
    group->signal = stopped_by;
    group->phase = PHASE_RUNNING;
    group->console->hurried = group->hurried = false;
    for (int i = 0; i < group->n && stopped_by == 0 && st == STATUS_OK; i++) {
        worker *w = &group->workers[i];
        *w = (worker){.local_rank = i, .rank = plan->node_rank * plan->nproc + i};
        st = worker_launch(w, &group->start);
        group->running += w->running;
        if (st != STATUS_OK)
            st = status_context(st, "%d of %d ranks were started", i, group->n);
    }
    group->broken = st != STATUS_OK;
    if (group->broken)
        signal_all(group, SIGTERM, PHASE_STOPPING, rules_of(group)->stop_ms);
    return st;
}

bool worker_group_is_over(const worker_group *group)
{
    return group->running == 0 || group->phase == PHASE_GIVEN_UP;
}

/* What the ranks note of themselves is looked at before the first of them is stopped. */
static void enter_grace(worker_group *group)
{
    if (group->sights == NULL)
        group->sights = launch_hang_look(group);
    enter(group, PHASE_GRACE, SHUTDOWN_GRACE_MS);
}

void worker_group_stop(worker_group *group)
{
    if (group->phase == PHASE_RUNNING)
        enter_grace(group);
}

/* The worker that failed first, of those that tell most. */
static void choose_cause(worker_group *group)
{
    int chosen = -1;
    cause_weight best = CAUSE_LOST;
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (w->failed_as <= 0)
            continue;
        cause_weight weight = process_failure_weigh(w);
        if (chosen < 0 || weight > best ||
            (weight == best && w->failed_as < group->workers[chosen].failed_as)) {
            chosen = i;
            best = weight;
        }
    }
    group->cause = chosen;
}

/* Ended as it should: by itself, or because it was asked for a last checkpoint. */
static bool ended_well(const worker_group *group, int wait_status)
{
    return wait_status == 0 || (rules_of(group)->own && WIFEXITED(wait_status) &&
                                WEXITSTATUS(wait_status) == EXIT_CODE_PREEMPTED);
}

static void note_end(worker_group *group, int index)
{
    worker *w = &group->workers[index];
    int how = w->wait_status;
    /* One that got the launcher's signal too, and did not listen. */
    bool asked = group->phase == PHASE_SAVING && WIFSIGNALED(how) &&
                 (WTERMSIG(how) == SIGUSR1 || WTERMSIG(how) == group->signal);
    w->was_stopped = group->phase >= PHASE_STOPPING || asked;
    group->running--;
    if (asked) /* and the others would wait for it */
        signal_all(group, SIGTERM, PHASE_STOPPING, rules_of(group)->signal_ms);
    if (ended_well(group, w->wait_status) || w->was_stopped)
        return;
    w->failed_as = ++group->n_failed;
    choose_cause(group);
    if (group->phase == PHASE_RUNNING || group->phase == PHASE_SAVING)
        enter_grace(group);
}

void worker_group_reap(worker_group *group)
{
    for (int i = 0; i < group->n; i++)
        if (group->workers[i].running && worker_has_ended(&group->workers[i]))
            note_end(group, i);
}

/* Sent to the whole process group, it may have ended a worker before it came to the launcher. */
static void forgive(worker_group *group, int signal)
{
    if (group->cause < 0)
        return;
    int how = group->workers[group->cause].wait_status;
    if (!WIFSIGNALED(how) || WTERMSIG(how) != signal)
        return;
    for (int i = 0; i < group->n; i++)
        group->workers[i].failed_as = 0;
    group->cause = -1;
}

void worker_group_take_signal(worker_group *group, int signal)
{
    const shutdown_policy *policy = rules_of(group);
    if (worker_group_is_over(group))
        return;
    if (group->phase == PHASE_SAVING) {
        signal_all(group, SIGTERM, PHASE_STOPPING, policy->signal_ms);
        return;
    }
    if (group->phase >= PHASE_STOPPING) {
        if (group->signal != 0 || group->hurried)
            signal_all(group, SIGKILL, PHASE_KILLED, KILLED_MS);
        group->hurried = true;
        return;
    }
    forgive(group, signal);
    bool failed = group->cause >= 0;
    bool saves = shutdown_policy_saves(policy, signal) && !failed;
    if (failed)
        group->hurried = true;
    else
        group->signal = signal;
    if (saves && group->phase == PHASE_RUNNING)
        signal_all(group, SIGUSR1, PHASE_SAVING, policy->save_ms);
    else
        signal_all(group, policy->own ? SIGTERM : signal, PHASE_STOPPING, policy->signal_ms);
    if (failed)
        return;
    agent_console_say(group->console, "warning: SIG%s: stopping %d rank%s%s\n",
                      sigabbrev_np(signal), group->running, group->running == 1 ? "" : "s",
                      group->phase == PHASE_SAVING
                          ? " at the next step, with a checkpoint; once more to stop at once"
                          : "");
}

/* Streams 2 * i and 2 * i + 1 are worker i's. */
static worker_output *stream_of(const worker_group *group, int index)
{
    worker *w = &group->workers[index / 2];
    return index % 2 == 0 ? &w->out : &w->err;
}

int worker_group_poll(worker_group *group, struct pollfd *out)
{
    int n = 0;
    for (int i = 0; i < 2 * group->n; i++) {
        worker_output *output = stream_of(group, i);
        output->polled = output->fd >= 0 && !agent_console_is_full(group->console, output->target);
        if (output->polled)
            out[n++] = (struct pollfd){.fd = output->fd, .events = POLLIN};
    }
    return n;
}

int worker_group_wait_ms(const worker_group *group)
{
    return group->phase == PHASE_RUNNING ? -1 : clock_remaining_ms(group->deadline_ns);
}

void worker_group_read(worker_group *group, const struct pollfd *polled)
{
    for (int i = 0; i < 2 * group->n; i++) {
        worker_output *output = stream_of(group, i);
        if (output->polled && polled++->revents != 0)
            worker_output_read(output, group->console);
    }
}

void worker_group_pass_deadline(worker_group *group)
{
    if (group->phase == PHASE_RUNNING || worker_group_is_over(group) ||
        !clock_passed(group->deadline_ns))
        return;
    if (group->phase <= PHASE_SAVING) {
        signal_all(group, SIGTERM, PHASE_STOPPING, rules_of(group)->stop_ms);
    } else if (group->phase == PHASE_STOPPING) {
        signal_all(group, SIGKILL, PHASE_KILLED, KILLED_MS);
    } else {
        agent_console_say(group->console,
                          "error: %d ranks did not end %d s after SIGKILL (a stuck device or "
                          "disk?)\n",
                          group->running, KILLED_MS / 1000);
        group->phase = PHASE_GIVEN_UP;
    }
}

static void read_start_errors(worker_group *group)
{
    worker_start_error error;
    while (read(group->error_fd, &error, sizeof error) == (ssize_t)sizeof error)
        if (error.local_rank >= 0 && error.local_rank < group->n)
            group->workers[error.local_rank].start_errno = error.error;
}

/* What a worker has left in its pipe; not all that others may add for ever. */
static void read_rest(worker_output *output, agent_console *console)
{
    for (int i = 0; i < MAX_ROUNDS && worker_output_read(output, console); i++)
        agent_console_flush(console);
}

void worker_group_finish(worker_group *group)
{
    const worker_logs *logs = &group->start.spec->logs;
    char path[FILE_PATH_BYTES];
    bool failed = group->phase != PHASE_RUNNING;
    for (int i = 0; i < group->n; i++) {
        worker *w = &group->workers[i];
        read_rest(&w->out, group->console);
        read_rest(&w->err, group->console);
        /* What a rank that ended well has left running is meant to run. */
        if (failed && group->start.spec->program.own_session)
            worker_signal(w, &group->start, SIGKILL);
        if ((logs->redirects[i] & ~logs->tees[i] & LOGS_STDERR) != 0) {
            worker_logs_file(logs, group->start.attempt, i, "stderr.log", path);
            worker_output_take_file(&w->err, path);
        }
    }
    read_start_errors(group);
    if (group->cause >= 0)
        choose_cause(group); /* with what they said last */
}

/* At least one of the ranks ended with this exit code, and the others with it or 0. */
static bool all_ended_with(const worker_group *group, int code, bool or_zero)
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

group_result worker_group_result(const worker_group *group)
{
    bool own = rules_of(group)->own;
    if (group->broken || group->phase == PHASE_GIVEN_UP)
        return GROUP_BROKEN;
    if (group->cause >= 0)
        return GROUP_FAILED;
    if ((own || group->signal != 0) && all_ended_with(group, EXIT_CODE_PREEMPTED, own))
        return GROUP_PREEMPTED;
    if (group->signal != 0)
        return GROUP_SIGNALED;
    return group->phase == PHASE_RUNNING ? GROUP_SUCCEEDED : GROUP_STOPPED;
}
