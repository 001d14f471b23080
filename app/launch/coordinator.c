#include "app/launch/coordinator.h"

#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/membership/keys.h"
#include "dist/membership/lease.h"
#include "dist/net/socket_address.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINGERING_MS = 10000, NEXT_LINE_MS = 60000 };

typedef struct node_state {
    bool ended;  /* `record` is there */
    bool silent; /* it is so because nothing more came */
    node_report report;
    last_heartbeat seen;
} node_state;

struct coordinator {
    const launch_joining *joining;
    int attempt;
    int n; /* >= 1 */
    bool judged;
    int alarmed_by;     /* the node whose record made this one stop all others; -1: none */
    int64_t line_ns;    /* when to say who has not ended; 0: not yet */
    int64_t look_at_ns; /* when to look at the beats again */
    node_state *nodes;  /* n */
};

status coordinator_create(const launch_joining *joining, coordinator **out)
{
    int n = joining->spec->nnodes;
    coordinator *c = calloc(1, sizeof *c);
    if (c == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", n);
    *c = (coordinator){.joining = joining,
                       .n = n,
                       .alarmed_by = -1,
                       .nodes = calloc((size_t)n, sizeof(node_state))};
    if (c->nodes == NULL) {
        free(c);
        return FAIL(STATUS_NO_MEMORY, "%d nodes", n);
    }
    *out = c;
    return STATUS_OK;
}

void coordinator_destroy(coordinator *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n; i++)
        node_report_free(&c->nodes[i].report);
    free(c->nodes);
    free(c);
}

static void lose(coordinator *c, store *client, int node)
{
    node_state *who = &c->nodes[node];
    char person[LEASE_WHO_BYTES];
    if (lease_holder(client, c->joining->prefix, node, person) != STATUS_OK)
        strcpy(person, "?");
    who->ended = who->silent = true;
    who->report = (node_report){.lost = true, .state = AGENT_BROKEN};
    snprintf(who->report.text, sizeof who->report.text,
             "node %d (%s) has not been heard of for %.1f s: its machine or its launcher is dead, "
             "or the link to it is down",
             node, person, clock_seconds(clock_now_ns() - who->seen.changed_ns));
}

/* What a node has said is not to be understood: it cannot take part. */
static void spoil(node_state *who, int node)
{
    who->ended = true;
    who->report = (node_report){.lost = true, .state = AGENT_BROKEN};
    snprintf(who->report.text, sizeof who->report.text, "node %d: %s", node, status_text());
}

/* One look per beat is enough. */
static status listen_to(coordinator *c, store *client)
{
    const worker_spec *spec = c->joining->spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000;
    if (c->look_at_ns != 0 && !clock_passed(c->look_at_ns))
        return STATUS_OK;
    c->look_at_ns = clock_deadline_ns(spec->keep_alive_ms / 4 + 1);
    for (int i = 0; i < c->n; i++) {
        node_state *who = &c->nodes[i];
        bool changed;
        TRY(lease_look(client, c->joining->prefix, i, &who->seen, &changed));
        if (i != 0 && !who->ended && clock_now_ns() - who->seen.changed_ns > patience_ns)
            lose(c, client, i);
    }
    return STATUS_OK;
}

/* A node speaks of itself: of its own ranks, whatever it says. */
static status read_record(const coordinator *c, int node, const char *text, node_report *out)
{
    int nproc = c->joining->spec->nproc;
    node_report report;
    TRY(node_report_read(text, &report));
    int rank = report.cause.rank;
    if (report.state == AGENT_FAILED && rank / nproc != node) {
        node_report_free(&report);
        return FAIL(STATUS_PEER, "another launcher sent nonsense: rank %d is not its own", rank);
    }
    report.cause.node = node;
    *out = report;
    return STATUS_OK;
}

static status hear_ends(coordinator *c, store *client)
{
    for (int i = 0; i < c->n; i++) {
        node_state *who = &c->nodes[i];
        char *text = NULL;
        if (who->ended)
            continue;
        keys_text key = keys_make_of(c->joining->prefix, KEYS_REPORT, c->attempt, i);
        TRY(store_try_get(client, key.text, &text));
        if (text == NULL)
            continue;
        who->ended = read_record(c, i, text, &who->report) == STATUS_OK;
        if (!who->ended)
            spoil(who, i);
        free(text);
    }
    return STATUS_OK;
}

/* A launcher may be told to stop behind its record, and leave before the outcome. */
static status hear_stops(coordinator *c, store *client)
{
    for (int i = 0; i < c->n; i++) {
        node_report *report = &c->nodes[i].report;
        char *text = NULL;
        keys_text key = keys_make(c->joining->prefix, KEYS_STOP, i);
        if (report->signal != 0 || report->lost)
            continue;
        TRY(store_try_get(client, key.text, &text));
        int signal = text != NULL ? atoi(text) : 0;
        if (text != NULL)
            report->signal = signal > 0 && signal < NSIG ? signal : SIGTERM;
        free(text);
    }
    return STATUS_OK;
}

static void begin(coordinator *c, int attempt)
{
    for (int i = 0; i < c->n; i++) {
        node_report_free(&c->nodes[i].report);
        c->nodes[i].ended = false;
    }
    c->attempt = attempt;
    c->judged = false;
    c->alarmed_by = -1;
    c->line_ns = 0;
}

/* Some have ended well and others go on: that is fine, and worth a line after a while. */
static void say_who_goes_on(coordinator *c, int ended)
{
    if (c->line_ns == 0)
        c->line_ns = clock_deadline_ns(LINGERING_MS);
    if (!clock_passed(c->line_ns))
        return;
    c->line_ns = clock_deadline_ns(NEXT_LINE_MS);
    for (int i = 0; i < c->n; i++) {
        if (!c->nodes[i].ended) {
            LOG_I("%d of %d nodes have ended; node %d goes on", ended, c->n, i);
            return;
        }
    }
}

status coordinator_hear(coordinator *c, store *client, int attempt, bool *alarm)
{
    int ended = 0, bad = -1;
    if (c->attempt != attempt)
        begin(c, attempt);
    if (c->judged)
        return STATUS_OK;
    TRY(hear_ends(c, client));
    TRY(listen_to(c, client));
    for (int i = 0; i < c->n; i++) {
        ended += c->nodes[i].ended;
        if (bad < 0 && c->nodes[i].ended && c->nodes[i].report.state != AGENT_SUCCEEDED &&
            c->nodes[i].report.state != AGENT_PREEMPTED)
            bad = i;
    }
    if (ended > 0 && ended < c->n)
        say_who_goes_on(c, ended);
    if (bad < 0 || *alarm)
        return STATUS_OK;
    *alarm = true;
    c->alarmed_by = bad;
    keys_text key = keys_make(c->joining->prefix, KEYS_TROUBLE, attempt);
    return store_set(client, key.text, "node 0", strlen("node 0"));
}

/* All were stopped, and nobody says why: then at least who wanted it. */
static status say_who_stopped(const coordinator *c, store *client, store_server *server,
                              group_outcome *outcome)
{
    const char *prefix = c->joining->prefix;
    keys_text key = keys_make(prefix, KEYS_TROUBLE, c->attempt);
    char address[SOCKET_ADDRESS_BYTES], name[256] = "";
    if (outcome->failed || outcome->code != EXIT_CODE_INTERNAL || outcome->text[0] != '\0')
        return STATUS_OK;
    if (c->alarmed_by >= 0) { /* this node stopped them because of a record: that was the order */
        key = keys_make_of(prefix, KEYS_REPORT, c->attempt, c->alarmed_by);
        snprintf(name, sizeof name, "node %d", c->alarmed_by);
    } else {
        char *text = NULL;
        TRY(store_try_get(client, key.text, &text));
        snprintf(name, sizeof name, "%.200s", text != NULL ? text : "");
        free(text);
    }
    store_server_author(server, keys_make(LAUNCH_KEYS, key.text, -1).text, address);
    snprintf(outcome->text, sizeof outcome->text,
             "all ranks were stopped, but none failed: the order came from %.64s, which calls "
             "itself '%s' and gave no reason",
             address[0] != '\0' ? address : "an unknown address", name);
    return STATUS_OK;
}

status coordinator_decide(coordinator *c, store *client, store_server *server, int attempt,
                          char **text)
{
    const worker_spec *spec = c->joining->spec;
    group_outcome outcome = {0};
    *text = NULL;
    for (int i = 0; i < c->n; i++)
        if (c->judged || !c->nodes[i].ended)
            return STATUS_OK;
    TRY(hear_stops(c, client));
    node_report *reports = calloc((unsigned)c->n, sizeof *reports);
    if (reports == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d records", c->n);
    for (int i = 0; i < c->n; i++)
        reports[i] = c->nodes[i].report; /* still the jurors' own */
    status st = group_outcome_make(reports, c->n, spec, attempt, &outcome);
    free(reports);
    TRY(st);
    st = say_who_stopped(c, client, server, &outcome);
    if (st != STATUS_OK) {
        group_outcome_free(&outcome);
        return st;
    }
    if (outcome.again)
        store_server_forget(server);
    keys_text key = keys_make(c->joining->prefix, KEYS_OUTCOME, attempt);
    char *written = NULL;
    st = group_outcome_write(&outcome, &written);
    if (st == STATUS_OK)
        st = store_set(client, key.text, written, strlen(written));
    group_outcome_free(&outcome);
    c->judged = st == STATUS_OK;
    if (c->judged)
        *text = written;
    else
        free(written);
    return st;
}

int coordinator_count_living(const coordinator *c)
{
    int living = 0;
    for (int i = 0; i < c->n; i++)
        living += !c->nodes[i].silent;
    return living;
}
