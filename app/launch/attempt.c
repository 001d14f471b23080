#include "app/launch/attempt.h"

#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum {
    KILLED_MS = 5000, /* how long SIGKILL may take */
    PAUSE_MS = 5000,  /* for the ranks to agree on a step, and to leave after it */
    LEAVE_MS = 2000,  /* to leave at once */
    /* Stop, child, channel, rounds, and the console's; the workers' come after them. */
    FIXED_FDS = 4 + OUTPUT_CONSOLE_FDS,
};

status attempt_init(attempt *self, const worker_start *start)
{
    self->polled =
        calloc((size_t)self->spec->nproc * WORKER_GROUP_FDS + FIXED_FDS, sizeof *self->polled);
    if (self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d workers", self->spec->nproc);
    return worker_group_create(start, self->console, &self->group);
}

void attempt_close(attempt *self)
{
    if (self->state >= AGENT_SUCCEEDED)
        worker_group_drain_leftovers(&self->group);
    worker_group_destroy(&self->group);
    free(self->polled);
}

static bool has_workers(const attempt *self)
{
    return self->state >= AGENT_RUNNING && self->state <= AGENT_KILLING;
}

/* How the attempt ended, now that no worker is left. */
static agent_state how_it_ended(const attempt *self)
{
    bool own = self->spec->policy.own, none_waits = !worker_group_some_wait(&self->group);
    bool done = own && none_waits && worker_group_all_exited_with(&self->group, 0, false);
    if (self->not_started)
        return AGENT_BROKEN;
    if (self->group.cause >= 0)
        return AGENT_FAILED;
    if (self->leaves && self->signal == 0 && !done) /* else the run was done before it could end */
        return AGENT_LEFT;
    if ((own || self->signal != 0) &&
        worker_group_all_exited_with(&self->group, EXIT_CODE_PREEMPTED, own))
        return AGENT_PREEMPTED;
    if (own && worker_group_some_exited_with(&self->group, EXIT_CODE_DIVERGED))
        return AGENT_DIVERGED;
    if (self->signal != 0)
        return AGENT_SIGNALED;
    return done || (self->state == AGENT_RUNNING && none_waits) ? AGENT_SUCCEEDED : AGENT_STOPPED;
}

static void enter(attempt *self, agent_state state, int64_t time_ms)
{
    self->state = state;
    self->deadline_ns = clock_deadline_ns(time_ms);
    self->console->hurried = state != AGENT_RUNNING;
}

static void enter_failing(attempt *self)
{
    worker_group_snapshot_ranks(&self->group);
    self->cause_end_ns = 0;
    enter(self, AGENT_FAILING, SHUTDOWN_GRACE_MS);
}

/* All that have failed say that another worker went away. On the only node it is most likely one of
 * those that still run: it is about to end, and why is to be known. */
static bool is_cause_to_come(const attempt *self)
{
    return self->spec->nnodes == 1 && worker_group_only_lost(&self->group);
}

/* A worker that ends meanwhile may be it. Its last lines, which may still be to be read, tell. */
static bool awaits_cause(const attempt *self)
{
    return self->state == AGENT_FAILING && self->cause_end_ns != 0 &&
           !clock_passed(self->cause_end_ns);
}

static void enter_stopping(attempt *self, int signal, int64_t time_ms)
{
    worker_group_signal(&self->group, signal);
    enter(self, AGENT_STOPPING, time_ms);
}

/* Elastic: ranks of ours make no step after the lease's end, as the fence says. Other programs have
 * to end before the service ends the lease, a tenth of it later (docs/internals/elastic.md). */
static int64_t time_to_stop_ms(const attempt *self)
{
    const worker_spec *spec = self->spec;
    bool late = !spec->policy.own && clock_passed(self->news.valid_until_ns);
    return late ? spec->keep_alive_ms * spec->keep_alive_misses / 20 : spec->policy.stop_ms;
}

/* The workers end the round: those of ours at a step that all ranks agree on, or at once if not all
 * of them live. They wait for the next round in their processes if they can, else they leave a
 * checkpoint. */
static void enter_leaving(attempt *self, bool all_live)
{
    const shutdown_policy *policy = &self->spec->policy;
    self->pauses = all_live;
    if (policy->keeps) {
        worker_group_tell(&self->group, all_live ? ELASTIC_PAUSE : ELASTIC_LEAVE);
        enter(self, AGENT_LEAVING, all_live ? PAUSE_MS : LEAVE_MS);
    } else if (policy->listens && all_live) {
        worker_group_ask(&self->group, SIGTERM);
        enter(self, AGENT_LEAVING, policy->save_ms);
    } else {
        enter_stopping(self, SIGTERM, time_to_stop_ms(self));
    }
}

static void enter_killing(attempt *self)
{
    worker_group_signal(&self->group, SIGKILL);
    enter(self, AGENT_KILLING, KILLED_MS);
}

/* By itself, because it was asked for a last checkpoint, or because all ranks ended the run: it
 * leaves no other rank alone. */
static bool ended_well(const attempt *self, const worker *w)
{
    if (w->wait_status == 0 || !self->spec->policy.own || !WIFEXITED(w->wait_status))
        return w->wait_status == 0;
    int code = WEXITSTATUS(w->wait_status);
    return code == EXIT_CODE_PREEMPTED || code == EXIT_CODE_DIVERGED;
}

/* The signal that asked it for a checkpoint ended it, or the agent's signal, which it got too. */
static bool ended_instead_of_saving(const attempt *self, const worker *w)
{
    return self->state == AGENT_SAVING && WIFSIGNALED(w->wait_status) &&
           (WTERMSIG(w->wait_status) == SIGUSR1 || WTERMSIG(w->wait_status) == self->signal);
}

/* Before it stops running. */
static void log_leaving(const attempt *self, const char *why)
{
    if (self->state == AGENT_RUNNING)
        event_log_leaves(self->events, self->number, why);
}

static void take_end(attempt *self, worker *w)
{
    bool did_not_save = ended_instead_of_saving(self, w);
    w->was_stopped = self->state >= AGENT_STOPPING || did_not_save;
    if (did_not_save) { /* the others would wait for it in vain */
        LOG_W("rank %d had nothing to save yet", w->rank);
        enter_stopping(self, SIGTERM, self->spec->policy.signal_ms);
    }
    if (ended_well(self, w) || w->was_stopped)
        return;
    worker_group_note_failure(&self->group, w);
    log_leaving(self, "a rank of this node has failed");
    if (self->state == AGENT_RUNNING && self->channel != NULL)
        agent_channel_tell_trouble(self->channel);
    if (self->state == AGENT_RUNNING || self->state == AGENT_SAVING)
        enter_failing(self);
    else if (awaits_cause(self))
        enter(self, AGENT_FAILING, SHUTDOWN_GRACE_MS);
}

static void take_ends(attempt *self)
{
    worker *w;
    while ((w = worker_group_next_ended(&self->group)) != NULL)
        take_end(self, w);
}

/* A worker that has left its round by itself has seen that others are gone. */
static void take_departures(attempt *self)
{
    if (self->state != AGENT_RUNNING || !worker_group_some_wait(&self->group))
        return;
    log_leaving(self, "a rank of this node has lost others");
    agent_channel_tell_trouble(self->channel);
    enter_failing(self);
}

static void take_first_signal(attempt *self, int signal)
{
    const shutdown_policy *policy = &self->spec->policy;
    worker_group_drop_cause_by(&self->group, signal);
    bool failed = self->group.cause >= 0;
    self->kills_next = true;
    if (!failed)
        self->signal = signal;
    if (self->rounds != NULL && policy->own) {
        enter_leaving(self, true);
    } else if (self->state == AGENT_RUNNING && !failed &&
               worker_spec_saves_on(self->spec, signal)) {
        worker_group_ask(&self->group, signal);
        enter(self, AGENT_SAVING, policy->save_ms);
    } else {
        enter_stopping(self, policy->own ? SIGTERM : signal, policy->signal_ms);
    }
    if (failed)
        return;
    bool waits = self->state == AGENT_SAVING;
    LOG_W("SIG%s: stopping %d rank%s%s%s%s", sigabbrev_np(signal), self->group.running,
          self->group.running == 1 ? "" : "s", waits ? " at the next step" : "",
          waits && policy->saves ? ", with a checkpoint" : "",
          waits && signal != SIGHUP ? "; once more to stop at once" : "");
}

static void take_signal(attempt *self, int signal)
{
    int64_t now_ns = clock_now_ns();
    if (self->signal_ns != 0 && stop_signals_are_one(self->signal_ns, now_ns))
        return;
    if (self->state == AGENT_SAVING && signal == SIGHUP)
        return; /* a session that ends sends two, and a service manager one after its SIGTERM */
    bool first = self->signal_ns == 0;
    self->signal_ns = now_ns;
    if (self->state == AGENT_LEAVING && first) { /* the ranks end the round already */
        self->signal = signal;
        self->kills_next = true;
    } else if (self->state == AGENT_SAVING || self->state == AGENT_LEAVING) {
        enter_stopping(self, SIGTERM, self->spec->policy.signal_ms);
    } else if (self->state >= AGENT_STOPPING) {
        if (self->kills_next)
            enter_killing(self);
        self->kills_next = true;
    } else {
        take_first_signal(self, signal);
    }
}

/* After the first one no attempt follows. */
static void take_signals(attempt *self)
{
    int signal;
    while ((signal = stop_signals_next(self->signals)) != 0) {
        if (self->nodes.joined && signal == self->signals->first)
            agent_channel_tell_stop(self->channel, signal);
        if (!has_workers(self))
            continue;
        take_signal(self, signal);
        if (self->channel != NULL && self->state >= AGENT_STOPPING)
            agent_channel_tell_trouble(self->channel);
    }
}

/* A worker of another node may have failed, or this node is cut off. */
static void take_news(attempt *self)
{
    bool was_cut_off = self->nodes.failure != NULL;
    self->nodes = agent_channel_look(self->channel);
    bool cut_off = self->nodes.failure != NULL;
    if (cut_off && !was_cut_off && self->nodes.joined)
        log_line(self->rounds != NULL ? LOG_WARNING : LOG_ERROR, "node %d: %s",
                 self->spec->node_rank, self->nodes.failure);
    if (self->state != AGENT_RUNNING || (!cut_off && !self->nodes.in_trouble))
        return;
    log_leaving(self, cut_off ? self->nodes.failure : "another node is in trouble");
    enter_failing(self);
}

/* The round may be over. One in which workers fail already ends anyway. */
static void take_round_news(attempt *self)
{
    self->news = round_agent_look(self->rounds);
    if (!has_workers(self) || self->leaves || self->news.phase == RDZV_RUNS ||
        self->news.phase == RDZV_WAITS)
        return;
    self->leaves = true;
    log_leaving(self, self->news.reason);
    LOG_I("round %lld ends: %s", (long long)self->spec->round, self->news.reason);
    if (self->state <= AGENT_FAILING)
        enter_leaving(self, self->state == AGENT_RUNNING && self->news.phase == RDZV_LEAVES &&
                                self->news.ending == ROUND_WELL);
}

/* Elastic: when the lease ends, if that ends the round; INT64_MAX: it does not. The rendezvous' own
 * thread may wait for the service then. */
static int64_t lease_end_ns(const attempt *self)
{
    bool runs = self->rounds != NULL && self->news.phase == RDZV_RUNS;
    return runs ? self->news.valid_until_ns : INT64_MAX;
}

static void take_deadline(attempt *self)
{
    if (self->state == AGENT_RUNNING || !has_workers(self) || !clock_passed(self->deadline_ns))
        return;
    if (self->state == AGENT_FAILING && self->cause_end_ns == 0)
        self->cause_end_ns = clock_deadline_ns(SHUTDOWN_CAUSE_MS);
    if (awaits_cause(self) && is_cause_to_come(self)) {
        self->deadline_ns = self->cause_end_ns;
        return;
    }
    bool may_leave = self->state == AGENT_FAILING || (self->state == AGENT_LEAVING && self->pauses);
    if (may_leave && self->rounds != NULL) {
        enter_leaving(self, false);
    } else if (self->state < AGENT_STOPPING) {
        enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
    } else if (self->state == AGENT_STOPPING) {
        enter_killing(self);
    } else {
        LOG_E("%d ranks did not end %d s after SIGKILL (a stuck device or disk?)",
              self->group.running, KILLED_MS / 1000);
        self->state = AGENT_BROKEN;
    }
}

static void tell_health(const attempt *self)
{
    const char *state = self->state == AGENT_RUNNING ? "runs"
                        : has_workers(self)          ? "stops"
                                                     : "waits";
    const worker_spec *spec = self->spec;
    health_facts facts = {.state = state,
                          .round = self->number,
                          .restarts = spec->restarts,
                          .world_size = spec->world_size,
                          .first_rank = worker_spec_first_rank(spec, spec->node_rank),
                          .nproc = spec->nproc};
    if (self->health == NULL)
        return;
    worker_logs_dumps(&spec->logs, self->number, facts.pages);
    health_check_beat(self->health, &facts);
}

status attempt_wait(attempt *self, int wait_ms)
{
    struct pollfd *fds = self->polled;
    int n = 4, channel_fd = self->channel != NULL ? agent_channel_fd(self->channel) : -1;
    int lease_ms = clock_remaining_ms(lease_end_ns(self));
    if (wait_ms < 0 || wait_ms > lease_ms)
        wait_ms = lease_ms;
    int rounds_fd = self->rounds != NULL ? round_agent_fd(self->rounds) : -1;
    fds[0] = (struct pollfd){.fd = self->signals->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = self->group.child_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = channel_fd, .events = POLLIN}; /* poll() passes over -1 */
    fds[3] = (struct pollfd){.fd = rounds_fd, .events = POLLIN};
    n += output_console_poll(self->console, fds + n);
    int group_at = n;
    n += worker_group_poll(&self->group, fds + n);
    if (poll(fds, (nfds_t)n, health_check_wait_ms(self->health, wait_ms)) < 0 && errno != EINTR)
        return FAIL(STATUS_IO, "poll: %s", strerror(errno));
    tell_health(self);
    output_console_push(self->console);
    if (fds[0].revents != 0)
        take_signals(self);
    if (fds[2].revents != 0)
        take_news(self);
    if (fds[3].revents != 0 || clock_passed(lease_end_ns(self)))
        take_round_news(self);
    if (fds[1].revents != 0)
        take_ends(self);
    worker_group_read(&self->group, fds + group_at);
    take_departures(self);
    take_deadline(self);
    if (has_workers(self) && self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

static void log_workers(const attempt *self, int kept)
{
    const worker_group *group = &self->group;
    pid_t *pids = calloc((size_t)group->n + 1, sizeof *pids);
    for (int i = 0; i < group->n && pids != NULL; i++)
        pids[i] = group->workers[i].pid;
    if (pids != NULL)
        event_log_workers(self->events, self->number, pids, group->n, kept);
    free(pids);
}

/* Of a static job: which nodes there are is known from the start, and their ids are not. */
static void log_beginning(const attempt *self)
{
    const worker_spec *spec = self->spec;
    round_state now = {.round = self->number,
                       .restarts = spec->restarts,
                       .members = calloc((size_t)spec->nnodes, sizeof *now.members),
                       .n = spec->nnodes};
    for (int i = 0; i < now.n && now.members != NULL; i++)
        now.members[i].nproc = spec->nprocs != NULL ? spec->nprocs[i] : spec->nproc;
    if (now.members != NULL)
        event_log_round_begins(self->events, &now, spec->node_rank);
    free(now.members);
}

/* An agent that was told to stop, or whose round is over already, starts no worker, and the attempt
 * is over. */
static status start(attempt *self)
{
    int kept = 0;
    for (int i = 0; i < self->group.n; i++)
        kept += self->group.workers[i].waits;
    TRY(worker_logs_start(&self->spec->logs, self->number, self->spec->nproc));
    self->kills_next = self->not_started = false;
    self->leaves = self->rounds != NULL && self->news.phase != RDZV_RUNS;
    self->signal_ns = 0;
    if (self->channel != NULL)
        agent_channel_start(self->channel, self->number);
    take_signals(self);
    self->signal = self->signals->first;
    enter(self, AGENT_RUNNING, 0);
    worker_group_clear(&self->group, self->number);
    if (self->signal == 0 && !self->leaves && worker_group_start(&self->group) != STATUS_OK) {
        LOG_E("%s", status_text());
        self->not_started = true;
        enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
        if (self->channel != NULL)
            agent_channel_tell_trouble(self->channel);
    }
    if (self->rounds == NULL)
        log_beginning(self);
    log_workers(self, kept);
    if (self->channel != NULL)
        take_news(self);
    if (self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

status attempt_end_waiting(attempt *self)
{
    agent_state ended = self->state;
    worker_group_resume(&self->group);
    if (self->group.running == 0)
        return STATUS_OK;
    enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
    while (has_workers(self))
        TRY(attempt_wait(self, clock_remaining_ms(self->deadline_ns)));
    worker_group_finish(&self->group, KILL_LEFTOVERS);
    self->state = ended;
    return STATUS_OK;
}

status attempt_run(attempt *self)
{
    TRY(start(self));
    while (has_workers(self)) {
        bool timed = self->state != AGENT_RUNNING;
        TRY(attempt_wait(self, timed ? clock_remaining_ms(self->deadline_ns) : -1));
    }
    /* What a worker that ended well has left running is meant to run. */
    worker_group_finish(&self->group,
                        self->state == AGENT_SUCCEEDED ? KEEP_LEFTOVERS : KILL_LEFTOVERS);
    return STATUS_OK;
}
