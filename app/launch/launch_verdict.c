#include "app/launch/launch_verdict.h"

#include "app/exit_codes.h"
#include "app/json_value.h"
#include "app/launch/launch_hang.h"
#include "app/launch/launch_report.h"
#include "base/json_text.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_BYTES = 64 << 10, /* of notes, and of what is said of other ranks */
    JSON_BYTES = 1 << 20,  /* of a record or verdict: more than the longest honest one has */
};

/* Cuts it at the end of a line. NULL: none. */
static void cut(char *text)
{
    if (text == NULL || strlen(text) <= TEXT_BYTES)
        return;
    text[TEXT_BYTES] = '\0';
    char *end = strrchr(text, '\n');
    if (end != NULL)
        end[1] = '\0';
}

status launch_record_make(const launch_gang *gang, int signal, bool memory_killed,
                          launch_record *out)
{
    launch_record record = {.result = launch_gang_result(gang), .signal = signal};
    if (record.result == LAUNCH_FAILED) {
        TRY(launch_ending_read(&gang->workers[gang->cause], &gang->start, &record.cause));
        record.cause.memory_killed = memory_killed;
        snprintf(record.cause.doing, sizeof record.cause.doing, "%s",
                 launch_hang_place(gang, gang->cause));
        char *others = launch_report_others(gang);
        cut(others);
        if (others != NULL) {
            free(record.cause.others);
            record.cause.others = others;
        }
    }
    if (record.result == LAUNCH_FAILED || record.result == LAUNCH_STOPPED)
        record.notes = launch_hang_describe(gang);
    cut(record.notes);
    if (record.notes == NULL)
        record.notes = strdup("");
    if (record.notes == NULL) {
        launch_record_free(&record);
        return FAIL(STATUS_NO_MEMORY, "how this node's ranks ended");
    }
    *out = record;
    return STATUS_OK;
}

void launch_record_free(launch_record *record)
{
    launch_ending_free(&record->cause);
    free(record->notes);
    *record = (launch_record){0};
}

void launch_verdict_free(launch_verdict *verdict)
{
    launch_ending_free(&verdict->cause);
    free(verdict->notes);
    *verdict = (launch_verdict){0};
}

/* The node whose failure tells most; -1: none failed. */
static int worst(const launch_record *records, int n)
{
    int found = -1;
    for (int i = 0; i < n; i++)
        if (records[i].result == LAUNCH_FAILED && !records[i].lost &&
            (found < 0 || records[i].cause.weight > records[found].cause.weight))
            found = i;
    return found;
}

static int find(const launch_record *records, int n, launch_result result)
{
    for (int i = 0; i < n; i++)
        if (records[i].result == result && !records[i].lost)
            return i;
    return -1;
}

/* The node whose launcher was told to stop; -1: none was. */
static int find_stopped(const launch_record *records, int n)
{
    for (int i = 0; i < n; i++)
        if (records[i].signal != 0 && !records[i].lost)
            return i;
    return -1;
}

static int find_lost(const launch_record *records, int n)
{
    for (int i = 0; i < n; i++)
        if (records[i].lost)
            return i;
    return -1;
}

static void judge_stop(const launch_record *records, int node, launch_verdict *out)
{
    int signal = records[node].signal;
    const char *name = sigabbrev_np(signal); /* NULL: SIGRTMIN and beyond have none */
    out->code = 128 + signal;
    out->told_by = node;
    if (name != NULL)
        snprintf(out->text, sizeof out->text, "node %d was stopped by SIG%s", node, name);
    else
        snprintf(out->text, sizeof out->text, "node %d was stopped by signal %d", node, signal);
}

/* What no rank is to blame for. false: nothing of the kind. */
static bool judge_nodes(const launch_record *records, int n, launch_verdict *out)
{
    int lost = find_lost(records, n), stopped = find(records, n, LAUNCH_SIGNALED);
    int broken = find(records, n, LAUNCH_BROKEN);
    if (lost >= 0) {
        out->code = EXIT_CODE_PEER;
        snprintf(out->text, sizeof out->text, "%s", records[lost].text);
    } else if (stopped >= 0) {
        judge_stop(records, stopped, out);
    } else if (broken >= 0) {
        out->code = EXIT_CODE_INTERNAL;
        out->told_by = broken;
        snprintf(out->text, sizeof out->text, "node %d could not start or end its ranks", broken);
    }
    return lost >= 0 || stopped >= 0 || broken >= 0;
}

static status collect_notes(const launch_record *records, int n, char **out)
{
    size_t size_bytes = 1, used = 0;
    for (int i = 0; i < n; i++)
        size_bytes += records[i].notes != NULL ? strlen(records[i].notes) : 0;
    char *text = calloc(1, size_bytes);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "what %d nodes noted", n);
    for (int i = 0; i < n; i++)
        if (records[i].notes != NULL)
            used += (size_t)snprintf(text + used, size_bytes - used, "%s", records[i].notes);
    cut(text);
    *out = text;
    return STATUS_OK;
}

static status copy_ending(const launch_ending *ending, launch_ending *out)
{
    char *text = NULL;
    TRY(launch_ending_write_json(ending, &text));
    status st = launch_ending_read_json(text, out);
    free(text);
    return st;
}

status launch_verdict_make(const launch_record *records, int n, const launch_settings *settings,
                           int generation, launch_verdict *out)
{
    launch_verdict verdict = {.told_by = -1};
    int failed = worst(records, n);
    TRY(collect_notes(records, n, &verdict.notes));
    /* A rank's own failure explains more than what followed from it elsewhere. */
    bool clear = failed >= 0 && records[failed].cause.weight > CAUSE_LOST;
    if (!(clear && find_lost(records, n) < 0) && judge_nodes(records, n, &verdict)) {
        *out = verdict;
        return STATUS_OK;
    }
    if (failed >= 0) {
        status st = copy_ending(&records[failed].cause, &verdict.cause);
        if (st != STATUS_OK) {
            launch_verdict_free(&verdict);
            return st;
        }
        verdict.failed = true;
        verdict.code = launch_ending_code(verdict.cause.wait_status);
        verdict.again = generation < settings->plan.max_restarts &&
                        verdict.cause.start_errno == 0 &&
                        launch_rules_mendable(&settings->rules, verdict.code);
        int stopped = find_stopped(records, n);
        if (verdict.again && stopped >= 0) {
            verdict.again = false; /* the signal ends what the failure would not have */
            judge_stop(records, stopped, &verdict);
        }
    } else if (find(records, n, LAUNCH_PREEMPTED) >= 0) {
        verdict.code = EXIT_CODE_PREEMPTED;
    } else if (find(records, n, LAUNCH_STOPPED) >= 0) {
        verdict.code = EXIT_CODE_INTERNAL;
    }
    *out = verdict;
    return STATUS_OK;
}

status launch_verdict_doubt(const launch_record *own, const launch_settings *settings,
                            int generation, launch_verdict *out)
{
    launch_verdict verdict;
    bool fits = out->again ? generation < settings->plan.max_restarts
                           : own->result == LAUNCH_DONE ||
                                 (out->code != EXIT_SUCCESS && (out->code != EXIT_CODE_PREEMPTED ||
                                                                own->result != LAUNCH_FAILED));
    if (fits)
        return STATUS_OK;
    TRY(launch_verdict_make(own, 1, settings, generation, &verdict));
    verdict.again = false;
    verdict.told_by = -1;
    snprintf(verdict.text, sizeof verdict.text,
             "the verdict in the store (%s, exit code %d) does not fit what happened on node %d, "
             "and is not believed: who else reaches the store's port?",
             out->again ? "start again" : "the end", out->code, settings->plan.node_rank);
    launch_verdict_free(out);
    *out = verdict;
    return STATUS_OK;
}

/* An ending inside a record or verdict: its own JSON as a text. */
static status set_cause(json_t *object, const launch_ending *cause)
{
    char *text = NULL;
    TRY(launch_ending_write_json(cause, &text));
    json_object_set_new(object, "cause", json_string(text));
    free(text);
    return STATUS_OK;
}

static status dump(json_t *object, status st, char **out)
{
    if (st == STATUS_OK)
        st = json_text_print(object, JSON_COMPACT, out);
    json_decref(object);
    return st;
}

/* JSON takes up to a hundred times as much memory as text: so its length is looked at first. */
static status load(const char *text, json_t **out)
{
    json_error_t error;
    size_t size_bytes = strlen(text);
    if (size_bytes > JSON_BYTES)
        return FAIL(STATUS_PEER, "another launcher sent nonsense: %zu bytes, at most %d are taken",
                    size_bytes, JSON_BYTES);
    *out = json_text_parse(text, size_bytes, JSON_REJECT_DUPLICATES, &error);
    return *out != NULL ? STATUS_OK
                        : FAIL(STATUS_PEER, "another launcher sent nonsense: %s", error.text);
}

static status read_cause(const json_t *object, bool *there, launch_ending *out)
{
    const char *cause = json_string_value(json_object_get(object, "cause"));
    *there = cause != NULL;
    return cause != NULL ? launch_ending_read_json(cause, out) : STATUS_OK;
}

static status read_notes(const json_t *object, char **out)
{
    const char *notes = json_string_value(json_object_get(object, "notes"));
    *out = strdup(notes != NULL ? notes : "");
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "another node's notes");
}

status launch_record_write(const launch_record *record, char **out)
{
    json_t *object = json_object();
    json_object_set_new(object, "result", json_integer((json_int_t)record->result));
    json_object_set_new(object, "signal", json_integer(record->signal));
    json_object_set_new(object, "notes",
                        json_value_text(record->notes != NULL ? record->notes : ""));
    status st = STATUS_OK;
    if (record->result == LAUNCH_FAILED)
        st = set_cause(object, &record->cause);
    return dump(object, st, out);
}

status launch_record_read(const char *text, launch_record *out)
{
    json_t *object = NULL;
    launch_record record = {0};
    int result = 0;
    bool there = false;
    TRY(load(text, &object));
    status st = json_value_integer(object, "result", LAUNCH_DONE, LAUNCH_BROKEN, &result);
    if (st == STATUS_OK)
        st = json_value_integer(object, "signal", 0, NSIG - 1, &record.signal);
    if (st == STATUS_OK)
        st = read_notes(object, &record.notes);
    if (st == STATUS_OK)
        st = read_cause(object, &there, &record.cause);
    record.result = (launch_result)result;
    if (st == STATUS_OK && there != (record.result == LAUNCH_FAILED))
        st = FAIL(STATUS_PEER, "another launcher's record does not say who failed");
    if (st == STATUS_OK && record.result == LAUNCH_SIGNALED && record.signal == 0)
        st = FAIL(STATUS_PEER, "another launcher's record does not say by which signal it ended");
    json_decref(object);
    if (st == STATUS_OK)
        *out = record;
    else
        launch_record_free(&record);
    return st;
}

status launch_verdict_write(const launch_verdict *verdict, char **out)
{
    json_t *object = json_object();
    json_object_set_new(object, "again", json_boolean(verdict->again));
    json_object_set_new(object, "code", json_integer(verdict->code));
    json_object_set_new(object, "text", json_value_text(verdict->text));
    json_object_set_new(object, "told_by", json_integer(verdict->told_by));
    json_object_set_new(object, "notes", json_value_text(verdict->notes));
    return dump(object, verdict->failed ? set_cause(object, &verdict->cause) : STATUS_OK, out);
}

status launch_verdict_read(const char *text, launch_verdict *out)
{
    json_t *object = NULL;
    launch_verdict verdict = {0};
    TRY(load(text, &object));
    const json_t *told_by = json_object_get(object, "told_by");
    verdict.again = json_is_true(json_object_get(object, "again"));
    verdict.told_by = json_is_integer(told_by) ? (int)json_integer_value(told_by) : -1;
    status st = json_value_integer(object, "code", 0, 255, &verdict.code);
    if (st == STATUS_OK)
        st = json_value_copy(object, "text", verdict.text, sizeof verdict.text);
    if (st == STATUS_OK)
        st = read_notes(object, &verdict.notes);
    if (st == STATUS_OK)
        st = read_cause(object, &verdict.failed, &verdict.cause);
    json_decref(object);
    if (st == STATUS_OK)
        *out = verdict;
    else
        launch_verdict_free(&verdict);
    return st;
}
