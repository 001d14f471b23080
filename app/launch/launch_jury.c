#include "app/launch/launch_jury.h"

#include "app/exit_codes.h"
#include "app/launch/launch_claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket_address.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINGERING_MS = 10000, NEXT_LINE_MS = 60000 };

typedef struct juror {
    bool ended;  /* `record` is there */
    bool silent; /* it is so because nothing more came */
    launch_record record;
    launch_sighting seen;
} juror;

struct launch_jury {
    const launch_joining *joining;
    int generation;
    int n; /* >= 1 */
    bool judged;
    int alarmed_by;     /* the node whose record made this one stop all others; -1: none */
    int64_t line_ns;    /* when to say who has not ended; 0: not yet */
    int64_t look_at_ns; /* when to look at the beats again */
    juror *nodes;       /* n */
};

status launch_jury_create(const launch_joining *joining, launch_jury **out)
{
    int n = joining->settings->plan.nnodes;
    launch_jury *jury = calloc(1, sizeof *jury);
    if (jury == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", n);
    *jury = (launch_jury){
        .joining = joining, .n = n, .alarmed_by = -1, .nodes = calloc((size_t)n, sizeof(juror))};
    if (jury->nodes == NULL) {
        free(jury);
        return FAIL(STATUS_NO_MEMORY, "%d nodes", n);
    }
    *out = jury;
    return STATUS_OK;
}

void launch_jury_destroy(launch_jury *jury)
{
    if (jury == NULL)
        return;
    for (int i = 0; i < jury->n; i++)
        launch_record_free(&jury->nodes[i].record);
    free(jury->nodes);
    free(jury);
}

static void lose(launch_jury *jury, store *client, int node)
{
    juror *who = &jury->nodes[node];
    char person[LAUNCH_CLAIM_BYTES];
    if (launch_claim_holder(jury->joining, client, node, person) != STATUS_OK)
        strcpy(person, "?");
    who->ended = who->silent = true;
    who->record = (launch_record){.lost = true, .result = LAUNCH_BROKEN};
    snprintf(who->record.text, sizeof who->record.text,
             "node %d (%s) has not been heard of for %.1f s: its machine or its launcher is dead, "
             "or the link to it is down",
             node, person, clock_seconds(clock_now_ns() - who->seen.changed_ns));
}

/* What a node has said is not to be understood: it cannot take part. */
static void spoil(juror *who, int node)
{
    who->ended = true;
    who->record = (launch_record){.lost = true, .result = LAUNCH_BROKEN};
    snprintf(who->record.text, sizeof who->record.text, "node %d: %s", node, status_text());
}

/* The text of a key, where it is there; else NULL. */
static status look_at(store *client, const char *key, char **text)
{
    bool there = false;
    void *value = NULL;
    size_t size_bytes;
    *text = NULL;
    TRY(store_check(client, key, &there));
    if (there)
        TRY(store_get(client, key, &value, &size_bytes));
    *text = value;
    return STATUS_OK;
}

/* One look per beat is enough. */
static status listen_to(launch_jury *jury, store *client)
{
    const launch_plan *plan = &jury->joining->settings->plan;
    int64_t patience_ns = plan->keep_alive_ms * plan->keep_alive_misses * 1000000;
    if (jury->look_at_ns != 0 && !clock_passed(jury->look_at_ns))
        return STATUS_OK;
    jury->look_at_ns = clock_deadline_ns(plan->keep_alive_ms / 4 + 1);
    for (int i = 0; i < jury->n; i++) {
        juror *who = &jury->nodes[i];
        bool changed;
        TRY(launch_claim_look(jury->joining, client, i, &who->seen, &changed));
        if (i != 0 && !who->ended && clock_now_ns() - who->seen.changed_ns > patience_ns)
            lose(jury, client, i);
    }
    return STATUS_OK;
}

/* A node speaks of itself: of its own ranks, whatever it says. */
static status read_record(const launch_jury *jury, int node, const char *text, launch_record *out)
{
    int nproc = jury->joining->settings->plan.nproc;
    launch_record record;
    TRY(launch_record_read(text, &record));
    int rank = record.cause.rank;
    if (record.result == LAUNCH_FAILED && rank / nproc != node) {
        launch_record_free(&record);
        return FAIL(STATUS_PEER, "another launcher sent nonsense: rank %d is not its own", rank);
    }
    record.cause.node = node;
    *out = record;
    return STATUS_OK;
}

static status hear_ends(launch_jury *jury, store *client)
{
    char key[LAUNCH_KEY_BYTES], name[64];
    snprintf(name, sizeof name, "end/%d", jury->generation);
    for (int i = 0; i < jury->n; i++) {
        juror *who = &jury->nodes[i];
        char *text = NULL;
        if (who->ended)
            continue;
        launch_join_key(jury->joining, name, i, key);
        TRY(look_at(client, key, &text));
        if (text == NULL)
            continue;
        who->ended = read_record(jury, i, text, &who->record) == STATUS_OK;
        if (!who->ended)
            spoil(who, i);
        free(text);
    }
    return STATUS_OK;
}

/* A launcher may be told to stop behind its record, and leave before the verdict. */
static status hear_stops(launch_jury *jury, store *client)
{
    char key[LAUNCH_KEY_BYTES];
    for (int i = 0; i < jury->n; i++) {
        launch_record *record = &jury->nodes[i].record;
        char *text = NULL;
        launch_join_key(jury->joining, "stop", i, key);
        if (record->signal != 0 || record->lost)
            continue;
        TRY(look_at(client, key, &text));
        int signal = text != NULL ? atoi(text) : 0;
        if (text != NULL)
            record->signal = signal > 0 && signal < NSIG ? signal : SIGTERM;
        free(text);
    }
    return STATUS_OK;
}

static void begin(launch_jury *jury, int generation)
{
    for (int i = 0; i < jury->n; i++) {
        launch_record_free(&jury->nodes[i].record);
        jury->nodes[i].ended = false;
    }
    jury->generation = generation;
    jury->judged = false;
    jury->alarmed_by = -1;
    jury->line_ns = 0;
}

/* Some have ended well and others go on: that is fine, and worth a line after a while. */
static void say_who_goes_on(launch_jury *jury, int ended)
{
    if (jury->line_ns == 0)
        jury->line_ns = clock_deadline_ns(LINGERING_MS);
    if (!clock_passed(jury->line_ns))
        return;
    jury->line_ns = clock_deadline_ns(NEXT_LINE_MS);
    for (int i = 0; i < jury->n; i++) {
        if (!jury->nodes[i].ended) {
            LOG_I("%d of %d nodes have ended; node %d goes on", ended, jury->n, i);
            return;
        }
    }
}

status launch_jury_hear(launch_jury *jury, store *client, int generation, bool *alarm)
{
    char key[LAUNCH_KEY_BYTES];
    int ended = 0, bad = -1;
    if (jury->generation != generation)
        begin(jury, generation);
    if (jury->judged)
        return STATUS_OK;
    TRY(hear_ends(jury, client));
    TRY(listen_to(jury, client));
    for (int i = 0; i < jury->n; i++) {
        ended += jury->nodes[i].ended;
        if (bad < 0 && jury->nodes[i].ended && jury->nodes[i].record.result != LAUNCH_DONE &&
            jury->nodes[i].record.result != LAUNCH_PREEMPTED)
            bad = i;
    }
    if (ended > 0 && ended < jury->n)
        say_who_goes_on(jury, ended);
    if (bad < 0 || *alarm)
        return STATUS_OK;
    *alarm = true;
    jury->alarmed_by = bad;
    launch_join_key(jury->joining, "trouble", generation, key);
    return store_set(client, key, "node 0", strlen("node 0"));
}

/* All were stopped, and nobody says why: then at least who wanted it. */
static status say_who_stopped(const launch_jury *jury, store *client, store_server *server,
                              launch_verdict *verdict)
{
    char key[LAUNCH_KEY_BYTES], whole[sizeof LAUNCH_KEYS + LAUNCH_KEY_BYTES];
    char address[SOCKET_ADDRESS_BYTES], name[256] = "", end[64];
    if (verdict->failed || verdict->code != EXIT_CODE_INTERNAL || verdict->text[0] != '\0')
        return STATUS_OK;
    if (jury->alarmed_by >=
        0) { /* this node stopped them because of a record: that was the order */
        snprintf(end, sizeof end, "end/%d", jury->generation);
        launch_join_key(jury->joining, end, jury->alarmed_by, key);
        snprintf(name, sizeof name, "node %d", jury->alarmed_by);
    } else {
        char *text = NULL;
        launch_join_key(jury->joining, "trouble", jury->generation, key);
        TRY(look_at(client, key, &text));
        snprintf(name, sizeof name, "%.200s", text != NULL ? text : "");
        free(text);
    }
    snprintf(whole, sizeof whole, "%s%s", LAUNCH_KEYS, key);
    store_server_author(server, whole, address);
    snprintf(verdict->text, sizeof verdict->text,
             "all ranks were stopped, but none failed: the order came from %.64s, which calls "
             "itself '%s' and gave no reason",
             address[0] != '\0' ? address : "an unknown address", name);
    return STATUS_OK;
}

status launch_jury_judge(launch_jury *jury, store *client, store_server *server, int generation,
                         char **text)
{
    const launch_settings *settings = jury->joining->settings;
    launch_verdict verdict = {0};
    char key[LAUNCH_KEY_BYTES];
    *text = NULL;
    for (int i = 0; i < jury->n; i++)
        if (jury->judged || !jury->nodes[i].ended)
            return STATUS_OK;
    TRY(hear_stops(jury, client));
    launch_record *records = calloc((unsigned)jury->n, sizeof *records);
    if (records == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d records", jury->n);
    for (int i = 0; i < jury->n; i++)
        records[i] = jury->nodes[i].record; /* still the jurors' own */
    status st = launch_verdict_make(records, jury->n, settings, generation, &verdict);
    free(records);
    TRY(st);
    st = say_who_stopped(jury, client, server, &verdict);
    if (st != STATUS_OK) {
        launch_verdict_free(&verdict);
        return st;
    }
    if (verdict.again)
        store_server_forget(server);
    launch_join_key(jury->joining, "verdict", generation, key);
    char *written = NULL;
    st = launch_verdict_write(&verdict, &written);
    if (st == STATUS_OK)
        st = store_set(client, key, written, strlen(written));
    launch_verdict_free(&verdict);
    jury->judged = st == STATUS_OK;
    if (jury->judged)
        *text = written;
    else
        free(written);
    return st;
}

int launch_jury_living(const launch_jury *jury)
{
    int living = 0;
    for (int i = 0; i < jury->n; i++)
        living += !jury->nodes[i].silent;
    return living;
}
