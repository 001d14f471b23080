#include "app/launch/agent_channel.h"

#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    WHY_BYTES = 1024,
    QUIT_MS = 2000,
    RETRY_MS = 100,
    COME_MS = 5000, /* elastic: so long a node may take to come, if its lease is as long */
    /* Node 0's, of who goes on while others have ended: */
    FIRST_LINE_MS = 10000,
    NEXT_LINE_MS = 60000,
    SILENT_BEATS = 2, /* heartbeats: after so many a node is said to be silent */
    /* For an agent whose connection was closed to come back on another one. */
    RETURN_MS = 3000,
    ELASTIC_RETURN_MS = 400, /* who lives comes back as a newcomer then */
};

/* What this agent tells the others: keys of the store. Each is sent until the store is known to
 * have it, and once more over each new connection. A word replaces the one before of its kind.
 * Reports are of two kinds in turn, as the next attempt's may come before the last is sent. */
typedef enum word_kind { WORD_TROUBLE, WORD_REPORT, WORDS = WORD_REPORT + 2 } word_kind;

typedef struct word {
    keys_text key;
    char *text; /* NULL: none */
    bool sent;
} word;

/* What the agent and the thread share, under the lock. But each of them reads without it what it
 * alone sets. Once the thread has ended, the agent needs no lock. */
typedef struct shared_state {
    /* The agent's. */
    int attempt;
    bool reported;    /* it has said how the attempt ended here */
    int told_trouble; /* the last attempt whose trouble it has reported; -1. Without the lock */

    /* The thread's. */
    bool joined;
    status failed;         /* `why`; STATUS_OK: not */
    bool finished;         /* it touches the channel no more */
    int trouble_attempt;   /* the last one that is known to be in trouble; -1 */
    int outcome_attempt;   /* the last one whose outcome is known; -1 */
    group_outcome outcome; /* that attempt's, until the agent takes it */
    word words[WORDS];     /* the agent puts them, the thread sends them */
} shared_state;

/* Node 0's: how the nodes' workers ended in an attempt. */
typedef struct coordinator {
    node_report *reports; /* by node; AGENT_JOINING: it has not reported yet */
    int attempt;
    bool decided;
    int alarmed_by;  /* the node whose report made this one stop all others; -1: none */
    int64_t line_ns; /* when to say who has not ended; 0: not yet */
} coordinator;

struct agent_channel {
    worker_spec spec; /* owns `now`, and nothing else */
    pthread_t thread;
    pthread_mutex_t lock;
    shared_state shared;
    int agent_fd, thread_fd; /* eventfds: wake the agent, the thread */
    atomic_bool quit;
    atomic_bool join_cancelled; /* set whenever `quit` is */

    /* The thread's; the agent reads `why`, its number and who is lost after it was told. */
    roster roster;
    char why[WHY_BYTES];

    /* The thread's own. */
    coordinator node_0;   /* without reports: this is another node's */
    int attempt;          /* as in `shared` when this turn began */
    bool reported;        /* likewise */
    int64_t heartbeat_ns; /* when the next one is due */
    int64_t stopped_ns;   /* how long this process did not run, since the last good turn; 0 */
};

/* The thread tells the agent that this attempt is in trouble. */
static void set_trouble(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->shared.trouble_attempt = channel->attempt;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

/* The thread tells the agent this attempt's outcome, and hands it over. */
static void set_outcome(agent_channel *channel, const group_outcome *outcome)
{
    pthread_mutex_lock(&channel->lock);
    group_outcome_free(&channel->shared.outcome);
    channel->shared.outcome = *outcome;
    channel->shared.outcome_attempt = channel->attempt;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

/* The thread tells the agent that nothing more will come. The thread's latest message says why. */
static void set_failure(agent_channel *channel, status st)
{
    snprintf(channel->why, sizeof channel->why, "%s", status_text());
    channel->roster.nodes[0].lost = channel->roster.nodes[0].lost || st == STATUS_REFUSED;
    pthread_mutex_lock(&channel->lock);
    channel->shared.failed = st;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

static void put(agent_channel *channel, int kind, keys_text key, const char *text)
{
    char *copy = strdup(text);
    word *w = &channel->shared.words[kind];
    if (copy == NULL) {
        LOG_E("no memory for what the other nodes should hear");
        return;
    }
    pthread_mutex_lock(&channel->lock);
    free(w->text);
    *w = (word){.key = key, .text = copy};
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->thread_fd, 1);
}

/* After a failure there will be a new connection, and all are sent again. */
static status send_words(agent_channel *channel)
{
    for (int i = 0; i < WORDS; i++) {
        word *w = &channel->shared.words[i];
        bool there = false;
        pthread_mutex_lock(&channel->lock);
        bool due = w->text != NULL && !w->sent;
        char *text = due ? strdup(w->text) : NULL;
        keys_text key = w->key;
        w->sent = w->sent || text != NULL;
        pthread_mutex_unlock(&channel->lock);
        if (text == NULL)
            continue;
        status st = store_set(channel->roster.client, key.text, text, strlen(text));
        free(text);
        TRY(st);
        TRY(store_check(channel->roster.client, key.text, &there)); /* SET itself has no answer */
    }
    return STATUS_OK;
}

/* The first one on a connection also makes it an agent's: store_server_forget() ends the workers'
 * connections, and not those. And a report counts over the heartbeat's connection only. */
static status send_heartbeat(agent_channel *channel)
{
    if (channel->heartbeat_ns != 0 && !clock_passed(channel->heartbeat_ns))
        return STATUS_OK;
    pthread_mutex_lock(&channel->lock);
    for (int i = 0; i < WORDS && channel->heartbeat_ns == 0; i++)
        channel->shared.words[i].sent = false;
    pthread_mutex_unlock(&channel->lock);
    channel->heartbeat_ns = clock_deadline_ns(channel->spec.keep_alive_ms);
    return roster_beat(&channel->roster);
}

static status look_for_trouble(agent_channel *channel)
{
    bool there = false;
    if (channel->shared.trouble_attempt == channel->attempt)
        return STATUS_OK;
    keys_text key = keys_make(channel->roster.prefix, KEYS_TROUBLE, channel->attempt);
    TRY(store_check(channel->roster.client, key.text, &there));
    if (there)
        set_trouble(channel);
    return STATUS_OK;
}

/* Node 0 hears how the nodes' workers ended, notices who is silent, and decides on the outcome. */

static bool has_reported(const agent_channel *c, int node)
{
    return c->node_0.reports[node].state != AGENT_JOINING;
}

/* A node that cannot take part: its report says why, and is made here. */
static void lose(agent_channel *c, int node, const char *why)
{
    node_report *report = &c->node_0.reports[node];
    *report = (node_report){.node = node, .lost = true, .state = AGENT_BROKEN};
    snprintf(report->text, sizeof report->text, "node %d%.500s", node, why);
}

static void lose_silent(agent_channel *c, int node)
{
    char why[NODE_REPORT_TEXT_BYTES], who[ROSTER_WHO_BYTES];
    roster_node *silent = &c->roster.nodes[node];
    roster_holder(silent, who);
    if (silent->gone_ns != 0)
        snprintf(why, sizeof why,
                 " (%s) is gone: its launcher's connection, or its key in the store, went %.1f s "
                 "ago, and has not come back: its own output says why, if anything does",
                 who, clock_seconds(clock_now_ns() - silent->gone_ns));
    else
        snprintf(why, sizeof why,
                 " (%s) has not been heard of for %.1f s: its machine or its launcher is dead, or "
                 "the link to it is down",
                 who, clock_seconds(clock_now_ns() - silent->heard_ns));
    lose(c, node, why);
    silent->lost = true; /* it cannot be told the outcome */
}

/* A process that has ended closes its connections. A connection may also break: then the agent
 * comes back on another one. */
static status hear_living(agent_channel *c)
{
    const worker_spec *spec = &c->spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000,
            return_ns =
                (worker_spec_is_elastic(spec) ? ELASTIC_RETURN_MS : RETURN_MS) * INT64_C(1000000);
    TRY(roster_look(&c->roster));
    for (int i = 1; i < spec->nnodes; i++) {
        const roster_node *node = &c->roster.nodes[i];
        if (!has_reported(c, i) &&
            (clock_now_ns() - node->heard_ns > patience_ns ||
             (node->gone_ns != 0 && clock_now_ns() - node->gone_ns > return_ns)))
            lose_silent(c, i);
    }
    return STATUS_OK;
}

/* *text: node's report on this attempt, to be freed; NULL: it has not come. A node's launcher
 * reports over the connection on which its heartbeat comes. Anybody may set the key. */
static status hear_report(const agent_channel *c, int node, char **text)
{
    char author[SOCKET_ADDRESS_BYTES], launcher[SOCKET_ADDRESS_BYTES];
    keys_text key = keys_make_of(c->roster.prefix, KEYS_REPORT, c->attempt, node);
    keys_text heartbeat = keys_make(c->roster.prefix, KEYS_ALIVE, node);
    TRY(store_try_get(c->roster.client, key.text, text));
    if (*text == NULL)
        return STATUS_OK;
    store_server_author(c->roster.server, keys_make(AGENT_KEYS, key.text, -1).text, author);
    store_server_author(c->roster.server, keys_make(AGENT_KEYS, heartbeat.text, -1).text, launcher);
    if (strcmp(author, launcher) != 0) {
        free(*text);
        *text = NULL;
    }
    return STATUS_OK;
}

static status hear_reports(agent_channel *c)
{
    for (int i = 0; i < c->spec.nnodes; i++) {
        char why[NODE_REPORT_TEXT_BYTES], *text = NULL;
        if (has_reported(c, i))
            continue;
        TRY(hear_report(c, i, &text));
        if (text == NULL)
            continue;
        status st = node_report_read(text, i, &c->spec, &c->node_0.reports[i]);
        free(text);
        if (st != STATUS_OK) {
            snprintf(why, sizeof why, ": %s", status_text());
            lose(c, i, why);
        }
    }
    return STATUS_OK;
}

/* An agent may be told to stop after its report, and leave before the outcome: then it has reported
 * once more. */
static status hear_stops(agent_channel *c)
{
    for (int i = 0; i < c->spec.nnodes; i++) {
        node_report *report = &c->node_0.reports[i], again;
        char *text = NULL;
        if (report->signal != 0 || report->lost)
            continue;
        TRY(hear_report(c, i, &text));
        if (text != NULL && node_report_read(text, i, &c->spec, &again) == STATUS_OK) {
            report->signal = again.signal;
            node_report_free(&again);
        }
        free(text);
    }
    return STATUS_OK;
}

/* Some have ended well and others go on: that is fine, and worth a line after a while. Or one of
 * the others is silent. */
static void say_who_goes_on(agent_channel *c, int reported)
{
    int first = 0;
    if (c->node_0.line_ns == 0)
        c->node_0.line_ns = clock_deadline_ns(FIRST_LINE_MS);
    if (!clock_passed(c->node_0.line_ns))
        return;
    c->node_0.line_ns = clock_deadline_ns(NEXT_LINE_MS);
    while (has_reported(c, first))
        first++;
    double quiet_s = clock_seconds(clock_now_ns() - c->roster.nodes[first].heard_ns);
    const worker_spec *spec = &c->spec;
    if (first != 0 && quiet_s * 1e3 > SILENT_BEATS * (double)spec->keep_alive_ms)
        LOG_W(
            "%d of %d nodes have ended; node %d has not been heard of for %.1f s, and is given up "
            "after %.1f s",
            reported, c->spec.nnodes, first, quiet_s,
            (double)(spec->keep_alive_ms * spec->keep_alive_misses) * 1e-3);
    else
        LOG_I("%d of %d nodes have ended; node %d goes on", reported, c->spec.nnodes, first);
}

/* Looks who lives and who has reported on this attempt. *trouble: whether the attempt is known to
 * be in trouble. If a node is lost or reports some, then it is set, and trouble/<attempt> too. */
static status hear_nodes(agent_channel *c, bool *trouble)
{
    int reported = 0, bad = -1;
    node_report *reports = c->node_0.reports;
    if (c->node_0.attempt != c->attempt) {
        for (int i = 0; i < c->spec.nnodes; i++)
            node_report_free(&reports[i]);
        c->node_0 = (coordinator){.reports = reports, .attempt = c->attempt, .alarmed_by = -1};
    }
    if (c->node_0.decided)
        return STATUS_OK;
    TRY(hear_reports(c));
    TRY(hear_living(c));
    for (int i = 0; i < c->spec.nnodes; i++) {
        agent_state state = reports[i].state;
        reported += has_reported(c, i);
        bool ended_well =
            state == AGENT_SUCCEEDED || state == AGENT_PREEMPTED || state == AGENT_DIVERGED;
        if (bad < 0 && has_reported(c, i) && !ended_well)
            bad = i;
    }
    if (reported > 0 && reported < c->spec.nnodes)
        say_who_goes_on(c, reported);
    if (bad < 0 || *trouble)
        return STATUS_OK;
    *trouble = true;
    c->node_0.alarmed_by = bad;
    keys_text key = keys_make(c->roster.prefix, KEYS_TROUBLE, c->attempt);
    return store_set(c->roster.client, key.text, "node 0", strlen("node 0"));
}

/* All were stopped, and nobody says why: then at least who wanted it. */
static status say_who_stopped(const agent_channel *c, group_outcome *outcome)
{
    keys_text key = keys_make(c->roster.prefix, KEYS_TROUBLE, c->attempt);
    char address[SOCKET_ADDRESS_BYTES], name[256] = "";
    if (outcome->failed || outcome->code != EXIT_CODE_INTERNAL || outcome->text[0] != '\0')
        return STATUS_OK;
    if (c->node_0.alarmed_by >= 0) { /* this node stopped them because of a report */
        key = keys_make_of(c->roster.prefix, KEYS_REPORT, c->attempt, c->node_0.alarmed_by);
        snprintf(name, sizeof name, "node %d", c->node_0.alarmed_by);
    } else {
        char *text = NULL;
        TRY(store_try_get(c->roster.client, key.text, &text));
        snprintf(name, sizeof name, "%.200s", text != NULL ? text : "");
        free(text);
    }
    store_server_author(c->roster.server, keys_make(AGENT_KEYS, key.text, -1).text, address);
    snprintf(outcome->text, sizeof outcome->text,
             "all ranks were stopped, but none failed: the order came from %.64s, which calls "
             "itself '%s' and gave no reason",
             address[0] != '\0' ? address : "an unknown address", name);
    return STATUS_OK;
}

static status decide_outcome(agent_channel *c)
{
    group_outcome outcome = {0};
    keys_text key = keys_make(c->roster.prefix, KEYS_OUTCOME, c->attempt);
    char *text = NULL;
    for (int i = 0; i < c->spec.nnodes; i++)
        if (c->node_0.decided || !has_reported(c, i))
            return STATUS_OK;
    TRY(hear_stops(c));
    status st = group_outcome_make(c->node_0.reports, c->spec.nnodes, &c->spec, &outcome);
    if (st == STATUS_OK)
        st = say_who_stopped(c, &outcome);
    if (st == STATUS_OK && outcome.again && !worker_spec_is_elastic(&c->spec))
        store_server_forget(c->roster.server);
    if (st == STATUS_OK)
        st = group_outcome_write(&outcome, &text);
    if (st == STATUS_OK)
        st = store_set(c->roster.client, key.text, text, strlen(text));
    free(text);
    c->node_0.decided = st == STATUS_OK;
    if (st == STATUS_OK)
        set_outcome(c, &outcome);
    else
        group_outcome_free(&outcome);
    return st;
}

/* Node 0 hears the others and decides. It believes itself, not what the store holds. */
static status coordinate(agent_channel *channel)
{
    bool known = channel->shared.trouble_attempt == channel->attempt, trouble = known;
    TRY(hear_nodes(channel, &trouble));
    if (trouble && !known)
        set_trouble(channel);
    return decide_outcome(channel);
}

/* The others look for the outcome once they have reported. */
static status look_for_outcome(agent_channel *channel)
{
    char *text = NULL;
    group_outcome outcome;
    if (!channel->reported || channel->shared.outcome_attempt == channel->attempt)
        return STATUS_OK;
    keys_text key = keys_make(channel->roster.prefix, KEYS_OUTCOME, channel->attempt);
    TRY(store_try_get(channel->roster.client, key.text, &text));
    if (text == NULL)
        return STATUS_OK;
    status st = group_outcome_read(text, &outcome);
    free(text);
    if (st == STATUS_OK) {
        set_outcome(channel, &outcome);
        return STATUS_OK;
    }
    set_failure(channel, status_context(st, "node 0's outcome"));
    atomic_store(&channel->quit, true); /* to ask again would not help */
    return STATUS_OK;
}

static status one_turn(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->attempt = channel->shared.attempt;
    channel->reported = channel->shared.reported;
    pthread_mutex_unlock(&channel->lock);
    TRY(send_heartbeat(channel));
    TRY(send_words(channel));
    TRY(look_for_trouble(channel));
    return channel->node_0.reports != NULL ? coordinate(channel) : look_for_outcome(channel);
}

/* Whether a failure, `st`, is final; then that is this thread's message. The connection may have
 * broken while node 0 is still there: that is believed for as long as a silent node is believed to
 * live, but not if its agent is known to be gone. `answered`: something was said over a connection.
 */
static bool gives_up(const agent_channel *channel, status st, bool answered,
                     int64_t silent_since_ns)
{
    const worker_spec *spec = &channel->spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000;
    char why[512];
    if (st == STATUS_INVALID) /* another agent has this node's number */
        return true;
    snprintf(why, sizeof why, "%s", status_text());
    if (channel->stopped_ns > patience_ns / 2) /* the last heartbeat was a little before that */
        FAIL(
            STATUS_PEER,
            "this node's launcher did not run for %.1f s (was it stopped, or its machine asleep?): "
            "node 0 takes a node for lost after %.3g s (--rdzv-conf=keep_alive_interval=%.3g,"
            "keep_alive_max_attempt=%d)",
            clock_seconds(channel->stopped_ns), clock_seconds(patience_ns),
            (double)spec->keep_alive_ms * 1e-3, spec->keep_alive_misses);
    else if (st == STATUS_REFUSED)
        FAIL(STATUS_PEER,
             "node 0's launcher at %s:%d is gone: its own output says why, if anything does",
             spec->master_addr, spec->master_port);
    else if (clock_now_ns() - silent_since_ns <= patience_ns)
        return false;
    else
        FAIL(STATUS_PEER, "node 0 at %s:%d has not %s for %.1f s (%s)%s", spec->master_addr,
             spec->master_port, answered ? "given a useful answer" : "been reached",
             clock_seconds(clock_now_ns() - silent_since_ns), why,
             answered ? "" : ": that machine is down, or the link to it");
    return true;
}

/* Turn after turn; each failure costs a connection and a pause, and only a turn that went well
 * renews the patience. */
static void serve(agent_channel *channel)
{
    struct pollfd order = {.fd = channel->thread_fd, .events = POLLIN};
    int interval_ms = (int)channel->spec.monitor_ms;
    int64_t heard_ns = clock_now_ns();
    eventfd_t woken;
    while (!atomic_load(&channel->quit)) {
        bool reached = channel->roster.client != NULL;
        status st =
            reached ? one_turn(channel) : roster_reach(&channel->roster, &channel->roster.client);
        if (st == STATUS_OK && reached) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            channel->stopped_ns = clock_now_ns() - heard_ns - interval_ms * INT64_C(1000000);
            eventfd_read(channel->thread_fd, &woken);
        }
        if (st == STATUS_OK)
            continue;
        store_destroy(channel->roster.client);
        channel->roster.client = NULL;
        channel->heartbeat_ns = 0;
        if (gives_up(channel, st, reached && st != STATUS_TIMEOUT, heard_ns)) {
            set_failure(channel, st);
            return;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (channel->roster.client != NULL && send_words(channel) != STATUS_OK)
        LOG_D("last words to the other nodes: %s", status_text());
}

/* Joins the others. Then the agent hears of it, and who is not heard from now on is lost. */
static status join(agent_channel *channel)
{
    coordinator *node_0 = &channel->node_0;
    *node_0 = (coordinator){.alarmed_by = -1};
    TRY(roster_join(&channel->roster));
    if (channel->roster.member == 0) {
        node_0->reports = calloc((size_t)channel->spec.nnodes, sizeof *node_0->reports);
        if (node_0->reports == NULL)
            return FAIL(STATUS_NO_MEMORY, "%d nodes", channel->spec.nnodes);
    }
    if (atomic_load(&channel->quit)) /* too late not to join: it leaves again, in order */
        agent_channel_tell_report(channel, &(node_report){.state = AGENT_BROKEN});
    for (int i = 0; i < channel->spec.nnodes; i++)
        channel->roster.nodes[i].heard_ns = clock_now_ns();
    pthread_mutex_lock(&channel->lock);
    channel->shared.joined = true;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
    return STATUS_OK;
}

static void *run(void *arg)
{
    agent_channel *channel = arg;
    status st = join(channel);
    if (st == STATUS_OK)
        serve(channel);
    else
        set_failure(channel, st);
    pthread_mutex_lock(&channel->lock);
    channel->shared.finished = true;
    eventfd_write(channel->agent_fd, 1);
    pthread_mutex_unlock(&channel->lock);
    return NULL;
}

static void free_channel(agent_channel *channel)
{
    roster_close(&channel->roster);
    for (int i = 0; i < channel->spec.nnodes && channel->node_0.reports != NULL; i++)
        node_report_free(&channel->node_0.reports[i]);
    free(channel->node_0.reports);
    for (int i = 0; i < WORDS; i++)
        free(channel->shared.words[i].text);
    group_outcome_free(&channel->shared.outcome);
    pthread_mutex_destroy(&channel->lock);
    if (channel->thread_fd >= 0)
        close(channel->thread_fd);
    if (channel->agent_fd >= 0)
        close(channel->agent_fd);
    round_state_free(&channel->spec.now);
    free(channel);
}

/* Elastic: node 0 names who has not come in half of a lease, and the next round is without them.
 * Who lives is a newcomer then. The others wait for its word. */
static int64_t time_to_come_ms(const agent_channel *channel)
{
    const worker_spec *spec = &channel->spec;
    int64_t lease_ms = spec->keep_alive_ms * spec->keep_alive_misses, half_ms = lease_ms / 2;
    if (channel->roster.server == NULL || lease_ms < COME_MS)
        return channel->roster.server == NULL ? 2 * lease_ms : lease_ms;
    return half_ms > COME_MS ? half_ms : COME_MS;
}

status agent_channel_create(const worker_spec *spec, store_server *server, agent_channel **out)
{
    agent_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return FAIL(STATUS_NO_MEMORY, "the channel to the other nodes");
    char prefix[sizeof AGENT_KEYS + sizeof channel->roster.prefix];
    channel->agent_fd = channel->thread_fd = -1;
    channel->shared =
        (shared_state){.told_trouble = -1, .trouble_attempt = -1, .outcome_attempt = -1};
    pthread_mutex_init(&channel->lock, NULL);
    channel->roster.server = server;
    channel->spec = *spec; /* a copy: the agent goes on, and the thread may hang in this round */
    channel->spec.now = (round_state){0};
    status st = round_state_copy(&spec->now, &channel->spec.now);
    if (worker_spec_is_elastic(spec))
        channel->spec.join_ms = time_to_come_ms(channel);
    if (st == STATUS_OK)
        st = roster_init(&channel->roster, &channel->spec, server, &channel->join_cancelled);
    if (st == STATUS_OK) {
        channel->thread_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        channel->agent_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (channel->thread_fd < 0 || channel->agent_fd < 0)
            st = FAIL(STATUS_IO, "eventfd: %s", file_limit_reason(errno));
    }
    /* Of an elastic job only the round's: those of ended rounds go with what its ranks have left.
     */
    snprintf(prefix, sizeof prefix, "%s%s", AGENT_KEYS,
             worker_spec_is_elastic(spec) ? channel->roster.prefix : "");
    if (st == STATUS_OK && server != NULL)
        st = store_server_keep(server, prefix);
    if (st == STATUS_OK)
        st = thread_start(run, channel, "the agent channel's", &channel->thread);
    if (st == STATUS_OK)
        *out = channel;
    else
        free_channel(channel);
    return st;
}

int agent_channel_fd(const agent_channel *channel)
{
    return channel->agent_fd;
}

agent_channel_snapshot agent_channel_look(agent_channel *channel)
{
    const shared_state *s = &channel->shared;
    eventfd_t woken;
    pthread_mutex_lock(&channel->lock);
    eventfd_read(channel->agent_fd, &woken);
    agent_channel_snapshot now = {.joined = s->joined,
                                  .nnodes = s->joined ? channel->spec.nnodes : 0,
                                  .failure = s->failed != STATUS_OK ? channel->why : NULL,
                                  .unfit = s->failed == STATUS_INVALID,
                                  .known = s->failed != STATUS_OK ? channel->roster.nodes : NULL,
                                  .in_trouble = s->trouble_attempt == s->attempt,
                                  .has_outcome = s->outcome_attempt == s->attempt};
    pthread_mutex_unlock(&channel->lock);
    return now;
}

void agent_channel_start(agent_channel *channel, int attempt)
{
    pthread_mutex_lock(&channel->lock);
    channel->shared.attempt = attempt;
    channel->shared.reported = false;
    if (!worker_spec_is_elastic(&channel->spec))
        channel->spec.now.restarts = attempt;
    pthread_mutex_unlock(&channel->lock);
}

void agent_channel_tell_trouble(agent_channel *channel)
{
    char who[ROSTER_WHO_BYTES], text[ROSTER_WHO_BYTES + 32];
    shared_state *s = &channel->shared;
    if (s->told_trouble == s->attempt)
        return;
    s->told_trouble = s->attempt;
    roster_who(&channel->spec, who);
    snprintf(text, sizeof text, "node %d (%s)", channel->roster.member, who);
    put(channel, WORD_TROUBLE, keys_make(channel->roster.prefix, KEYS_TROUBLE, s->attempt), text);
}

void agent_channel_tell_report(agent_channel *channel, const node_report *report)
{
    char *text = NULL;
    keys_text key = keys_make_of(channel->roster.prefix, KEYS_REPORT, channel->shared.attempt,
                                 channel->roster.member);
    if (node_report_write(report, &text) == STATUS_OK)
        put(channel, WORD_REPORT + channel->shared.attempt % 2, key, text);
    else
        LOG_E("%s", status_text());
    free(text);
    pthread_mutex_lock(&channel->lock);
    channel->shared.reported = true;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->thread_fd, 1);
}

group_outcome agent_channel_take_outcome(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    group_outcome outcome = channel->shared.outcome;
    channel->shared.outcome = (group_outcome){0};
    pthread_mutex_unlock(&channel->lock);
    return outcome;
}

/* Node 0's store is there until all others have read what it says: then they close their
 * connections. */
static void say_goodbye(agent_channel *channel)
{
    int64_t deadline_ns = clock_deadline_ns(CHANNEL_GOODBYE_MS);
    bool waits = channel->node_0.reports != NULL && channel->shared.outcome_attempt >= 0 &&
                 channel->roster.client != NULL;
    while (waits && !clock_passed(deadline_ns) && roster_look(&channel->roster) == STATUS_OK) {
        waits = false;
        for (int i = 1; i < channel->spec.nnodes; i++)
            waits = waits || (channel->roster.nodes[i].there && !channel->roster.nodes[i].lost);
        if (waits)
            clock_sleep_ms(2);
    }
}

void agent_channel_cancel_join(agent_channel *channel)
{
    atomic_store(&channel->join_cancelled, true);
}

/* Waits QUIT_MS at most for the thread's end. */
static bool join_thread(agent_channel *channel)
{
    int64_t deadline_ns = clock_deadline_ns(QUIT_MS);
    struct pollfd wake = {.fd = channel->agent_fd, .events = POLLIN};
    eventfd_t count;
    for (;;) {
        pthread_mutex_lock(&channel->lock);
        bool finished = channel->shared.finished;
        pthread_mutex_unlock(&channel->lock);
        if (finished)
            return pthread_join(channel->thread, NULL) == 0;
        if (clock_passed(deadline_ns))
            return false;
        poll(&wake, 1, clock_remaining_ms(deadline_ns));
        eventfd_read(channel->agent_fd, &count);
    }
}

bool agent_channel_destroy(agent_channel *channel)
{
    if (channel == NULL)
        return true;
    atomic_store(&channel->join_cancelled, true);
    atomic_store(&channel->quit, true);
    eventfd_write(channel->thread_fd, 1);
    if (!join_thread(channel)) {
        pthread_detach(channel->thread); /* it waits for a name or a dead host; the process ends */
        return false;
    }
    say_goodbye(channel);
    free_channel(channel);
    return true;
}
