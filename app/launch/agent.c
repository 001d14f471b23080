#include "app/launch/agent.h"

#include "app/common/exit_codes.h"
#include "app/common/standard_streams.h"
#include "app/launch/agent_rendezvous.h"
#include "app/launch/agent_store.h"
#include "app/launch/attempt.h"
#include "app/launch/failure_report.h"
#include "app/launch/node_count.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CANCEL_MS = 1000,  /* how long an agent that was told to stop may take to join no more */
    ROUNDS_FDS = 32,   /* the store, the rendezvous, the channel and a rank, with room */
    OUTCOME_MS = 3000, /* for node 0's outcome, after the agent was told to stop */
};

typedef struct agent {
    worker_spec *spec;
    output_console console;
    stop_signals signals;
    store_server *server; /* if this node serves it; elastic: each serves one */
    attempt attempt;      /* the latest one */
    bool has_lost_thread; /* a channel hangs, and was left to itself */
    int64_t unmet_ns;     /* elastic: since when no round has begun in which it was; 0: one has */
    int64_t memory_kills; /* process_failure_memory_was_short */
    bool anything_failed;
    bool unfinished; /* elastic: this node's ranks had not ended well when they left a round */
    char id[ROUND_ID_BYTES];
} agent;

static status agent_init(agent *self, worker_spec *spec, int64_t started_ns)
{
    worker_start start = {.spec = spec, .started_ns = started_ns, .file_limit = file_limit_raise()};
    *self = (agent){.spec = spec, .memory_kills = -1};
    self->attempt = (attempt){.spec = spec, .console = &self->console, .signals = &self->signals};
    output_console_init(&self->console);
    self->console.own = spec->policy.own;
    (void)process_failure_memory_was_short(&self->memory_kills);
    signal(SIGPIPE, SIG_IGN);
    TRY(stop_signals_take(&spec->policy.signals, &self->signals));
    self->console.stop_fd = self->signals.fd;
    start.signal_mask = self->signals.before;
    TRY(worker_logs_open(&spec->logs, spec->run_id));
    return attempt_init(&self->attempt, &start);
}

/* The channel is done with. If its thread hangs it is left to itself. */
static void close_channel(agent *self)
{
    bool ended = agent_channel_destroy(self->attempt.channel);
    self->has_lost_thread = self->has_lost_thread || !ended;
    self->attempt.channel = NULL;
    self->attempt.nodes = (agent_channel_snapshot){0};
}

/* Frees the agent. Returns `code`, or what to exit with instead. */
static int agent_close(agent *self, int code)
{
    close_channel(self);
    bool is_last_thread = !self->has_lost_thread;
    if (attempt_end_waiting(&self->attempt) != STATUS_OK)
        LOG_E("%s", status_text());
    round_agent_destroy(self->attempt.rounds);
    if (is_last_thread)
        store_server_destroy(self->server);
    health_check_close(self->attempt.health);
    attempt_close(&self->attempt);
    if (self->spec->restarts > 0 && self->spec->logs.folder[0] != '\0')
        LOG_I("what the failed attempts left: %s", self->spec->logs.folder);
    worker_logs_close(&self->spec->logs, self->anything_failed);
    output_console_flush(&self->console); /* a signal may end that still */
    int stdout_error = output_console_error(&self->console, STDOUT_FILENO);
    if (stdout_error != 0) {
        code = standard_streams_lost(stdout_error, self->spec->stdout_has_result, code);
        output_console_flush(&self->console);
    }
    event_log_ends(self->attempt.events, self->spec->round, code);
    event_log_close(self->attempt.events);
    stop_signals_close(&self->signals);
    if (!is_last_thread)
        return code; /* the console stays for the others' log */
    output_console_close(&self->console);
    free(self);
    return code;
}

/* Waits until the nodes have met, or will not: then the channel's `failure` says why, or the agent
 * was told to stop. */
static status await_nodes(agent *self)
{
    attempt *current = &self->attempt;
    const agent_channel_snapshot *nodes = &current->nodes;
    int64_t cancel_ns = 0;
    while (!nodes->joined && nodes->failure == NULL &&
           (cancel_ns == 0 || !clock_passed(cancel_ns))) {
        bool over = current->rounds != NULL && current->news.phase != RDZV_RUNS;
        if ((over || self->signals.first != 0) && cancel_ns == 0) {
            agent_channel_cancel_join(current->channel);
            cancel_ns = clock_deadline_ns(CANCEL_MS);
        }
        TRY(attempt_wait(current, cancel_ns == 0 ? -1 : clock_remaining_ms(cancel_ns)));
    }
    if (nodes->joined && self->signals.first != 0)
        /* too late not to join: no worker is started, and the others hear why */
        agent_channel_tell_stop(current->channel, self->signals.first);
    return STATUS_OK;
}

/* `how` is "the nodes were joining". *code: what to exit with. */
static status stopped_while(const agent *self, const char *how, int *code)
{
    *code = 128 + self->signals.first;
    return FAIL(STATUS_PEER, "SIG%s while %s", sigabbrev_np(self->signals.first), how);
}

/* Several nodes: all agents meet before any starts a worker. *code: what to exit with. */
static status join(agent *self, int *code)
{
    attempt *current = &self->attempt;
    TRY(agent_channel_create(self->spec, self->server, &current->channel));
    TRY(await_nodes(self));
    if (!current->nodes.joined)
        return self->signals.first != 0 ? stopped_while(self, "the nodes were joining", code)
                                        : FAIL(STATUS_PEER, "%s", current->nodes.failure);
    if (self->spec->counts_nodes) {
        node_count_apply(self->spec, current->nodes.nnodes);
        current->group.n = self->spec->nproc;
    }
    return STATUS_OK;
}

/* Serves or finds the store, and meets the other nodes. */
static status rendezvous(agent *self, int *code)
{
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_store_open(self->spec, &self->server));
    if (self->spec->nnodes > 1)
        TRY(join(self, code));
    agent_store_describe(self->spec);
    return STATUS_OK;
}

/* Alone: node 0 is out of reach, or late after this agent was told to stop. */
static status decide_alone(agent *self, const node_report *own, group_outcome *out)
{
    TRY(group_outcome_make(own, 1, self->spec, out));
    out->again = false;
    bool for_others = own->state == AGENT_STOPPED && own->signal != 0;
    if (self->signals.first != own->signal || for_others)
        out->code = 128 + self->signals.first;
    else if (self->attempt.nodes.failure != NULL && !out->failed)
        out->code = EXIT_CODE_PEER;
    return STATUS_OK;
}

/* One node: it decides. Several: node 0 does, for all. */
static status hear_outcome(agent *self, const node_report *own, group_outcome *out)
{
    attempt *current = &self->attempt;
    int64_t deadline_ns = 0;
    if (current->channel == NULL)
        return group_outcome_make(own, 1, self->spec, out);
    if (current->nodes.failure == NULL)
        agent_channel_tell_report(current->channel, own);
    while (!current->nodes.has_outcome && current->nodes.failure == NULL) {
        int signal = self->signals.first;
        if (deadline_ns == 0 && signal != 0)
            deadline_ns = clock_deadline_ns(OUTCOME_MS);
        if (deadline_ns != 0 && clock_passed(deadline_ns)) {
            /* The others shall not wait for this node in the next attempt, should there be one. */
            agent_channel_start(current->channel, current->number + 1);
            agent_channel_tell_report(current->channel,
                                      &(node_report){.state = AGENT_SIGNALED, .signal = signal});
            return decide_alone(self, own, out);
        }
        if (signal != own->signal)
            agent_channel_tell_trouble(current->channel);
        TRY(attempt_wait(current, deadline_ns != 0 ? clock_remaining_ms(deadline_ns) : -1));
    }
    if (!current->nodes.has_outcome)
        return decide_alone(self, own, out);
    *out = agent_channel_take_outcome(current->channel);
    return group_outcome_doubt(own, self->spec, out);
}

/* What the attempt was, and what comes of it, which the caller frees. *code: what to exit with. */
static status conclude(agent *self, int *code, group_outcome *out)
{
    node_report own;
    const attempt *current = &self->attempt;
    bool memory_killed = process_failure_memory_was_short(&self->memory_kills);
    TRY(node_report_make(&current->group, current->state, self->signals.first, memory_killed,
                         &own));
    self->unfinished = own.state != AGENT_SUCCEEDED;
    status st = hear_outcome(self, &own, out);
    if (st == STATUS_OK)
        failure_report_show(&(failure_report){self->spec, &own, out}, &self->console);
    node_report_free(&own);
    TRY(st);
    *code = out->code;
    self->anything_failed = self->anything_failed || out->failed;
    bool rank_failed = out->failed || out->code == EXIT_CODE_DIVERGED;
    if (out->code != 0 && out->code != EXIT_CODE_PREEMPTED && rank_failed &&
        self->spec->policy.torchrun_code)
        *code = 1;
    return STATUS_OK;
}

/* Runs attempt after attempt until none is to follow. *code: what to exit with. */
static status run_attempts(agent *self, int *code)
{
    for (;; self->attempt.number++, self->spec->restarts++) {
        group_outcome outcome;
        *code = EXIT_CODE_INTERNAL;
        TRY(attempt_run(&self->attempt));
        TRY(conclude(self, code, &outcome));
        bool again = outcome.again;
        group_outcome_free(&outcome);
        if (!again)
            return STATUS_OK;
        if (self->attempt.channel == NULL)
            store_server_forget(self->server);
    }
}

static status fail_unmet(const agent *self, const char *why)
{
    return FAIL(STATUS_TIMEOUT, "no round has begun within %.3g s (--join-timeout): %s",
                (double)self->spec->join_ms * 1e-3, why);
}

/* Elastic: waits for a round that this node is in. *over: there will be none, and *code is what to
 * exit with. */
static status await_round(agent *self, bool *over, int *code)
{
    attempt *current = &self->attempt;
    *code = EXIT_CODE_RENDEZVOUS;
    *over = false;
    event_log_waits(current->events, self->spec->round);
    current->news = round_agent_look(current->rounds);
    while (current->news.phase == RDZV_WAITS && self->signals.first == 0) {
        int64_t end_ns = self->unmet_ns + self->spec->join_ms * 1000000;
        TRY(attempt_wait(current, self->unmet_ns != 0 ? clock_remaining_ms(end_ns) : -1));
        if (self->unmet_ns != 0 && clock_passed(end_ns))
            return fail_unmet(self, "the others did not meet this node, and go on without it");
    }
    if (self->signals.first != 0)
        return stopped_while(self, "this node was waiting for the others", code);
    if (current->news.phase == RDZV_FAILED)
        return FAIL(current->news.failure, "%s", current->news.reason);
    if (current->news.phase != RDZV_CLOSED)
        return STATUS_OK;
    *over = true;
    bool well = current->news.ending == ROUND_WELL;
    if (well && self->unfinished) {
        *code = EXIT_CODE_PEER;
        return FAIL(STATUS_PEER,
                    "the job '%s' was closed (%s), but this node's ranks had not ended well in "
                    "round %lld, so that is not believed: did the others end without this node, or "
                    "who else reaches the rendezvous?",
                    self->spec->run_id, current->news.reason, (long long)self->spec->round);
    }
    *code = well ? EXIT_SUCCESS : EXIT_CODE_RENDEZVOUS;
    log_line(well ? LOG_INFO : LOG_ERROR, "the job '%s' has ended: %s%s", self->spec->run_id,
             current->news.reason,
             self->spec->round == 0 ? "; a new job takes another --rdzv-id on all nodes" : "");
    return STATUS_OK;
}

/* Elastic: notes since when no round has begun. Whether that is too long. */
static bool is_too_late(agent *self, bool unmet)
{
    int64_t now_ns = clock_now_ns();
    if (!unmet || self->unmet_ns == 0)
        self->unmet_ns = unmet ? now_ns : 0;
    return unmet && now_ns - self->unmet_ns > self->spec->join_ms * 1000000;
}

/* Elastic: of the round that this node leaves. */
static void note_lost(agent *self, const group_outcome *outcome)
{
    attempt *current = &self->attempt;
    for (int i = 0; i < outcome->n_lost; i++)
        round_agent_note_lost(current->rounds, outcome->lost[i]);
    for (int node = 0; current->nodes.lost != NULL && node < self->spec->nnodes; node++)
        if (current->nodes.lost[node])
            round_agent_note_lost(current->rounds, node);
}

/* Elastic: the nodes of the round have not met. *again: this node takes part in the next one. */
static status give_round_up(agent *self, bool *again, int *code)
{
    attempt *current = &self->attempt;
    const agent_channel_snapshot *nodes = &current->nodes;
    bool over = current->news.phase != RDZV_RUNS;
    const char *why = over || nodes->failure == NULL ? current->news.reason : nodes->failure;
    *code = EXIT_CODE_RENDEZVOUS;
    if (self->signals.first != 0)
        return stopped_while(self, "the nodes were joining", code);
    if (nodes->unfit) {
        *code = EXIT_CODE_USAGE;
        return FAIL(STATUS_INVALID, "%s", nodes->failure);
    }
    if (is_too_late(self, true))
        return fail_unmet(self, why);
    LOG_W("round %lld does not begin: %s", (long long)self->spec->round, why);
    note_lost(self, &(group_outcome){0});
    close_channel(self);
    store_server_forget(self->server);
    round_agent_left(current->rounds, ROUND_PARTING_UNMET);
    *again = true;
    return STATUS_OK;
}

/* Elastic: meets the other nodes of the round, and runs it. *again: this node takes part in the
 * next one. */
static status run_round(agent *self, bool *again, int *code)
{
    attempt *current = &self->attempt;
    group_outcome outcome;
    *again = false;
    TRY(round_agent_begin(current->rounds));
    TRY(agent_channel_create(self->spec, self->spec->node_rank == 0 ? self->server : NULL,
                             &current->channel));
    TRY(await_nodes(self));
    if (!current->nodes.joined)
        return give_round_up(self, again, code);
    current->number = (int)self->spec->round;
    *code = EXIT_CODE_INTERNAL;
    TRY(attempt_run(current));
    TRY(conclude(self, code, &outcome));
    if (is_too_late(self, outcome.unmet)) {
        group_outcome_free(&outcome);
        *code = EXIT_CODE_RENDEZVOUS;
        return fail_unmet(self, "its ranks have not all met");
    }
    bool cut_off = current->nodes.failure != NULL && !current->nodes.has_outcome;
    bool goes_on = outcome.again || cut_off;
    *again = goes_on && self->signals.first == 0;
    note_lost(self, &outcome);
    close_channel(self);
    store_server_forget(self->server);
    if (*again)
        round_agent_left(current->rounds, outcome.unmet                ? ROUND_PARTING_APART
                                          : !cut_off && outcome.counts ? ROUND_PARTING_COUNTS
                                                                       : ROUND_PARTING_PLAIN);
    else if (goes_on)
        *code = 128 + self->signals.first; /* the others go on */
    else if (outcome.code == 0)
        round_agent_close(current->rounds, ROUND_WELL);
    else if (self->signals.first == 0)
        round_agent_close(current->rounds, ROUND_BADLY);
    group_outcome_free(&outcome);
    return STATUS_OK;
}

/* Elastic: round after round. */
static status run_rounds(agent *self, int *code)
{
    attempt *current = &self->attempt;
    *code = EXIT_CODE_INTERNAL; /* short of descriptors it would try again and again */
    TRY(status_context(file_limit_check(ROUNDS_FDS), "the launcher of an elastic job needs"));
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_store_open_own(self->spec, &self->server));
    TRY(round_agent_create(self->spec, self->id, current->events, &current->rounds));
    if (self->spec->policy.own)
        current->group.start.fence_fd = round_agent_fence_fd(current->rounds);
    for (bool over = false, again = true; again;) {
        TRY(await_round(self, &over, code));
        if (over)
            return STATUS_OK;
        TRY(run_round(self, &again, code));
    }
    return STATUS_OK;
}

/* For those who watch from outside. */
static status open_windows(agent *self)
{
    const worker_spec *spec = self->spec;
    attempt *current = &self->attempt;
    round_agent_make_id(self->id);
    TRY(event_log_open(spec->event_log, spec->run_id, self->id, &current->events));
    return health_check_open(spec->local_addr, spec->health_check_port, HEALTH_CHECK_LATE_MS,
                             &current->health);
}

/* All of the job; from now on a probe may ask. *code: what to exit with. */
static status run_job(agent *self, int *code)
{
    *code = EXIT_CODE_USAGE;
    TRY(open_windows(self));
    if (worker_spec_is_elastic(self->spec))
        return run_rounds(self, code);
    TRY(rendezvous(self, code));
    return run_attempts(self, code);
}

int agent_run(worker_spec *spec, int64_t started_ns)
{
    int code = EXIT_CODE_INTERNAL;
    agent *self = malloc(sizeof *self);
    if (self == NULL)
        return exit_code_failed(FAIL(STATUS_NO_MEMORY, "a launcher"), code);
    status st = agent_init(self, spec, started_ns);
    if (st == STATUS_OK)
        st = run_job(self, &code);
    if (st != STATUS_OK) {
        code = st == STATUS_NO_MEMORY ? EXIT_CODE_INTERNAL : code;
        failure_report_own(st, code);
        self->console.hurried = true;
    }
    if (st != STATUS_OK && self->attempt.nodes.joined)
        agent_channel_tell_report(self->attempt.channel, &(node_report){.state = AGENT_BROKEN});
    return agent_close(self, code);
}
