#include "app/launch/agent.h"

#include "app/common/elastic_link.h"
#include "app/common/event_log.h"
#include "app/common/exit_codes.h"
#include "app/common/stop_signals.h"
#include "app/launch/agent_store.h"
#include "app/launch/health_check.h"
#include "app/launch/outcome.h"
#include "app/launch/roster.h"
#include "app/launch/workers.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "dist/elastic/rdzv.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILLED_MS = 5000,  /* how long SIGKILL may take */
    PAUSE_MS = 5000,   /* for the ranks to agree on a step, and to leave after it */
    LEAVE_MS = 2000,   /* to leave at once */
    CANCEL_MS = 1000,  /* how long an agent that was told to stop may take to join no more */
    OUTCOME_MS = 3000, /* for node 0's outcome, after the agent was told to stop */
    ROUNDS_FDS = 32,   /* the store, the rendezvous, the roster and a rank, with room */
    /* Stop, child, roster, rounds, and the console's; the workers' come after them. */
    FIXED_FDS = 4 + OUTPUT_CONSOLE_FDS,
};

/* An elastic job's rounds: this node announces itself where the nodes meet, gets its place in each
 * round from there, and keeps the fence of its ranks (app/common/elastic_link.h). What a round is
 * stands in docs/internals/elastic.md. */
typedef struct rounds {
    rdzv_handle *rdzv; /* NULL: the job is static */
    round_fence *fence;
    rdzv_news news;    /* as of the last look */
    const char **lost; /* the ids of the round's members that are lost */
    int n_lost;
    int64_t unmet_ns; /* since when no round has begun in which it was; 0: one has */
    bool unfinished;  /* this node's ranks had not ended well when they left a round */
} rounds;

typedef struct agent {
    worker_spec *spec;
    output_console console;
    stop_signals signals;
    store_server *server; /* if this node serves it; elastic: each serves one */
    health_check *health; /* NULL: nobody asks */
    event_log *events;    /* NULL: none are kept */
    rounds rounds;        /* elastic */
    roster *roster;       /* several nodes */
    roster_news nodes;    /* what was last heard of them; one node: nothing */
    worker_group group;
    struct pollfd *polled; /* for wait_once() */
    bool has_lost_thread;  /* a roster hangs, and was left to itself */
    int64_t memory_kills;  /* memory_was_short */
    bool anything_failed;

    /* Of the latest attempt. */
    agent_state state;
    int64_t deadline_ns;  /* when the state's time is up; AGENT_RUNNING has none */
    int signal;           /* because of it the agent stops the workers; 0: none */
    int64_t signal_ns;    /* when the latest wish to stop came; 0: none did */
    bool kills_next;      /* the next signal kills the workers */
    int64_t cause_end_ns; /* AGENT_FAILING: until when the cause is waited for; 0: it is not yet */
    bool not_started;     /* not all workers could be started */
    bool leaves;          /* elastic: as the rendezvous has said */
    bool pauses;          /* AGENT_LEAVING: at a step that all ranks agree on */
} agent;

static bool is_elastic(const agent *self)
{
    return self->rounds.rdzv != NULL;
}

/* Rounds. */

/* Takes part from now on. The spec's master_addr and master_port say where this node's store
 * listens. */
static status announce_node(agent *self)
{
    worker_spec *spec = self->spec;
    round_node *own = &spec->rdzv.self;
    spec->rdzv.backend = spec->backend == RDZV_ETCD ? &rdzv_etcd : &rdzv_c10d;
    spec->rdzv.endpoints = spec->endpoints;
    spec->rdzv.run_id = spec->run_id;
    spec->rdzv.access = &spec->access;
    own->nproc = spec->nproc;
    own->port = spec->master_port;
    if (strlen(spec->master_addr) >= sizeof own->address)
        return FAIL(STATUS_INVALID, "this node's address is longer than %d letters: %.80s",
                    ROUND_ADDRESS_BYTES - 1, spec->master_addr);
    snprintf(own->address, sizeof own->address, "%s", spec->master_addr);
    return rdzv_open(&spec->rdzv, &self->rounds.rdzv);
}

/* Also moves the fence on. The phase is RDZV_LEAVES from the end of the lease on, also if the
 * rendezvous has not said so yet. */
static void look_at_rounds(agent *self)
{
    rdzv_news *news = &self->rounds.news;
    *news = rdzv_take_news(self->rounds.rdzv);
    if (news->phase == RDZV_RUNS && clock_passed(news->valid_until_ns)) {
        news->phase = RDZV_LEAVES;
        news->ending = ROUND_BADLY;
        news->reason = "this node's lease has ended, as the rendezvous does not answer in time";
    }
    bool in_round = news->phase == RDZV_RUNS || news->phase == RDZV_LEAVES;
    round_fence_set(self->rounds.fence, in_round ? news->valid_until_ns : 0);
}

/* "hostA (ranks 0-7), hostB (ranks 8-11)" */
static void describe(const round_state *now, char *out, size_t size_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0, first = 0; i < now->n && used < size_bytes; first += now->members[i++].nproc) {
        const round_node *node = &now->members[i];
        used += (size_t)snprintf(out + used, size_bytes - used,
                                 node->nproc == 1 ? "%s%s (rank %d)" : "%s%s (ranks %d-%d)",
                                 i > 0 ? ", " : "", round_host_of(node->id).text, first,
                                 first + node->nproc - 1);
    }
}

/* Puts this node's place in the round that begins into the spec: `now`, node_rank, nnodes,
 * world_size, and node 0's address as master_addr and master_port. */
static status take_place(agent *self)
{
    worker_spec *spec = self->spec;
    rounds *r = &self->rounds;
    const round_state *now = r->news.now, *before = &spec->now;
    char nodes[600];
    for (int i = 0; i < before->n; i++)
        if (round_rank_of(now, before->members[i].id) < 0)
            event_log_text(self->events, now->round, EVENT_LOG_NODE_GONE, before->members[i].id);
    free(r->lost);
    r->lost = calloc((size_t)now->n, sizeof *r->lost);
    r->n_lost = 0;
    if (r->lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", now->n);
    round_state_free(&spec->now);
    TRY(round_state_copy(now, &spec->now));
    spec->nnodes = now->n;
    spec->node_rank = r->news.node_rank;
    spec->world_size = worker_spec_first_rank(spec, now->n);
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s", now->members[0].address);
    spec->master_port = now->members[0].port;
    event_log_round_begins(self->events, now, spec->node_rank);
    describe(now, nodes, sizeof nodes);
    LOG_I("round %lld: %d node%s, %d ranks: %s; this is node %d", (long long)now->round, now->n,
          now->n == 1 ? "" : "s", spec->world_size, nodes, spec->node_rank);
    return STATUS_OK;
}

/* This node of the round is gone, or did not come: the next round is without it. */
static void note_lost(agent *self, int node)
{
    const worker_spec *spec = self->spec;
    rounds *r = &self->rounds;
    if (node >= spec->nnodes || node == spec->node_rank || r->n_lost == spec->nnodes)
        return;
    r->lost[r->n_lost++] = spec->now.members[node].id;
    event_log_text(self->events, spec->now.round, EVENT_LOG_NODE_LOST, spec->now.members[node].id);
}

/* An attempt: one start of this node's workers, from the first to the end of the last. A function
 * for each event, state by state, as agent.h draws them. */

static bool has_workers(const agent *self)
{
    return self->state >= AGENT_RUNNING && self->state <= AGENT_KILLING;
}

/* How the attempt ended, now that no worker is left. */
static agent_state how_it_ended(const agent *self)
{
    bool own = self->spec->policy.own, none_waits = !worker_group_some_wait(&self->group);
    int preempted = worker_group_exited_with(&self->group, EXIT_CODE_PREEMPTED);
    int well = worker_group_exited_with(&self->group, 0);
    bool done = own && none_waits && well == self->group.n;
    if (self->not_started)
        return AGENT_BROKEN;
    if (self->group.cause >= 0)
        return AGENT_FAILED;
    if (self->leaves && self->signal == 0 && !done) /* else the run was done before it could end */
        return AGENT_LEFT;
    if ((own || self->signal != 0) && preempted > 0 &&
        preempted + (own ? well : 0) == self->group.n)
        return AGENT_PREEMPTED;
    if (own && worker_group_exited_with(&self->group, EXIT_CODE_DIVERGED) > 0)
        return AGENT_DIVERGED;
    if (self->signal != 0)
        return AGENT_SIGNALED;
    return done || (self->state == AGENT_RUNNING && none_waits) ? AGENT_SUCCEEDED : AGENT_STOPPED;
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
    self->cause_end_ns = 0;
    enter(self, AGENT_FAILING, SHUTDOWN_GRACE_MS);
}

/* Of the only node all that have failed may say that another worker went away. Most likely it is
 * one of those that still run, which is about to end: a worker that ends meanwhile may be the
 * cause. Its last lines say it, and may not have been read yet. */
static bool awaits_cause(const agent *self)
{
    return self->state == AGENT_FAILING && self->cause_end_ns != 0 &&
           !clock_passed(self->cause_end_ns);
}

static void enter_stopping(agent *self, int signal, int64_t time_ms)
{
    worker_group_signal(&self->group, signal);
    enter(self, AGENT_STOPPING, time_ms);
}

/* Elastic: ranks of ours make no step after the lease's end, as the fence says. Other programs have
 * to end before the service ends the lease, a tenth of it later (docs/internals/elastic.md). */
static int64_t time_to_stop_ms(const agent *self)
{
    const worker_spec *spec = self->spec;
    bool late = !spec->policy.own && clock_passed(self->rounds.news.valid_until_ns);
    return late ? worker_spec_lease_ms(spec) / 20 : spec->policy.stop_ms;
}

/* The workers end the round: those of ours at a step that all ranks agree on, or at once if not all
 * of them live. They wait for the next round in their processes if they can, else they leave a
 * checkpoint. */
static void enter_leaving(agent *self, bool all_live)
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

/* Before it stops running. */
static void log_leaving(const agent *self, const char *why)
{
    if (self->state == AGENT_RUNNING)
        event_log_text(self->events, self->spec->now.round, EVENT_LOG_LEAVES, why);
}

static void take_end(agent *self, worker *w)
{
    /* The signal that asked it for a checkpoint ended it, or the agent's, which it got too. */
    int signal = WIFSIGNALED(w->wait_status) ? WTERMSIG(w->wait_status) : 0;
    bool did_not_save =
        self->state == AGENT_SAVING && signal != 0 && (signal == SIGUSR1 || signal == self->signal);
    w->was_stopped = self->state >= AGENT_STOPPING || did_not_save;
    if (did_not_save) { /* the others would wait for it in vain */
        LOG_W("rank %d had nothing to save yet", w->rank);
        enter_stopping(self, SIGTERM, self->spec->policy.signal_ms);
    }
    if (ended_well(self, w) || w->was_stopped)
        return;
    worker_group_note_failure(&self->group, w);
    log_leaving(self, "a rank of this node has failed");
    if (self->state == AGENT_RUNNING)
        roster_tell_trouble(self->roster);
    if (self->state == AGENT_RUNNING || self->state == AGENT_SAVING)
        enter_failing(self);
    else if (awaits_cause(self))
        enter(self, AGENT_FAILING, SHUTDOWN_GRACE_MS);
}

/* A worker that has left its round by itself has seen that others are gone. */
static void take_left_workers(agent *self)
{
    if (self->state != AGENT_RUNNING || !worker_group_some_wait(&self->group))
        return;
    log_leaving(self, "a rank of this node has lost others");
    roster_tell_trouble(self->roster);
    enter_failing(self);
}

static void take_first_signal(agent *self, int signal)
{
    const shutdown_policy *policy = &self->spec->policy;
    worker_group_drop_cause_by(&self->group, signal);
    bool failed = self->group.cause >= 0;
    bool saves = policy->listens && (signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
                                     signal == SIGUSR1); /* a checkpoint, before they end */
    self->kills_next = true;
    if (!failed)
        self->signal = signal;
    if (is_elastic(self) && policy->own) {
        enter_leaving(self, true);
    } else if (self->state == AGENT_RUNNING && !failed && saves) {
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
static void take_signals(agent *self)
{
    int signal;
    while ((signal = stop_signals_next(&self->signals)) != 0) {
        if (!has_workers(self))
            continue;
        take_signal(self, signal);
        if (self->state >= AGENT_STOPPING)
            roster_tell_trouble(self->roster);
    }
}

/* A worker of another node may have failed, or this node is cut off. */
static void take_news(agent *self)
{
    bool was_cut_off = self->nodes.failure != NULL;
    self->nodes = roster_take_news(self->roster);
    bool cut_off = self->nodes.failure != NULL;
    if (cut_off && !was_cut_off && self->nodes.joined)
        log_line(is_elastic(self) ? LOG_WARNING : LOG_ERROR, "node %d: %s", self->spec->node_rank,
                 self->nodes.failure);
    if (self->state != AGENT_RUNNING || (!cut_off && !self->nodes.in_trouble))
        return;
    log_leaving(self, cut_off ? self->nodes.failure : "another node is in trouble");
    enter_failing(self);
}

/* The round may be over. Workers that were told to save or stop end anyway. */
static void take_round_news(agent *self)
{
    look_at_rounds(self);
    if (!has_workers(self) || self->leaves || self->rounds.news.phase == RDZV_RUNS ||
        self->rounds.news.phase == RDZV_WAITS)
        return;
    self->leaves = true;
    log_leaving(self, self->rounds.news.reason);
    LOG_I("round %lld ends: %s", (long long)self->spec->now.round, self->rounds.news.reason);
    if (self->state <= AGENT_FAILING)
        enter_leaving(self, self->state == AGENT_RUNNING &&
                                self->rounds.news.phase == RDZV_LEAVES &&
                                self->rounds.news.ending == ROUND_WELL);
}

/* Elastic: when the lease ends, if that ends the round; INT64_MAX: it does not. The rendezvous' own
 * thread may wait for the service then. */
static int64_t lease_end_ns(const agent *self)
{
    bool runs = is_elastic(self) && self->rounds.news.phase == RDZV_RUNS;
    return runs ? self->rounds.news.valid_until_ns : INT64_MAX;
}

static void take_deadline(agent *self)
{
    if (self->state == AGENT_RUNNING || !has_workers(self) || !clock_passed(self->deadline_ns))
        return;
    if (self->state == AGENT_FAILING && self->cause_end_ns == 0)
        self->cause_end_ns = clock_deadline_ns(SHUTDOWN_CAUSE_MS);
    if (awaits_cause(self) && self->spec->nnodes == 1 && worker_group_only_lost(&self->group)) {
        self->deadline_ns = self->cause_end_ns;
        return;
    }
    bool may_leave = self->state == AGENT_FAILING || (self->state == AGENT_LEAVING && self->pauses);
    if (may_leave && is_elastic(self)) {
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

static void tell_health(const agent *self)
{
    const char *state = self->state == AGENT_RUNNING ? "runs"
                        : has_workers(self)          ? "stops"
                                                     : "waits";
    const worker_spec *spec = self->spec;
    health_facts facts = {.state = state,
                          .round = spec->now.round,
                          .restarts = spec->now.restarts,
                          .world_size = spec->world_size,
                          .first_rank = worker_spec_first_rank(spec, spec->node_rank),
                          .nproc = spec->nproc};
    if (self->health == NULL)
        return;
    worker_logs_dumps(&spec->logs, (int)spec->now.round, facts.pages);
    health_check_beat(self->health, &facts);
}

/* One wait, of wait_ms at most (-1: without end), for a signal, a worker's end or output, or news
 * of the other nodes or the rounds; and what follows from it. Also before and after an attempt. */
static status wait_once(agent *self, int wait_ms)
{
    struct pollfd *fds = self->polled;
    int n = 4;
    int lease_ms = clock_remaining_ms(lease_end_ns(self));
    if (wait_ms < 0 || wait_ms > lease_ms)
        wait_ms = lease_ms;
    int rounds_fd = is_elastic(self) ? rdzv_fd(self->rounds.rdzv) : -1;
    fds[0] = (struct pollfd){.fd = self->signals.fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = self->group.child_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = roster_fd(self->roster),
                             .events = POLLIN}; /* poll() passes over -1 */
    fds[3] = (struct pollfd){.fd = rounds_fd, .events = POLLIN};
    n += output_console_poll(&self->console, fds + n);
    int group_at = n;
    n += worker_group_poll(&self->group, fds + n);
    if (poll(fds, (nfds_t)n, health_check_wait_ms(self->health, wait_ms)) < 0 && errno != EINTR)
        return FAIL(STATUS_IO, "poll: %s", strerror(errno));
    tell_health(self);
    output_console_push(&self->console);
    if (fds[0].revents != 0)
        take_signals(self);
    if (fds[2].revents != 0)
        take_news(self);
    if (fds[3].revents != 0 || clock_passed(lease_end_ns(self)))
        take_round_news(self);
    for (worker *w; fds[1].revents != 0 && (w = worker_group_next_ended(&self->group)) != NULL;)
        take_end(self, w);
    worker_group_read(&self->group, fds + group_at);
    take_left_workers(self);
    take_deadline(self);
    if (has_workers(self) && self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

static void log_workers(const agent *self, int kept)
{
    const worker_group *group = &self->group;
    pid_t *pids = calloc((size_t)group->n + 1, sizeof *pids);
    for (int i = 0; i < group->n && pids != NULL; i++)
        pids[i] = group->workers[i].pid;
    if (pids != NULL)
        event_log_workers(self->events, self->spec->now.round, pids, group->n, kept);
    free(pids);
}

/* An agent that was told to stop, or whose round is over already, starts no worker, and the attempt
 * is over. */
static status start_attempt(agent *self)
{
    int kept = 0;
    for (int i = 0; i < self->group.n; i++)
        kept += self->group.workers[i].waits;
    TRY(worker_logs_start(&self->spec->logs, (int)self->spec->now.round, self->spec->nproc));
    self->kills_next = self->not_started = false;
    self->leaves = is_elastic(self) && self->rounds.news.phase != RDZV_RUNS;
    self->signal_ns = 0;
    if (self->roster != NULL)
        roster_start_attempt(self->roster, (int)self->spec->now.round);
    take_signals(self);
    self->signal = self->signals.first;
    enter(self, AGENT_RUNNING, 0);
    worker_group_clear(&self->group, (int)self->spec->now.round);
    if (self->signal == 0 && !self->leaves && worker_group_start(&self->group) != STATUS_OK) {
        LOG_E("%s", status_text());
        self->not_started = true;
        enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
        roster_tell_trouble(self->roster);
    }
    if (!is_elastic(self))
        event_log_round_begins(self->events, &self->spec->now, self->spec->node_rank);
    log_workers(self, kept);
    if (self->roster != NULL)
        take_news(self);
    if (self->group.running == 0)
        self->state = how_it_ended(self);
    return STATUS_OK;
}

/* Elastic: ends the workers that wait for their next place. */
static status end_waiting(agent *self)
{
    agent_state ended = self->state;
    worker_group_resume(&self->group);
    if (self->group.running == 0)
        return STATUS_OK;
    enter_stopping(self, SIGTERM, self->spec->policy.stop_ms);
    while (has_workers(self))
        TRY(wait_once(self, clock_remaining_ms(self->deadline_ns)));
    worker_group_finish(&self->group, KILL_LEFTOVERS);
    self->state = ended;
    return STATUS_OK;
}

/* Starts all workers, unless the agent was told to stop, and waits until none is left: `state` says
 * how it ended. */
static status run_attempt(agent *self)
{
    TRY(start_attempt(self));
    while (has_workers(self)) {
        bool timed = self->state != AGENT_RUNNING;
        TRY(wait_once(self, timed ? clock_remaining_ms(self->deadline_ns) : -1));
    }
    /* What a worker that ended well has left running is meant to run. */
    worker_group_finish(&self->group,
                        self->state == AGENT_SUCCEEDED ? KEEP_LEFTOVERS : KILL_LEFTOVERS);
    return STATUS_OK;
}
/* The job. */

/* A static job is a round whose list is known: --nnodes nodes of as many ranks. */
static status know_round(worker_spec *spec)
{
    spec->now.members = calloc((size_t)spec->nnodes, sizeof *spec->now.members);
    if (spec->now.members == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
    spec->now.n = spec->nnodes;
    for (int i = 0; i < spec->now.n; i++)
        spec->now.members[i].nproc = spec->nproc;
    return STATUS_OK;
}

/* Whether the kernel has killed a process for want of memory since the last call. *kills: how many
 * it had killed then, -1 if that is not known; updated. */
static bool memory_was_short(int64_t *kills)
{
    char line[128];
    long long before = *kills, count = -1;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "oom_kill %lld", &count) == 1)
            break;
    if (file != NULL)
        fclose(file);
    *kills = count;
    return before >= 0 && count > before;
}

static status agent_init(agent *self, worker_spec *spec, int64_t started_ns)
{
    worker_start start = {.spec = spec, .started_ns = started_ns, .file_limit = file_limit_raise()};
    *self = (agent){.spec = spec, .memory_kills = -1};
    output_console_init(&self->console);
    self->console.own = spec->policy.own;
    (void)memory_was_short(&self->memory_kills);
    if (!worker_spec_is_elastic(spec))
        TRY(know_round(spec));
    signal(SIGPIPE, SIG_IGN);
    TRY(stop_signals_take(&spec->policy.signals, &self->signals));
    self->console.stop_fd = self->signals.fd;
    start.signal_mask = self->signals.before;
    TRY(worker_logs_open(&spec->logs, spec->run_id));
    self->polled = calloc((size_t)spec->nproc * WORKER_GROUP_FDS + FIXED_FDS, sizeof *self->polled);
    if (self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d workers", spec->nproc);
    return worker_group_create(&start, &self->console, &self->group);
}

/* The roster is done with. If its thread hangs it is left to itself. */
static void close_roster(agent *self)
{
    bool ended = roster_destroy(self->roster);
    self->has_lost_thread = self->has_lost_thread || !ended;
    self->roster = NULL;
    self->nodes = (roster_news){0};
}

/* Frees the agent. Returns `code`, or what to exit with instead. */
static int agent_close(agent *self, int code)
{
    close_roster(self);
    bool is_last_thread = !self->has_lost_thread;
    if (end_waiting(self) != STATUS_OK)
        LOG_E("%s", status_text());
    rdzv_close(self->rounds.rdzv);
    round_fence_close(self->rounds.fence);
    free(self->rounds.lost);
    if (is_last_thread)
        store_server_destroy(self->server);
    health_check_close(self->health);
    if (self->state >= AGENT_SUCCEEDED)
        worker_group_drain_leftovers(&self->group);
    worker_group_destroy(&self->group);
    free(self->polled);
    if (self->spec->now.restarts > 0 && self->spec->logs.folder[0] != '\0')
        LOG_I("what the failed attempts left: %s", self->spec->logs.folder);
    worker_logs_close(&self->spec->logs, self->anything_failed);
    output_console_flush(&self->console); /* a signal may end that still */
    int stdout_error = output_console_error(&self->console, STDOUT_FILENO);
    if (stdout_error != 0) {
        code = standard_streams_lost(stdout_error, self->spec->stdout_has_result, code);
        output_console_flush(&self->console);
    }
    event_log_ends(self->events, self->spec->now.round, code);
    event_log_close(self->events);
    stop_signals_close(&self->signals);
    if (!is_last_thread)
        return code; /* the console stays for the others' log */
    output_console_close(&self->console);
    free(self);
    return code;
}

/* `how` is "the nodes were joining". *code: what to exit with. */
static status stopped_while(const agent *self, const char *how, int *code)
{
    *code = 128 + self->signals.first;
    return FAIL(STATUS_PEER, "SIG%s while %s", sigabbrev_np(self->signals.first), how);
}

static status fail_unmet(const agent *self, const char *why)
{
    return FAIL(STATUS_TIMEOUT, "no round has begun within %.3g s (--join-timeout): %s",
                (double)self->spec->rdzv.join_ms * 1e-3, why);
}

/* The list of nodes of the next attempt: a static job's is known. Elastic: waits for a round that
 * this node is in, and begins it. *over: there will be none, and *code is what to exit with. */
static status await_round(agent *self, bool *over, int *code)
{
    const rdzv_news *news = &self->rounds.news;
    const int64_t since_ns = self->rounds.unmet_ns;
    if (!is_elastic(self))
        return STATUS_OK;
    *code = EXIT_CODE_RENDEZVOUS;
    event_log_waits(self->events, self->spec->now.round);
    look_at_rounds(self);
    while (news->phase == RDZV_WAITS && self->signals.first == 0) {
        int64_t end_ns = since_ns + self->spec->rdzv.join_ms * 1000000;
        TRY(wait_once(self, since_ns != 0 ? clock_remaining_ms(end_ns) : -1));
        if (since_ns != 0 && clock_passed(end_ns))
            return fail_unmet(self, "the others did not meet this node, and go on without it");
    }
    if (self->signals.first != 0)
        return stopped_while(self, "this node was waiting for the others", code);
    if (news->phase == RDZV_FAILED)
        return FAIL(news->failure, "%s", news->reason);
    if (news->phase != RDZV_CLOSED)
        return take_place(self);
    *over = true;
    bool well = news->ending == ROUND_WELL;
    if (well && self->rounds.unfinished) {
        *code = EXIT_CODE_PEER;
        return FAIL(STATUS_PEER,
                    "the job '%s' was closed (%s), but this node's ranks had not ended well in "
                    "round %lld, so that is not believed: did the others end without this node, or "
                    "who else reaches the rendezvous?",
                    self->spec->run_id, news->reason, (long long)self->spec->now.round);
    }
    *code = well ? EXIT_SUCCESS : EXIT_CODE_RENDEZVOUS;
    log_line(well ? LOG_INFO : LOG_ERROR, "the job '%s' has ended: %s%s", self->spec->run_id,
             news->reason,
             self->spec->now.round == 0 ? "; a new job takes another --rdzv-id on all nodes" : "");
    return STATUS_OK;
}

/* Elastic: notes since when no round has begun. Whether that is too long. */
static bool is_too_late(agent *self, bool unmet)
{
    int64_t now_ns = clock_now_ns(), *since_ns = &self->rounds.unmet_ns;
    if (!unmet || *since_ns == 0)
        *since_ns = unmet ? now_ns : 0;
    return unmet && now_ns - *since_ns > self->spec->rdzv.join_ms * 1000000;
}

/* Elastic: no rank of this node runs the round any more, and the job goes on. Who was noted as lost
 * is named. */
static void tell_departure(agent *self, round_departure how)
{
    rounds *r = &self->rounds;
    how.lost = r->lost;
    how.n_lost = r->n_lost;
    round_fence_set(r->fence, 0);
    rdzv_leave(r->rdzv, &how);
}

/* Elastic: what the round leaves behind. The roster knows who is lost. */
static void clear_round(agent *self)
{
    for (int node = 0; self->nodes.failure != NULL && node < self->spec->nnodes; node++)
        if (roster_has_lost(self->roster, node))
            note_lost(self, node);
    close_roster(self);
    store_server_forget(self->server);
}

/* The nodes have not met. Those of an elastic job try it again in the next round. */
static status give_up_meeting(agent *self, int *code)
{
    const roster_news *nodes = &self->nodes;
    if (self->signals.first != 0)
        return stopped_while(self, "the nodes were joining", code);
    if (!is_elastic(self))
        return FAIL(STATUS_PEER, "%s", nodes->failure);
    bool over = self->rounds.news.phase != RDZV_RUNS;
    const char *why = over || nodes->failure == NULL ? self->rounds.news.reason : nodes->failure;
    if (nodes->unfit) {
        *code = EXIT_CODE_USAGE;
        return FAIL(STATUS_INVALID, "%s", nodes->failure);
    }
    if (is_too_late(self, true))
        return fail_unmet(self, why);
    LOG_W("round %lld does not begin: %s", (long long)self->spec->now.round, why);
    clear_round(self);
    tell_departure(self, (round_departure){.restarts = self->spec->now.restarts, .unmet = true});
    return STATUS_OK;
}

/* Several nodes: all agents of the job, or of the round, meet. *met: they have. */
static status join_roster(agent *self, bool *met, int *code)
{
    const roster_news *nodes = &self->nodes;
    int64_t cancel_ns = 0;
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(roster_create(self->spec, self->spec->node_rank == 0 ? self->server : NULL, &self->roster));
    while (!nodes->joined && nodes->failure == NULL &&
           (cancel_ns == 0 || !clock_passed(cancel_ns))) {
        bool over = is_elastic(self) && self->rounds.news.phase != RDZV_RUNS;
        if ((over || self->signals.first != 0) && cancel_ns == 0) {
            roster_cancel_join(self->roster);
            cancel_ns = clock_deadline_ns(CANCEL_MS);
        }
        TRY(wait_once(self, cancel_ns == 0 ? -1 : clock_remaining_ms(cancel_ns)));
    }
    *met = nodes->joined;
    if (!nodes->joined)
        return give_up_meeting(self, code);
    if (self->spec->counts_nodes) {
        node_count_apply(self->spec, nodes->nnodes);
        self->group.n = self->spec->nproc;
    }
    return STATUS_OK;
}

/* Before any node starts a worker all have met. They stay in touch until the job ends, or the
 * round. */
static status meet_nodes(agent *self, bool *met, int *code)
{
    const worker_spec *spec = self->spec;
    char ranks[SPEC_RANKS_BYTES];
    *met = true;
    if (self->roster == NULL && (spec->nnodes > 1 || is_elastic(self)))
        TRY(join_roster(self, met, code));
    if (*met && !is_elastic(self) && spec->now.round == 0)
        log_line(spec->nnodes > 1 ? LOG_INFO : LOG_DEBUG,
                 "node %d of %d: %s; the store is at %s:%d", spec->node_rank, spec->nnodes,
                 worker_spec_ranks(spec, ranks), spec->master_addr, spec->master_port);
    return STATUS_OK;
}

/* Alone: node 0 is out of reach, or late after this agent was told to stop. */
static status decide_alone(agent *self, const node_end *own, group_outcome *out)
{
    TRY(group_outcome_make(own, 1, self->spec, out));
    out->again = false;
    bool for_others = own->state == AGENT_STOPPED && own->signal != 0;
    if (self->signals.first != own->signal || for_others)
        out->code = 128 + self->signals.first;
    else if (self->nodes.failure != NULL && !out->failed)
        out->code = EXIT_CODE_PEER;
    return STATUS_OK;
}

/* One node: it decides. Several: node 0 does, for all. */
static status hear_outcome(agent *self, const node_end *own, group_outcome *out)
{
    int64_t deadline_ns = 0;
    node_end told = *own;
    if (self->roster == NULL)
        return group_outcome_make(own, 1, self->spec, out);
    if (self->nodes.failure == NULL)
        roster_tell_end(self->roster, own);
    while (!self->nodes.has_outcome && self->nodes.failure == NULL) {
        int signal = self->signals.first;
        if (deadline_ns == 0 && signal != 0)
            deadline_ns = clock_deadline_ns(OUTCOME_MS);
        if (deadline_ns != 0 && clock_passed(deadline_ns)) {
            /* The others shall not wait for this node in the next attempt, should there be one. */
            roster_start_attempt(self->roster, (int)self->spec->now.round + 1);
            roster_tell_end(self->roster, &(node_end){.state = AGENT_SIGNALED, .signal = signal});
            return decide_alone(self, own, out);
        }
        if (signal != told.signal) { /* node 0 starts no further attempt */
            told.signal = signal;
            roster_tell_end(self->roster, &told);
            roster_tell_trouble(self->roster);
        }
        TRY(wait_once(self, deadline_ns != 0 ? clock_remaining_ms(deadline_ns) : -1));
    }
    if (!self->nodes.has_outcome)
        return decide_alone(self, own, out);
    *out = roster_take_outcome(self->roster);
    return group_outcome_doubt(own, self->spec, out);
}

/* What the attempt was, and what comes of it, which the caller frees. *code: what to exit with. */
static status conclude(agent *self, int *code, group_outcome *out)
{
    node_end own;
    bool memory_killed = memory_was_short(&self->memory_kills);
    TRY(node_end_make(&self->group, self->state, self->signals.first, memory_killed, &own));
    self->rounds.unfinished = own.state != AGENT_SUCCEEDED;
    status st = hear_outcome(self, &own, out);
    if (st == STATUS_OK)
        failure_report_show(&(failure_report){self->spec, &own, out}, &self->console);
    node_end_free(&own);
    TRY(st);
    *code = out->code;
    self->anything_failed = self->anything_failed || out->failed;
    bool rank_failed = out->failed || out->code == EXIT_CODE_DIVERGED;
    if (out->code != 0 && out->code != EXIT_CODE_PREEMPTED && rank_failed &&
        self->spec->policy.torchrun_code)
        *code = 1;
    return STATUS_OK;
}

/* Elastic: after the attempt, gives the round back to the rendezvous, or closes the job. */
static status end_round(agent *self, const group_outcome *outcome, bool *again, int *code)
{
    if (is_too_late(self, outcome->unmet)) {
        *code = EXIT_CODE_RENDEZVOUS;
        return fail_unmet(self, "its ranks have not all met");
    }
    bool cut_off = self->nodes.failure != NULL && !self->nodes.has_outcome;
    bool goes_on = outcome->again || cut_off;
    *again = goes_on && self->signals.first == 0;
    for (int i = 0; i < outcome->n_lost; i++)
        note_lost(self, outcome->lost[i]);
    clear_round(self);
    if (*again) {
        bool counts = outcome->counts && !outcome->unmet && !cut_off;
        if (outcome->unmet &&
            self->spec->node_rank == 0) /* the nodes have met, and not all ranks */
            note_lost(self, self->spec->nnodes - 1);
        tell_departure(self, (round_departure){.restarts = self->spec->now.restarts + counts,
                                               .unmet = outcome->unmet});
    } else if (goes_on) {
        *code = 128 + self->signals.first; /* the others go on */
    } else if (outcome->code == 0 || self->signals.first == 0) {
        bool well = outcome->code == 0;
        const char *reason = well ? "all ranks have ended well" : "a rank has failed";
        event_log_text(self->events, self->spec->now.round, EVENT_LOG_CLOSED, reason);
        rdzv_end_job(self->rounds.rdzv, well ? ROUND_WELL : ROUND_BADLY, reason);
    }
    return STATUS_OK;
}

/* What follows the attempt. *again: another one does; a static job's is with the same nodes. */
static status end_attempt(agent *self, const group_outcome *outcome, bool *again, int *code)
{
    if (is_elastic(self))
        return end_round(self, outcome, again, code);
    *again = outcome->again;
    self->spec->now.round += *again;
    self->spec->now.restarts += *again;
    if (*again && self->roster == NULL)
        store_server_forget(self->server);
    return STATUS_OK;
}

/* Serves or finds the store. An elastic job's nodes then announce themselves where they meet. */
static status open_job(agent *self, int *code)
{
    worker_spec *spec = self->spec;
    char host[64] = "?", *id = spec->rdzv.self.id;
    *code = EXIT_CODE_USAGE; /* for those who watch from outside: */
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    /* "hostA_4711_1f3c": nobody else's, as a host has no two processes of one number at a time. */
    snprintf(id, sizeof spec->rdzv.self.id, "%.60s_%d_%llx", host, (int)getpid(),
             (unsigned long long)clock_now_ns());
    TRY(event_log_open(spec->event_log, spec->run_id, id, &self->events));
    TRY(health_check_open(spec->local_addr, spec->health_check_port, HEALTH_CHECK_LATE_MS,
                          &self->health));
    *code = EXIT_CODE_RENDEZVOUS;
    if (!worker_spec_is_elastic(spec))
        return agent_store_open(spec, &self->server);
    *code = EXIT_CODE_INTERNAL; /* short of descriptors it would try again and again */
    TRY(status_context(file_limit_check(ROUNDS_FDS), "the launcher of an elastic job needs"));
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(agent_store_open_own(spec, &self->server));
    TRY(round_fence_create(&self->rounds.fence));
    TRY(announce_node(self));
    if (spec->policy.own)
        self->group.start.fence_fd = round_fence_fd(self->rounds.fence);
    return STATUS_OK;
}

/* Attempt after attempt, or round after round, until none follows. *code: what to exit with. */
static status run_job(agent *self, int *code)
{
    TRY(open_job(self, code));
    for (bool again = true; again;) {
        bool over = false, met = false;
        group_outcome outcome;
        TRY(await_round(self, &over, code));
        if (over)
            return STATUS_OK;
        TRY(meet_nodes(self, &met, code));
        if (!met)
            continue;
        *code = EXIT_CODE_INTERNAL;
        TRY(run_attempt(self));
        TRY(conclude(self, code, &outcome));
        status st = end_attempt(self, &outcome, &again, code);
        group_outcome_free(&outcome);
        TRY(st);
    }
    return STATUS_OK;
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
    if (st != STATUS_OK && self->nodes.joined)
        roster_tell_end(self->roster, &(node_end){.state = AGENT_BROKEN});
    return agent_close(self, code);
}
