#include "app/launch/agent.h"

#include "app/exit_codes.h"
#include "app/launch/agent_channel.h"
#include "app/launch/agent_signals.h"
#include "app/launch/agent_store.h"
#include "app/launch/failure_report.h"
#include "app/launch/group_outcome.h"
#include "app/launch/launch_drainer.h"
#include "app/launch/worker_environment.h"
#include "app/launch/worker_group.h"
#include "app/standard_streams.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FARE_WELL_MS = 3000 }; /* for a outcome, after the launcher was told to stop */

typedef struct agent {
    worker_spec *spec;
    agent_console console;
    agent_signals signals;
    worker_group group;
    store_server *server;   /* where this node serves it */
    agent_channel *channel; /* several nodes */
    struct pollfd *polled;
    int attempt;
    int64_t started_ns;
    int64_t memory_kills;
    uint64_t file_limit; /* the user's, before it was raised: the workers' */
    bool cut_off;        /* from the other nodes */
    bool judged;         /* by node 0, this attempt */
    bool anything_failed;
    int stdout_error; /* why not all of the ranks' stdout was passed on; 0 */
} agent;

enum { FIXED_FDS = 5 }; /* stop, child, link, stdout, stderr; the workers' behind them */

static status agent_init(agent *self, worker_spec *spec, int64_t started_ns)
{
    *self = (agent){.spec = spec,
                    .signals = {.stop_fd = -1, .child_fd = -1},
                    .started_ns = started_ns,
                    .memory_kills = process_failure_memory_kills(),
                    .file_limit = file_limit_raise()};
    TRY(agent_signals_take(&spec->policy.signals, &self->signals));
    if (spec->policy.listens)
        agent_signals_hold(&self->signals);
    agent_console_init(&self->console, self->signals.stop_fd);
    self->polled = calloc((size_t)spec->plan.nproc * 2 + FIXED_FDS, sizeof *self->polled);
    if (self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "launcher: %d workers", spec->plan.nproc);
    return worker_logs_open(&spec->logs, spec->plan.run_id);
}

static void agent_close(agent *self)
{
    if (agent_channel_destroy(self->channel))
        store_server_destroy(self->server);
    if (self->group.workers != NULL)
        launch_drainer_start(&self->group);
    worker_group_destroy(&self->group);
    agent_console_flush(&self->console); /* a signal may end that still */
    self->stdout_error = agent_console_error(&self->console, STDOUT_FILENO);
    agent_signals_close(&self->signals);
    if (self->attempt > 0 && self->spec->logs.folder[0] != '\0' &&
        agent_console_is_open(&self->console))
        LOG_I("what the failed attempts left: %s", self->spec->logs.folder);
    worker_logs_close(&self->spec->logs, self->anything_failed);
    agent_console_close(&self->console);
    free(self->polled);
}

/* What a signal means to the workers that run. The launcher keeps it: no attempt follows. */
static void take_signals(agent *self)
{
    int signal;
    while ((signal = agent_signals_next(&self->signals)) != 0) {
        if (self->channel != NULL && signal == self->signals.stopped_by)
            agent_channel_tell_stop(self->channel, signal);
        if (self->group.workers == NULL || worker_group_is_over(&self->group))
            continue;
        worker_group_take_signal(&self->group, signal);
        if (self->channel != NULL && self->group.phase > PHASE_SAVING)
            agent_channel_tell_trouble(self->channel);
    }
}

static void take_events(agent *self)
{
    agent_channel_event event;
    while ((event = agent_channel_next(self->channel)) != CHANNEL_NO_EVENT) {
        if (event == CHANNEL_TROUBLE && self->group.workers != NULL)
            worker_group_stop(&self->group);
        if (event == CHANNEL_OUTCOME)
            self->judged = true;
        if (event == CHANNEL_CUT_OFF) {
            self->cut_off = true;
            LOG_E("node %d: %s", self->spec->plan.node_rank, agent_channel_why(self->channel));
            if (self->group.workers != NULL)
                worker_group_stop(&self->group);
        }
    }
}

/* One wait for whatever comes next, and what follows from it. */
static status turn(agent *self, int wait_ms)
{
    struct pollfd *fds = self->polled;
    bool group = self->group.workers != NULL;
    int n = 2, link_at = 0;
    fds[0] = (struct pollfd){.fd = self->signals.stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = self->signals.child_fd, .events = POLLIN};
    if (self->channel != NULL) {
        link_at = n++;
        fds[link_at] = (struct pollfd){.fd = agent_channel_fd(self->channel), .events = POLLIN};
    }
    n += agent_console_poll(&self->console, fds + n);
    int gang_at = n;
    if (group)
        n += worker_group_poll(&self->group, fds + n);
    if (poll(fds, (nfds_t)n, wait_ms) < 0 && errno != EINTR)
        return FAIL(STATUS_IO, "launcher: poll: %s", strerror(errno));
    agent_console_push(&self->console);
    if (fds[0].revents != 0)
        take_signals(self);
    if (link_at > 0 && fds[link_at].revents != 0)
        take_events(self);
    if (!group)
        return STATUS_OK;
    if (fds[1].revents != 0) {
        agent_signals_drain_children(&self->signals);
        group_phase before = self->group.phase;
        worker_group_reap(&self->group);
        if (self->channel != NULL && before == PHASE_RUNNING && self->group.phase == PHASE_GRACE)
            agent_channel_tell_trouble(self->channel);
    }
    worker_group_read(&self->group, fds + gang_at);
    worker_group_pass_deadline(&self->group);
    return STATUS_OK;
}

/* Several nodes: all launchers meet before any starts a worker. *code: what to exit with. */
static status join(agent *self, int port, int *code)
{
    launch_plan *plan = &self->spec->plan;
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_channel_create(self->spec, self->server, port, &self->channel));
    agent_channel_event event = CHANNEL_NO_EVENT;
    while (event == CHANNEL_NO_EVENT) {
        struct pollfd fds[2] = {{.fd = self->signals.stop_fd, .events = POLLIN},
                                {.fd = agent_channel_fd(self->channel), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "launcher: poll: %s", strerror(errno));
        int signal = agent_signals_next(&self->signals);
        if (signal != 0) {
            *code = 128 + signal;
            return FAIL(STATUS_PEER, "SIG%s while the nodes were joining", sigabbrev_np(signal));
        }
        event = agent_channel_next(self->channel);
    }
    if (event == CHANNEL_NOT_JOINED)
        return FAIL(STATUS_PEER, "%s", agent_channel_why(self->channel));
    plan->node_rank = agent_channel_node(self->channel);
    return STATUS_OK;
}

static status open_job(agent *self, int *code)
{
    worker_spec *spec = self->spec;
    int port = 0, threads = worker_environment_threads(spec);
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_store_open(spec, &self->server, &port));
    if (spec->plan.nnodes > 1)
        TRY(join(self, port, code));
    agent_store_describe(spec, port);
    if (!spec->policy.own && threads > 0)
        LOG_I("OMP_NUM_THREADS=%d for each of %d ranks (the cores shared out; set it yourself for "
              "another number)",
              threads, spec->plan.nproc);
    worker_start start = {.spec = spec,
                          .master_port = port,
                          .started_ns = self->started_ns,
                          .signal_mask = self->signals.mask,
                          .file_limit = self->file_limit,
                          .log_tty = isatty(STDERR_FILENO) == 1};
    *code = EXIT_CODE_INTERNAL;
    return worker_group_create(&start, &self->console, &self->group);
}

/* Starts a attempt and returns when no worker of it is left. A launcher that was told to stop
 * starts none, and says so. */
static status run_attempt(agent *self)
{
    const worker_spec *spec = self->spec;
    TRY(worker_logs_start(&spec->logs, self->attempt, spec->plan.nproc));
    self->judged = false;
    if (self->channel != NULL)
        agent_channel_start(self->channel, self->attempt);
    take_signals(self);
    status st = worker_group_start(&self->group, self->attempt, self->signals.stopped_by);
    if (st != STATUS_OK)
        LOG_E("%s", status_text());
    if (st != STATUS_OK && self->channel != NULL)
        agent_channel_tell_trouble(self->channel);
    st = STATUS_OK;
    while (!worker_group_is_over(&self->group) && st == STATUS_OK)
        st = turn(self, worker_group_wait_ms(&self->group));
    worker_group_finish(&self->group);
    return st;
}

/* The others shall not wait for this node in the next attempt, should there be one. */
static void leave(agent *self, const node_report *own)
{
    agent_channel_start(self->channel, self->attempt + 1);
    agent_channel_tell_report(self->channel, own);
}

/* Node 0 judges; where it cannot be reached, or the launcher was told to stop and it takes too
 * long, this node does so by what it knows itself. */
static status hear_outcome(agent *self, const node_report *own, group_outcome *out)
{
    int64_t deadline_ns = 0;
    bool waits = self->channel != NULL && !self->cut_off;
    if (waits)
        agent_channel_tell_report(self->channel, own);
    while (waits && !self->judged && !self->cut_off) {
        if (deadline_ns == 0 && self->signals.stopped_by != 0)
            deadline_ns = clock_deadline_ns(FARE_WELL_MS);
        if (deadline_ns != 0 && clock_passed(deadline_ns)) {
            leave(self,
                  &(node_report){.result = GROUP_SIGNALED, .signal = self->signals.stopped_by});
            break;
        }
        if (self->signals.stopped_by != own->signal)
            agent_channel_tell_trouble(self->channel);
        TRY(turn(self, deadline_ns != 0 ? clock_remaining_ms(deadline_ns) : -1));
    }
    if (self->judged) {
        *out = agent_channel_outcome(self->channel);
        return group_outcome_doubt(own, self->spec, self->attempt, out);
    }
    TRY(group_outcome_make(own, 1, self->spec, self->attempt, out));
    if (self->channel == NULL)
        return STATUS_OK;
    out->again = false; /* not alone */
    if (self->signals.stopped_by != own->signal)
        out->code = 128 + self->signals.stopped_by;
    else if (self->cut_off && !out->failed)
        out->code = EXIT_CODE_PEER;
    return STATUS_OK;
}

/* Of a rank of this node its own record is believed, not what came back through the store. */
static void report_cause(agent *self, const node_report *own, const group_outcome *outcome)
{
    const worker_spec *spec = self->spec;
    char line[FAILURE_HOST_BYTES + 320], *text = NULL;
    bool here = own->result == GROUP_FAILED && own->cause.rank == outcome->cause.rank &&
                outcome->cause.node == spec->plan.node_rank;
    const process_failure *cause = here ? &own->cause : &outcome->cause;
    failure_report report = {.cause = cause,
                             .policy = &spec->policy,
                             .restart = outcome->again ? self->attempt + 1 : 0,
                             .max_restarts = spec->plan.max_restarts,
                             .elsewhere = !here,
                             .hang = cause->weight < CAUSE_OWN ? outcome->notes : ""};
    if (here)
        process_failure_write_error_file(cause);
    if (!here && spec->plan.node_rank != 0) {
        failure_report_line(&report, line, sizeof line);
        agent_console_say(&self->console, "%s", line);
    } else if (failure_report_create(&report, &text) == STATUS_OK) {
        agent_console_write(&self->console, STDERR_FILENO, text, strlen(text));
    } else {
        LOG_E("rank %d failed; %s", cause->rank, status_text());
    }
    free(text);
}

static void report(agent *self, const node_report *own, const group_outcome *outcome)
{
    const launch_plan *plan = &self->spec->plan;
    self->anything_failed = self->anything_failed || outcome->failed;
    if (outcome->failed) {
        report_cause(self, own, outcome);
        if (outcome->text[0] != '\0')
            agent_console_say(&self->console, "error: no restart: %s\n", outcome->text);
        return;
    }
    if (outcome->text[0] != '\0' && outcome->told_by != plan->node_rank)
        agent_console_say(&self->console, "error: %s\n", outcome->text);
}

/* Runs attempt after attempt. *code: what to exit with. */
static status run_job(agent *self, int *code)
{
    *code = EXIT_CODE_INTERNAL;
    for (;; self->attempt++) {
        node_report own;
        group_outcome outcome;
        TRY(run_attempt(self));
        int64_t kills = process_failure_memory_kills();
        bool memory_killed = self->memory_kills >= 0 && kills > self->memory_kills;
        self->memory_kills = kills;
        TRY(node_report_make(&self->group, self->signals.stopped_by, memory_killed, &own));
        status st = hear_outcome(self, &own, &outcome);
        if (st == STATUS_OK)
            report(self, &own, &outcome);
        node_report_free(&own);
        TRY(st);
        *code = outcome.code;
        bool again = outcome.again;
        if (outcome.code != 0 && outcome.code != EXIT_CODE_PREEMPTED && outcome.failed &&
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
    agent self;
    int code = EXIT_CODE_INTERNAL;
    status st = agent_init(&self, spec, started_ns);
    if (st == STATUS_OK)
        st = open_job(&self, &code);
    if (st == STATUS_OK)
        st = run_job(&self, &code);
    if (st != STATUS_OK)
        LOG_E("%s", status_text());
    if (st == STATUS_NO_MEMORY)
        code = EXIT_CODE_INTERNAL;
    if (st != STATUS_OK && self.channel != NULL && self.group.workers != NULL)
        agent_channel_tell_report(self.channel, &(node_report){.result = GROUP_BROKEN});
    agent_close(&self);
    return self.stdout_error == 0
               ? code
               : standard_streams_lost(self.stdout_error, spec->stdout_has_result, code);
}
