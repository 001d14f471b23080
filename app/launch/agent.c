#include "app/launch/agent.h"

#include "app/common/exit_codes.h"
#include "app/common/standard_streams.h"
#include "app/common/stop_signals.h"
#include "app/launch/agent_channel.h"
#include "app/launch/agent_store.h"
#include "app/launch/failure_report.h"
#include "app/launch/group_outcome.h"
#include "app/launch/worker_group.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILLED_MS = 5000,  /* how long SIGKILL may take */
    CANCEL_MS = 1000,  /* how long an agent that was told to stop may take to join no more */
    OUTCOME_MS = 3000, /* for node 0's outcome, after the agent was told to stop */
    /* Stop, child, channel, and the console's; the workers' come after them. */
    FIXED_FDS = 3 + OUTPUT_CONSOLE_FDS,
};

typedef struct agent {
    worker_spec *spec;
    output_console console;
    stop_signals signals;
    worker_group group;
    store_server *server;         /* if this node serves it */
    agent_channel *channel;       /* several nodes */
    agent_channel_snapshot nodes; /* what was last heard of them; one node: nothing */
    struct pollfd *polled;
    int64_t started_ns;
    int64_t memory_kills; /* process_failure_memory_was_short */
    uint64_t file_limit;  /* the user's, before it was raised: the workers' */
    bool anything_failed;

    /* Of the attempt. */
    int attempt;
    agent_state state;
    int64_t deadline_ns; /* when the state's time is up; AGENT_RUNNING has none */
    int signal;          /* because of it the agent stops the workers; 0: none */
    int64_t signal_ns;   /* when the latest wish to stop came; 0: none did */
    bool kills_next;     /* the next signal kills the workers */
    bool not_started;    /* not all workers could be started */
} agent;

static status agent_init(agent *self, worker_spec *spec, int64_t started_ns)
{
    *self = (agent){.spec = spec,
                    .started_ns = started_ns,
                    .memory_kills = -1,
                    .file_limit = file_limit_raise()};
    output_console_init(&self->console);
    self->console.own = spec->policy.own;
    (void)process_failure_memory_was_short(&self->memory_kills);
    signal(SIGPIPE, SIG_IGN);
    TRY(stop_signals_take(&spec->policy.signals, &self->signals));
    self->console.stop_fd = self->signals.fd;
    self->polled = calloc((size_t)spec->nproc * 2 + FIXED_FDS, sizeof *self->polled);
    if (self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d workers", spec->nproc);
    return worker_logs_open(&spec->logs, spec->run_id);
}

/* Frees the agent. Returns `code`, or what to exit with instead. */
static int agent_close(agent *self, int code)
{
    bool is_last_thread = agent_channel_destroy(self->channel);
    if (is_last_thread)
        store_server_destroy(self->server);
    if (self->state >= AGENT_SUCCEEDED)
        worker_group_drain_leftovers(&self->group);
    worker_group_destroy(&self->group);
    if (self->attempt > 0 && self->spec->logs.folder[0] != '\0')
        LOG_I("what the failed attempts left: %s", self->spec->logs.folder);
    worker_logs_close(&self->spec->logs, self->anything_failed);
    output_console_flush(&self->console); /* a signal may end that still */
    int stdout_error = output_console_error(&self->console, STDOUT_FILENO);
    if (stdout_error != 0) {
        code = standard_streams_lost(stdout_error, self->spec->stdout_has_result, code);
        output_console_flush(&self->console);
    }
    stop_signals_close(&self->signals);
    free(self->polled);
    if (!is_last_thread)
        return code; /* the console stays for the others' log */
    output_console_close(&self->console);
    free(self);
    return code;
}

static bool has_workers(const agent *self)
{
    return self->state >= AGENT_RUNNING && self->state <= AGENT_KILLING;
}

/* How the attempt ended, now that no worker is left. */
static agent_state how_it_ended(const agent *self)
{
    bool own = self->spec->policy.own;
    if (self->not_started)
        return AGENT_BROKEN;
    if (self->group.cause >= 0)
        return AGENT_FAILED;
    if ((own || self->signal != 0) &&
        worker_group_all_exited_with(&self->group, EXIT_CODE_PREEMPTED, own))
        return AGENT_PREEMPTED;
    if (own && worker_group_some_exited_with(&self->group, EXIT_CODE_DIVERGED))
        return AGENT_DIVERGED;
    if (self->signal != 0)
        return AGENT_SIGNALED;
    return self->state == AGENT_RUNNING ? AGENT_SUCCEEDED : AGENT_STOPPED;
}

static void enter(agent *self, agent_state state, int64_t time_ms)
{
    self->state = state;
    self->deadline_ns = clock_deadline_ns(time_ms);
    self->console.hurried = state != AGENT_RUNNING;
}

static void enter_failing(agent *self)
{
    worker_group_snapshot_ranks(&self->group);
    enter(self, AGENT_FAILING, SHUTDOWN_GRACE_MS);
}

static void enter_stopping(agent *self, int signal, int64_t time_ms)
{
    worker_group_signal(&self->group, signal);
    enter(self, AGENT_STOPPING, time_ms);
}

static void enter_killing(agent *self)
{
    worker_group_signal(&self->group, SIGKILL);
    enter(self, AGENT_KILLING, KILLED_MS);
}

/* By itself, because it was asked for a last checkpoint, or because all ranks ended the run: it
 * leaves no other rank alone. */
static bool ended_well(const agent *self, const worker *w)
{
    if (w->wait_status == 0 || !self->spec->policy.own || !WIFEXITED(w->wait_status))
        return w->wait_status == 0;
    int code = WEXITSTATUS(w->wait_status);
    return code == EXIT_CODE_PREEMPTED || code == EXIT_CODE_DIVERGED;
}

/* The signal that asked it for a checkpoint ended it, or the agent's signal, which it got too. */
static bool ended_instead_of_saving(const agent *self, const worker *w)
{
    return self->state == AGENT_SAVING && WIFSIGNALED(w->wait_status) &&
           (WTERMSIG(w->wait_status) == SIGUSR1 || WTERMSIG(w->wait_status) == self->signal);
}

static void take_end(agent *self, worker *w)
{
    bool did_not_save = ended_instead_of_saving(self, w);
    w->was_stopped = self->state >= AGENT_STOPPING || did_not_save;
    if (did_not_save) /* the others would wait for it in vain */
        enter_stopping(self, SIGTERM, self->spec->policy.signal_ms);
    if (ended_well(self, w) || w->was_stopped)
        return;
    worker_group_note_failure(&self->group, w);
    if (self->state == AGENT_RUNNING && self->channel != NULL)
        agent_channel_tell_trouble(self->channel);
    if (self->state == AGENT_RUNNING || self->state == AGENT_SAVING)
        enter_failing(self);
}

static void take_ends(agent *self)
{
    worker *w;
    while ((w = worker_group_next_ended(&self->group)) != NULL)
        take_end(self, w);
}

static void take_first_signal(agent *self, int signal)
{
    const shutdown_policy *policy = &self->spec->policy;
    worker_group_drop_cause_by(&self->group, signal);
    bool failed = self->group.cause >= 0;
    self->kills_next = true;
    if (!failed)
        self->signal = signal;
    if (self->state == AGENT_RUNNING && !failed && worker_spec_saves_on(self->spec, signal)) {
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

static void take_signal(agent *self, int signal)
{
    int64_t now_ns = clock_now_ns();
    if (self->signal_ns != 0 && stop_signals_are_one(self->signal_ns, now_ns))
        return;
    if (self->state == AGENT_SAVING && signal == SIGHUP)
        return; /* a session that ends sends two, and a service manager one after its SIGTERM */
    self->signal_ns = now_ns;
    if (self->state == AGENT_SAVING) {
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
static void take_signals(agent *self)
{
    int signal;
    while ((signal = stop_signals_next(&self->signals)) != 0) {
        if (self->channel != NULL && signal == self->signals.first)
            agent_channel_tell_stop(self->channel, signal);
        if (!has_workers(self))
            continue;
        take_signal(self, signal);
        if (self->channel != NULL && self->state >= AGENT_STOPPING)
            agent_channel_tell_trouble(self->channel);
    }
}

/* A worker of another node may have failed, or this node is cut off. */
static void take_news(agent *self)
{
    bool was_cut_off = self->nodes.failure != NULL;
    self->nodes = agent_channel_look(self->channel);
    bool cut_off = self->nodes.failure != NULL;
    if (cut_off && !was_cut_off)
        LOG_E("node %d: %s", self->spec->node_rank, self->nodes.failure);
    if (self->state == AGENT_RUNNING && (cut_off || self->nodes.in_trouble))
        enter_failing(self);
}

static void take_deadline(agent *self)
{
    if (self->state == AGENT_RUNNING || !has_workers(self) || !clock_passed(self->deadline_ns))
        return;
    if (self->state <= AGENT_SAVING) {
        enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
    } else if (self->state == AGENT_STOPPING) {
        enter_killing(self);
    } else {
        LOG_E("%d ranks did not end %d s after SIGKILL (a stuck device or disk?)",
              self->group.running, KILLED_MS / 1000);
        self->state = AGENT_BROKEN;
    }
}

/* One wait, and what follows from it. */
static status wait_and_look(agent *self, int wait_ms)
{
    struct pollfd *fds = self->polled;
    int n = 3, channel_fd = self->channel != NULL ? agent_channel_fd(self->channel) : -1;
    fds[0] = (struct pollfd){.fd = self->signals.fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = self->group.child_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = channel_fd, .events = POLLIN}; /* poll() passes over -1 */
    n += output_console_poll(&self->console, fds + n);
    int group_at = n;
    n += worker_group_poll(&self->group, fds + n);
    if (poll(fds, (nfds_t)n, wait_ms) < 0 && errno != EINTR)
        return FAIL(STATUS_IO, "poll: %s", strerror(errno));
    output_console_push(&self->console);
    if (fds[0].revents != 0)
        take_signals(self);
    if (fds[2].revents != 0)
        take_news(self);
    if (fds[1].revents != 0)
        take_ends(self);
    worker_group_read(&self->group, fds + group_at);
    take_deadline(self);
    if (has_workers(self) && self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

/* Several nodes: all agents meet before any starts a worker. *code: what to exit with. */
static status join(agent *self, int port, int *code)
{
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_channel_create(self->spec, self->server, port, &self->channel));
    agent_channel_snapshot nodes = {0};
    int64_t cancel_ns = 0;
    while (!nodes.joined && nodes.failure == NULL && (cancel_ns == 0 || !clock_passed(cancel_ns))) {
        struct pollfd *fds = self->polled;
        fds[0] = (struct pollfd){.fd = self->signals.fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = agent_channel_fd(self->channel), .events = POLLIN};
        int n = 2 + output_console_poll(&self->console, fds + 2);
        int wait_ms = cancel_ns == 0 ? -1 : clock_remaining_ms(cancel_ns);
        if (poll(fds, (nfds_t)n, wait_ms) < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "poll: %s", strerror(errno));
        output_console_push(&self->console);
        if (stop_signals_came(&self->signals) && cancel_ns == 0) {
            agent_channel_cancel_join(self->channel);
            cancel_ns = clock_deadline_ns(CANCEL_MS);
        }
        nodes = agent_channel_look(self->channel);
    }
    int signal = self->signals.first;
    if (!nodes.joined && signal != 0) {
        *code = 128 + signal;
        return FAIL(STATUS_PEER, "SIG%s while the nodes were joining", sigabbrev_np(signal));
    }
    if (!nodes.joined)
        return FAIL(STATUS_PEER, "%s", nodes.failure);
    if (signal != 0) /* too late not to join: no worker is started, and the others hear why */
        agent_channel_tell_stop(self->channel, signal);
    self->spec->node_rank = nodes.node_rank;
    return STATUS_OK;
}

/* Serves or finds the store, meets the other nodes, and makes the worker group. */
static status rendezvous(agent *self, int *code)
{
    worker_spec *spec = self->spec;
    int port = 0;
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_store_open(spec, &self->server, &port));
    if (spec->nnodes > 1)
        TRY(join(self, port, code));
    agent_store_describe(spec, port);
    worker_start start = {.spec = spec,
                          .master_port = port,
                          .serves = self->server != NULL,
                          .started_ns = self->started_ns,
                          .signal_mask = self->signals.before,
                          .file_limit = self->file_limit};
    *code = EXIT_CODE_INTERNAL;
    return worker_group_create(&start, &self->console, &self->group);
}

/* An agent that was told to stop starts no worker, and the attempt is over. */
static status start_attempt(agent *self)
{
    TRY(worker_logs_start(&self->spec->logs, self->attempt, self->spec->nproc));
    self->kills_next = self->not_started = false;
    self->signal_ns = 0;
    if (self->channel != NULL)
        agent_channel_start(self->channel, self->attempt);
    take_signals(self);
    self->signal = self->signals.first;
    enter(self, AGENT_RUNNING, 0);
    worker_group_clear(&self->group, self->attempt);
    if (self->signal == 0 && worker_group_start(&self->group) != STATUS_OK) {
        LOG_E("%s", status_text());
        self->not_started = true;
        enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
        if (self->channel != NULL)
            agent_channel_tell_trouble(self->channel);
    }
    if (self->channel != NULL)
        take_news(self);
    if (self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

/* Starts all workers, and waits and looks until none is left. */
static status run_attempt(agent *self)
{
    TRY(start_attempt(self));
    while (has_workers(self)) {
        bool timed = self->state != AGENT_RUNNING;
        TRY(wait_and_look(self, timed ? clock_remaining_ms(self->deadline_ns) : -1));
    }
    /* What a worker that ended well has left running is meant to run. */
    worker_group_finish(&self->group,
                        self->state == AGENT_SUCCEEDED ? KEEP_LEFTOVERS : KILL_LEFTOVERS);
    return STATUS_OK;
}

/* Alone: node 0 is out of reach, or late after this agent was told to stop. */
static status decide_alone(agent *self, const node_report *own, group_outcome *out)
{
    TRY(group_outcome_make(own, 1, self->spec, self->attempt, out));
    out->again = false;
    if (self->signals.first != own->signal)
        out->code = 128 + self->signals.first;
    else if (self->nodes.failure != NULL && !out->failed)
        out->code = EXIT_CODE_PEER;
    return STATUS_OK;
}

/* One node: it decides. Several: node 0 does, for all. */
static status hear_outcome(agent *self, const node_report *own, group_outcome *out)
{
    int64_t deadline_ns = 0;
    if (self->channel == NULL)
        return group_outcome_make(own, 1, self->spec, self->attempt, out);
    if (self->nodes.failure == NULL)
        agent_channel_tell_report(self->channel, own);
    while (!self->nodes.has_outcome && self->nodes.failure == NULL) {
        int signal = self->signals.first;
        if (deadline_ns == 0 && signal != 0)
            deadline_ns = clock_deadline_ns(OUTCOME_MS);
        if (deadline_ns != 0 && clock_passed(deadline_ns)) {
            /* The others shall not wait for this node in the next attempt, should there be one. */
            agent_channel_start(self->channel, self->attempt + 1);
            agent_channel_tell_report(self->channel,
                                      &(node_report){.state = AGENT_SIGNALED, .signal = signal});
            return decide_alone(self, own, out);
        }
        if (signal != own->signal)
            agent_channel_tell_trouble(self->channel);
        TRY(wait_and_look(self, deadline_ns != 0 ? clock_remaining_ms(deadline_ns) : -1));
    }
    if (!self->nodes.has_outcome)
        return decide_alone(self, own, out);
    *out = agent_channel_take_outcome(self->channel);
    return group_outcome_doubt(own, self->spec, self->attempt, out);
}

/* Runs attempt after attempt until none is to follow. *code: what to exit with. */
static status run_attempts(agent *self, int *code)
{
    *code = EXIT_CODE_INTERNAL;
    for (;; self->attempt++) {
        node_report own;
        group_outcome outcome;
        TRY(run_attempt(self));
        bool memory_killed = process_failure_memory_was_short(&self->memory_kills);
        TRY(node_report_make(&self->group, self->state, self->signals.first, memory_killed, &own));
        status st = hear_outcome(self, &own, &outcome);
        if (st == STATUS_OK)
            failure_report_show(&(failure_report){self->spec, self->attempt, &own, &outcome},
                                &self->console);
        node_report_free(&own);
        TRY(st);
        *code = outcome.code;
        self->anything_failed = self->anything_failed || outcome.failed;
        bool again = outcome.again;
        bool rank_failed = outcome.failed || outcome.code == EXIT_CODE_DIVERGED;
        if (outcome.code != 0 && outcome.code != EXIT_CODE_PREEMPTED && rank_failed &&
            self->spec->policy.torchrun_code)
            *code = 1;
        group_outcome_free(&outcome);
        if (!again)
            return STATUS_OK;
        if (self->channel == NULL)
            store_server_forget(self->server);
    }
}

int agent_run(worker_spec *spec, int64_t started_ns)
{
    int code = EXIT_CODE_INTERNAL;
    agent *self = malloc(sizeof *self);
    if (self == NULL)
        return exit_code_failed(FAIL(STATUS_NO_MEMORY, "a launcher"), code);
    status st = agent_init(self, spec, started_ns);
    if (st == STATUS_OK)
        st = rendezvous(self, &code);
    if (st == STATUS_OK)
        st = run_attempts(self, &code);
    if (st != STATUS_OK) {
        LOG_E("%s", status_text());
        self->console.hurried = true;
    }
    if (st == STATUS_NO_MEMORY)
        code = EXIT_CODE_INTERNAL;
    if (st != STATUS_OK && self->channel != NULL && self->group.workers != NULL)
        agent_channel_tell_report(self->channel, &(node_report){.state = AGENT_BROKEN});
    return agent_close(self, code);
}
