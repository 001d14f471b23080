#include "app/launch/coordinator.h"

#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/membership/keys.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_LINE_MS = 10000,
    NEXT_LINE_MS = 60000,
    /* For an agent whose connection was closed to come back on another one. */
    RETURN_MS = 3000,
    ELASTIC_RETURN_MS = 400, /* who lives comes back as a newcomer then */
    SILENT_BEATS = 2,        /* heartbeats: after so many a node is said to be silent */
};

struct coordinator {
    const agent_rendezvous *rdzv;
    int n;                /* nodes, >= 1: of each */
    node_report *reports; /* on this attempt; AGENT_JOINING: it has not reported yet */
    last_heartbeat *seen;
    bool *silent;       /* it was given up, and cannot be told the outcome */
    int64_t look_at_ns; /* when to look at the heartbeats again */
    int64_t *closed_ns; /* when its connection was seen to be closed; 0: it is open, or never was */
    bool *connected;    /* as of alive_revision */
    bool *was_connected; /* before */
    int64_t alive_revision;

    /* Of the attempt. */
    int attempt;
    bool decided;
    int alarmed_by;  /* the node whose report made this one stop all others; -1: none */
    int64_t line_ns; /* when to say who has not ended; 0: not yet */
};

status coordinator_create(const agent_rendezvous *rdzv, coordinator **out)
{
    unsigned n = (unsigned)rdzv->spec->nnodes;
    coordinator *c = calloc(1, sizeof *c);
    if (c == NULL)
        return FAIL(STATUS_NO_MEMORY, "%u nodes", n);
    *c = (coordinator){.rdzv = rdzv,
                       .n = (int)n,
                       .alarmed_by = -1,
                       .reports = calloc(n, sizeof *c->reports),
                       .seen = calloc(n, sizeof *c->seen),
                       .silent = calloc(n, sizeof *c->silent),
                       .closed_ns = calloc(n, sizeof *c->closed_ns),
                       .connected = calloc(n, sizeof *c->connected),
                       .was_connected = calloc(n, sizeof *c->connected),
                       .alive_revision = -1};
    if (c->reports == NULL || c->seen == NULL || c->silent == NULL || c->closed_ns == NULL ||
        c->connected == NULL || c->was_connected == NULL) {
        coordinator_destroy(c);
        return FAIL(STATUS_NO_MEMORY, "%u nodes", n);
    }
    for (int i = 0; i < c->n; i++)
        c->connected[i] = true;
    *out = c;
    return STATUS_OK;
}

void coordinator_destroy(coordinator *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n && c->reports != NULL; i++)
        node_report_free(&c->reports[i]);
    free(c->reports);
    free(c->seen);
    free(c->silent);
    free(c->closed_ns);
    free(c->connected);
    free(c->was_connected);
    free(c);
}

static bool has_reported(const coordinator *c, int node)
{
    return c->reports[node].state != AGENT_JOINING;
}

/* A node that cannot take part: its report says why, and is made here. */
static void lose(coordinator *c, int node, const char *why)
{
    node_report *report = &c->reports[node];
    *report = (node_report){.node = node, .lost = true, .state = AGENT_BROKEN};
    snprintf(report->text, sizeof report->text, "node %d%.500s", node, why);
}

static void lose_silent(coordinator *c, store *client, int node)
{
    char why[NODE_REPORT_TEXT_BYTES], holder[LEASE_WHO_BYTES];
    double quiet_s = clock_seconds(clock_now_ns() - c->seen[node].changed_ns);
    if (lease_holder(client, c->rdzv->prefix, node, holder) != STATUS_OK || holder[0] == '\0')
        strcpy(holder, "?");
    if (c->closed_ns[node] != 0)
        snprintf(why, sizeof why,
                 " (%s) is gone: its launcher's connection, or its key in the store, went %.1f s "
                 "ago, and has not come back: its own output says why, if anything does",
                 holder, clock_seconds(clock_now_ns() - c->closed_ns[node]));
    else
        snprintf(why, sizeof why,
                 " (%s) has not been heard of for %.1f s: its machine or its launcher is dead, or "
                 "the link to it is down",
                 holder, quiet_s);
    lose(c, node, why);
    c->silent[node] = true;
}

/* Whose connections are open. */
static void take_living(coordinator *c, const store_watch_answer *living)
{
    memset(c->connected, 0, (size_t)c->n * sizeof *c->connected);
    for (size_t i = 0; i < living->n; i++) {
        const char *slash = strrchr(living->keys[i].key, '/');
        int node;
        if (slash != NULL && number_parse(slash + 1, 0, c->n - 1, &node))
            c->connected[node] = true;
    }
}

/* A process that has ended closes its connections. A connection may also break: then the agent
 * comes back on another one. */
static status hear_connections(coordinator *c, store *client)
{
    keys_text prefix = keys_make(c->rdzv->prefix, KEYS_ALIVE "/", -1);
    store_watch_options how = {.prefix = prefix.text, .after = c->alive_revision};
    store_watch_answer living;
    bool *before = c->connected, elastic = worker_spec_is_elastic(c->rdzv->spec);
    int64_t return_ns = (elastic ? ELASTIC_RETURN_MS : RETURN_MS) * INT64_C(1000000);
    TRY(store_watch(client, &how, &living));
    if (living.revision != 0) {
        c->connected = c->was_connected;
        c->was_connected = before;
        take_living(c, &living);
        c->alive_revision = living.revision;
        for (int i = 0; i < c->n; i++) {
            if (c->connected[i])
                c->closed_ns[i] = 0;
            else if (before[i])
                c->closed_ns[i] = clock_now_ns();
        }
    }
    store_watch_free(&living);
    for (int i = 1; i < c->n; i++)
        if (c->closed_ns[i] != 0 && !has_reported(c, i) &&
            clock_now_ns() - c->closed_ns[i] > return_ns)
            lose_silent(c, client, i);
    return STATUS_OK;
}

/* Several looks in the time of a heartbeat are enough. */
static status hear_heartbeats(coordinator *c, store *client)
{
    const worker_spec *spec = c->rdzv->spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000;
    if (c->look_at_ns != 0 && !clock_passed(c->look_at_ns))
        return STATUS_OK;
    c->look_at_ns = clock_deadline_ns(spec->keep_alive_ms / 4 + 1);
    for (int i = 0; i < c->n; i++) {
        bool changed;
        TRY(lease_look(client, c->rdzv->prefix, i, &c->seen[i], &changed));
        if (i != 0 && !has_reported(c, i) && clock_now_ns() - c->seen[i].changed_ns > patience_ns)
            lose_silent(c, client, i);
    }
    return STATUS_OK;
}

/* A node's launcher reports over the connection on which its heartbeat comes. Anybody may set the
 * key. */
static bool is_of_launcher(const coordinator *c, keys_text report, int node)
{
    char author[SOCKET_ADDRESS_BYTES], launcher[SOCKET_ADDRESS_BYTES];
    keys_text heartbeat = keys_make(c->rdzv->prefix, KEYS_HEARTBEAT, node);
    store_server_author(c->rdzv->server, keys_make(AGENT_KEYS, report.text, -1).text, author);
    store_server_author(c->rdzv->server, keys_make(AGENT_KEYS, heartbeat.text, -1).text, launcher);
    return strcmp(author, launcher) == 0;
}

static status hear_reports(coordinator *c, store *client)
{
    for (int i = 0; i < c->n; i++) {
        char why[NODE_REPORT_TEXT_BYTES], *text = NULL;
        if (has_reported(c, i))
            continue;
        keys_text key = keys_make_of(c->rdzv->prefix, KEYS_REPORT, c->attempt, i);
        TRY(store_try_get(client, key.text, &text));
        if (text == NULL || !is_of_launcher(c, key, i)) {
            free(text);
            continue;
        }
        status st = node_report_read(text, i, c->rdzv->spec, &c->reports[i]);
        free(text);
        if (st != STATUS_OK) {
            snprintf(why, sizeof why, ": %s", status_text());
            lose(c, i, why);
        }
    }
    return STATUS_OK;
}

/* An agent may be told to stop after its report, and leave before the outcome. */
static status hear_stops(coordinator *c, store *client)
{
    for (int i = 0; i < c->n; i++) {
        node_report *report = &c->reports[i];
        char *text = NULL;
        if (report->signal != 0 || report->lost)
            continue;
        TRY(store_try_get(client, keys_make(c->rdzv->prefix, KEYS_STOP, i).text, &text));
        if (text != NULL && !number_parse(text, 1, NSIG - 1, &report->signal))
            report->signal = SIGTERM;
        free(text);
    }
    return STATUS_OK;
}

static void begin(coordinator *c, int attempt)
{
    for (int i = 0; i < c->n; i++)
        node_report_free(&c->reports[i]);
    c->attempt = attempt;
    c->decided = false;
    c->alarmed_by = -1;
    c->line_ns = 0;
}

/* Some have ended well and others go on: that is fine, and worth a line after a while. Or one of
 * the others is silent. */
static void say_who_goes_on(coordinator *c, int reported)
{
    int first = 0;
    if (c->line_ns == 0)
        c->line_ns = clock_deadline_ns(FIRST_LINE_MS);
    if (!clock_passed(c->line_ns))
        return;
    c->line_ns = clock_deadline_ns(NEXT_LINE_MS);
    while (has_reported(c, first))
        first++;
    double quiet_s = clock_seconds(clock_now_ns() - c->seen[first].changed_ns);
    const worker_spec *spec = c->rdzv->spec;
    if (first != 0 && quiet_s * 1e3 > SILENT_BEATS * (double)spec->keep_alive_ms)
        LOG_W(
            "%d of %d nodes have ended; node %d has not been heard of for %.1f s, and is given up "
            "after %.1f s",
            reported, c->n, first, quiet_s,
            (double)(spec->keep_alive_ms * spec->keep_alive_misses) * 1e-3);
    else
        LOG_I("%d of %d nodes have ended; node %d goes on", reported, c->n, first);
}

status coordinator_hear(coordinator *c, store *client, int attempt, bool *trouble)
{
    int reported = 0, bad = -1;
    if (c->attempt != attempt)
        begin(c, attempt);
    if (c->decided)
        return STATUS_OK;
    TRY(hear_reports(c, client));
    TRY(hear_connections(c, client));
    TRY(hear_heartbeats(c, client));
    for (int i = 0; i < c->n; i++) {
        agent_state state = c->reports[i].state;
        reported += has_reported(c, i);
        bool ended_well =
            state == AGENT_SUCCEEDED || state == AGENT_PREEMPTED || state == AGENT_DIVERGED;
        if (bad < 0 && has_reported(c, i) && !ended_well)
            bad = i;
    }
    if (reported > 0 && reported < c->n)
        say_who_goes_on(c, reported);
    if (bad < 0 || *trouble)
        return STATUS_OK;
    *trouble = true;
    c->alarmed_by = bad;
    keys_text key = keys_make(c->rdzv->prefix, KEYS_TROUBLE, attempt);
    return store_set(client, key.text, "node 0", strlen("node 0"));
}

/* All were stopped, and nobody says why: then at least who wanted it. */
static status say_who_stopped(const coordinator *c, store *client, group_outcome *outcome)
{
    keys_text key = keys_make(c->rdzv->prefix, KEYS_TROUBLE, c->attempt);
    char address[SOCKET_ADDRESS_BYTES], name[256] = "";
    if (outcome->failed || outcome->code != EXIT_CODE_INTERNAL || outcome->text[0] != '\0')
        return STATUS_OK;
    if (c->alarmed_by >= 0) { /* this node stopped them because of a report: that was the order */
        key = keys_make_of(c->rdzv->prefix, KEYS_REPORT, c->attempt, c->alarmed_by);
        snprintf(name, sizeof name, "node %d", c->alarmed_by);
    } else {
        char *text = NULL;
        TRY(store_try_get(client, key.text, &text));
        snprintf(name, sizeof name, "%.200s", text != NULL ? text : "");
        free(text);
    }
    store_server_author(c->rdzv->server, keys_make(AGENT_KEYS, key.text, -1).text, address);
    snprintf(outcome->text, sizeof outcome->text,
             "all ranks were stopped, but none failed: the order came from %.64s, which calls "
             "itself '%s' and gave no reason",
             address[0] != '\0' ? address : "an unknown address", name);
    return STATUS_OK;
}

static status send_outcome(const coordinator *c, store *client, const group_outcome *outcome)
{
    char *text = NULL;
    keys_text key = keys_make(c->rdzv->prefix, KEYS_OUTCOME, c->attempt);
    TRY(group_outcome_write(outcome, &text));
    status st = store_set(client, key.text, text, strlen(text));
    free(text);
    return st;
}

status coordinator_decide(coordinator *c, store *client, bool *decided, group_outcome *out)
{
    group_outcome outcome = {0};
    *decided = false;
    for (int i = 0; i < c->n; i++)
        if (c->decided || !has_reported(c, i))
            return STATUS_OK;
    TRY(hear_stops(c, client));
    status st = group_outcome_make(c->reports, c->n, c->rdzv->spec, &outcome);
    if (st == STATUS_OK)
        st = say_who_stopped(c, client, &outcome);
    if (st == STATUS_OK && outcome.again && !worker_spec_is_elastic(c->rdzv->spec))
        store_server_forget(c->rdzv->server);
    if (st == STATUS_OK)
        st = send_outcome(c, client, &outcome);
    if (st != STATUS_OK) {
        group_outcome_free(&outcome);
        return st;
    }
    *decided = c->decided = true;
    *out = outcome;
    return STATUS_OK;
}

int coordinator_count_living(const coordinator *c)
{
    int living = 0;
    for (int i = 0; i < c->n; i++)
        living += !c->silent[i];
    return living;
}
