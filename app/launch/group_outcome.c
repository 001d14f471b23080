#include "app/launch/group_outcome.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    node_report_cut(text);
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
        outcome.again = attempt < spec->max_restarts && outcome.cause.start_errno == 0 &&
                        worker_spec_may_restart(spec, outcome.code);
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
    bool fits = out->again ? attempt < spec->max_restarts
                           : own->state == AGENT_SUCCEEDED ||
                                 (out->code != EXIT_SUCCESS &&
                                  (out->code != EXIT_CODE_PREEMPTED || own->state != AGENT_FAILED));
    if (fits)
        return STATUS_OK;
    TRY(group_outcome_make(own, 1, spec, attempt, &outcome));
    outcome.again = false;
    outcome.told_by = -1;
    snprintf(outcome.text, sizeof outcome.text,
             "the outcome in the store (%s, exit code %d) does not fit what happened on node %d, "
             "and is not believed: who else reaches the store's port?",
             out->again ? "start again" : "the end", out->code, spec->node_rank);
    group_outcome_free(out);
    *out = outcome;
    return STATUS_OK;
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
    return node_report_print(object, out);
}

status group_outcome_read(const char *text, group_outcome *out)
{
    json_t *object = NULL;
    group_outcome outcome = {0};
    TRY(node_report_parse(text, &object));
    const json_t *told_by = json_object_get(object, "told_by");
    outcome.again = json_is_true(json_object_get(object, "again"));
    outcome.told_by = json_is_integer(told_by) ? (int)json_integer_value(told_by) : -1;
    status st = json_value_integer(object, "code", 0, 255, &outcome.code);
    if (st == STATUS_OK)
        st = json_value_copy(object, "text", outcome.text, sizeof outcome.text);
    if (st == STATUS_OK)
        st = node_report_read_notes(object, &outcome.notes);
    if (st == STATUS_OK)
        st = node_report_read_cause(object, &outcome.failed, &outcome.cause);
    json_decref(object);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}
