#include "app/launch/group_outcome.h"

#include "app/exit_codes.h"
#include "app/json_value.h"
#include "app/launch/failure_report.h"
#include "base/json_text.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_BYTES = 64 << 10, /* of notes, and of what is said of other ranks */
    JSON_BYTES = 1 << 20,  /* of a record or outcome: more than the longest honest one has */
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

status node_report_make(const worker_group *group, agent_state state, int signal,
                        bool memory_killed, node_report *out)
{
    node_report report = {.state = state, .signal = signal};
    if (report.state == AGENT_FAILED) {
        TRY(process_failure_read(&group->workers[group->cause], &group->start, &report.cause));
        report.cause.memory_killed = memory_killed;
        snprintf(report.cause.doing, sizeof report.cause.doing, "%s",
                 worker_group_last_place(group, group->cause));
        char *others = failure_report_others(group);
        cut(others);
        if (others != NULL) {
            free(report.cause.others);
            report.cause.others = others;
        }
    }
    if (report.state == AGENT_FAILED || report.state == AGENT_STOPPED)
        report.notes = worker_group_describe_seen(group);
    cut(report.notes);
    if (report.notes == NULL)
        report.notes = strdup("");
    if (report.notes == NULL) {
        node_report_free(&report);
        return FAIL(STATUS_NO_MEMORY, "how this node's ranks ended");
    }
    *out = report;
    return STATUS_OK;
}

void node_report_free(node_report *report)
{
    process_failure_free(&report->cause);
    free(report->notes);
    *report = (node_report){0};
}

void group_outcome_free(group_outcome *outcome)
{
    process_failure_free(&outcome->cause);
    free(outcome->notes);
    *outcome = (group_outcome){0};
}

/* The node whose failure tells most; -1: none failed. */
static int worst(const node_report *reports, int n)
{
    int found = -1;
    for (int i = 0; i < n; i++)
        if (reports[i].state == AGENT_FAILED && !reports[i].lost &&
            (found < 0 || reports[i].cause.weight > reports[found].cause.weight))
            found = i;
    return found;
}

static int find(const node_report *reports, int n, agent_state state)
{
    for (int i = 0; i < n; i++)
        if (reports[i].state == state && !reports[i].lost)
            return i;
    return -1;
}

/* The node whose launcher was told to stop; -1: none was. */
static int find_stopped(const node_report *reports, int n)
{
    for (int i = 0; i < n; i++)
        if (reports[i].signal != 0 && !reports[i].lost)
            return i;
    return -1;
}

static int find_lost(const node_report *reports, int n)
{
    for (int i = 0; i < n; i++)
        if (reports[i].lost)
            return i;
    return -1;
}

static void judge_stop(const node_report *reports, int node, group_outcome *out)
{
    int signal = reports[node].signal;
    const char *name = sigabbrev_np(signal); /* NULL: SIGRTMIN and beyond have none */
    out->code = 128 + signal;
    out->told_by = node;
    if (name != NULL)
        snprintf(out->text, sizeof out->text, "node %d was stopped by SIG%s", node, name);
    else
        snprintf(out->text, sizeof out->text, "node %d was stopped by signal %d", node, signal);
}

/* What no rank is to blame for. false: nothing of the kind. */
static bool judge_nodes(const node_report *reports, int n, group_outcome *out)
{
    int lost = find_lost(reports, n), stopped = find(reports, n, AGENT_SIGNALED);
    int broken = find(reports, n, AGENT_BROKEN);
    if (lost >= 0) {
        out->code = EXIT_CODE_PEER;
        snprintf(out->text, sizeof out->text, "%s", reports[lost].text);
    } else if (stopped >= 0) {
        judge_stop(reports, stopped, out);
    } else if (broken >= 0) {
        out->code = EXIT_CODE_INTERNAL;
        out->told_by = broken;
        snprintf(out->text, sizeof out->text, "node %d could not start or end its ranks", broken);
    }
    return lost >= 0 || stopped >= 0 || broken >= 0;
}

static status collect_notes(const node_report *reports, int n, char **out)
{
    size_t size_bytes = 1, used = 0;
    for (int i = 0; i < n; i++)
        size_bytes += reports[i].notes != NULL ? strlen(reports[i].notes) : 0;
    char *text = calloc(1, size_bytes);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "what %d nodes noted", n);
    for (int i = 0; i < n; i++)
        if (reports[i].notes != NULL)
            used += (size_t)snprintf(text + used, size_bytes - used, "%s", reports[i].notes);
    cut(text);
    *out = text;
    return STATUS_OK;
}

status group_outcome_make(const node_report *reports, int n, const worker_spec *spec, int attempt,
                          group_outcome *out)
{
    group_outcome outcome = {.told_by = -1};
    int failed = worst(reports, n);
    TRY(collect_notes(reports, n, &outcome.notes));
    /* A rank's own failure explains more than what followed from it elsewhere. */
    bool clear = failed >= 0 && reports[failed].cause.weight > CAUSE_LOST;
    if (!(clear && find_lost(reports, n) < 0) && judge_nodes(reports, n, &outcome)) {
        *out = outcome;
        return STATUS_OK;
    }
    if (failed >= 0) {
        status st = process_failure_copy(&reports[failed].cause, &outcome.cause);
        if (st != STATUS_OK) {
            group_outcome_free(&outcome);
            return st;
        }
        outcome.failed = true;
        outcome.code = process_failure_code(outcome.cause.wait_status);
        outcome.again = attempt < spec->plan.max_restarts && outcome.cause.start_errno == 0 &&
                        shutdown_policy_mendable(&spec->policy, outcome.code);
        int stopped = find_stopped(reports, n);
        if (outcome.again && stopped >= 0) {
            outcome.again = false; /* the signal ends what the failure would not have */
            judge_stop(reports, stopped, &outcome);
        }
    } else if (find(reports, n, AGENT_PREEMPTED) >= 0) {
        outcome.code = EXIT_CODE_PREEMPTED;
    } else if (find(reports, n, AGENT_STOPPED) >= 0) {
        outcome.code = EXIT_CODE_INTERNAL;
    }
    *out = outcome;
    return STATUS_OK;
}

status group_outcome_doubt(const node_report *own, const worker_spec *spec, int attempt,
                           group_outcome *out)
{
    group_outcome outcome;
    bool fits = out->again ? attempt < spec->plan.max_restarts
                           : own->state == AGENT_SUCCEEDED ||
                                 (out->code != EXIT_SUCCESS &&
                                  (out->code != EXIT_CODE_PREEMPTED || own->state != AGENT_FAILED));
    if (fits)
        return STATUS_OK;
    TRY(group_outcome_make(own, 1, spec, attempt, &outcome));
    outcome.again = false;
    outcome.told_by = -1;
    snprintf(outcome.text, sizeof outcome.text,
             "the verdict in the store (%s, exit code %d) does not fit what happened on node %d, "
             "and is not believed: who else reaches the store's port?",
             out->again ? "start again" : "the end", out->code, spec->plan.node_rank);
    group_outcome_free(out);
    *out = outcome;
    return STATUS_OK;
}

static status dump(json_t *object, char **out)
{
    status st = json_text_print(object, JSON_COMPACT, out);
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

static status read_cause(const json_t *object, bool *there, process_failure *out)
{
    const json_t *cause = json_object_get(object, "cause");
    *there = cause != NULL;
    return cause != NULL ? process_failure_from_json(cause, out) : STATUS_OK;
}

static status read_notes(const json_t *object, char **out)
{
    const char *notes = json_string_value(json_object_get(object, "notes"));
    *out = strdup(notes != NULL ? notes : "");
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "another node's notes");
}

status node_report_write(const node_report *report, char **out)
{
    json_t *object = json_object();
    json_object_set_new(object, "result", json_integer(report->state - AGENT_SUCCEEDED));
    json_object_set_new(object, "signal", json_integer(report->signal));
    json_object_set_new(object, "notes",
                        json_value_text(report->notes != NULL ? report->notes : ""));
    if (report->state == AGENT_FAILED)
        json_object_set_new(object, "cause", process_failure_to_json(&report->cause));
    return dump(object, out);
}

status node_report_read(const char *text, node_report *out)
{
    json_t *object = NULL;
    node_report report = {0};
    int result = 0;
    bool there = false;
    TRY(load(text, &object));
    status st = json_value_integer(object, "result", 0, AGENT_BROKEN - AGENT_SUCCEEDED, &result);
    if (st == STATUS_OK)
        st = json_value_integer(object, "signal", 0, NSIG - 1, &report.signal);
    if (st == STATUS_OK)
        st = read_notes(object, &report.notes);
    if (st == STATUS_OK)
        st = read_cause(object, &there, &report.cause);
    report.state = (agent_state)(AGENT_SUCCEEDED + result);
    if (st == STATUS_OK && there != (report.state == AGENT_FAILED))
        st = FAIL(STATUS_PEER, "another launcher's record does not say who failed");
    if (st == STATUS_OK && report.state == AGENT_SIGNALED && report.signal == 0)
        st = FAIL(STATUS_PEER, "another launcher's record does not say by which signal it ended");
    json_decref(object);
    if (st == STATUS_OK)
        *out = report;
    else
        node_report_free(&report);
    return st;
}

status group_outcome_write(const group_outcome *outcome, char **out)
{
    json_t *object = json_object();
    json_object_set_new(object, "again", json_boolean(outcome->again));
    json_object_set_new(object, "code", json_integer(outcome->code));
    json_object_set_new(object, "text", json_value_text(outcome->text));
    json_object_set_new(object, "told_by", json_integer(outcome->told_by));
    json_object_set_new(object, "notes", json_value_text(outcome->notes));
    if (outcome->failed)
        json_object_set_new(object, "cause", process_failure_to_json(&outcome->cause));
    return dump(object, out);
}

status group_outcome_read(const char *text, group_outcome *out)
{
    json_t *object = NULL;
    group_outcome outcome = {0};
    TRY(load(text, &object));
    const json_t *told_by = json_object_get(object, "told_by");
    outcome.again = json_is_true(json_object_get(object, "again"));
    outcome.told_by = json_is_integer(told_by) ? (int)json_integer_value(told_by) : -1;
    status st = json_value_integer(object, "code", 0, 255, &outcome.code);
    if (st == STATUS_OK)
        st = json_value_copy(object, "text", outcome.text, sizeof outcome.text);
    if (st == STATUS_OK)
        st = read_notes(object, &outcome.notes);
    if (st == STATUS_OK)
        st = read_cause(object, &outcome.failed, &outcome.cause);
    json_decref(object);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}
