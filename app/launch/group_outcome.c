#include "app/launch/group_outcome.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "base/json_text.h"
#include "base/text.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void group_outcome_free(group_outcome *outcome)
{
    process_failure_free(&outcome->cause);
    free(outcome->notes);
    free(outcome->lost);
    *outcome = (group_outcome){0};
}

/* The first report of each kind; NULL: there is none. */
typedef struct firsts {
    const node_report *lost;
    const node_report *by_state[AGENT_STATES]; /* of AGENT_FAILED the one that tells most */
    const node_report *signaled;               /* its agent was told to stop, whatever came */
    int n_lost, n_signaled;
    bool unmet; /* ranks of some node had not met all others */
} firsts;

static firsts find_firsts(const node_report *reports, int n)
{
    firsts found = {0};
    for (int i = n - 1; i >= 0; i--) {
        const node_report *report = &reports[i], **same = &found.by_state[report->state];
        if (report->lost) {
            found.lost = report;
            found.n_lost++;
            continue;
        }
        found.unmet = found.unmet || report->unmet;
        found.n_signaled += report->signal != 0;
        if (report->signal != 0)
            found.signaled = report;
        if (report->state != AGENT_FAILED || *same == NULL ||
            report->cause.priority >= (*same)->cause.priority)
            *same = report;
    }
    return found;
}

static void blame_signal(const node_report *report, group_outcome *out)
{
    const char *name = sigabbrev_np(report->signal); /* NULL: SIGRTMIN and beyond have none */
    out->code = 128 + report->signal;
    out->told_by = report->node;
    if (name != NULL)
        snprintf(out->text, sizeof out->text, "node %d was stopped by SIG%s", report->node, name);
    else
        snprintf(out->text, sizeof out->text, "node %d was stopped by signal %d", report->node,
                 report->signal);
}

/* What no rank is to blame for. false: nothing of the kind. */
static bool blame_node(const firsts *found, group_outcome *out)
{
    const node_report *stopped = found->by_state[AGENT_SIGNALED];
    const node_report *broken = found->by_state[AGENT_BROKEN];
    if (found->lost != NULL) {
        out->code = EXIT_CODE_PEER;
        snprintf(out->text, sizeof out->text, "%s", found->lost->text);
    } else if (stopped != NULL) {
        blame_signal(stopped, out);
    } else if (broken != NULL) {
        out->code = EXIT_CODE_INTERNAL;
        out->told_by = broken->node;
        snprintf(out->text, sizeof out->text, "node %d could not start or end its ranks",
                 broken->node);
    }
    return found->lost != NULL || stopped != NULL || broken != NULL;
}

static status collect_notes(const node_report *reports, int n, char **out)
{
    text_stream notes;
    TRY(text_stream_open(&notes));
    for (int i = 0; i < n; i++)
        fputs(reports[i].notes != NULL ? reports[i].notes : "", notes.file);
    TRY(text_stream_close(&notes, out, NULL));
    node_report_cut_notes(*out);
    return STATUS_OK;
}

static void name_hung(const node_report *reports, int n, char out[HANG_REPORT_WHO_BYTES])
{
    for (int i = 0; i < n; i++)
        if (out[0] == '\0' || strchr(reports[i].hangs, '(') != NULL)
            memcpy(out, reports[i].hangs, HANG_REPORT_WHO_BYTES);
}

/* All nodes start again after a rank's failure if that may help and nobody was told to stop. */
static status blame_rank(const firsts *found, const worker_spec *spec, group_outcome *out)
{
    const node_report *failed = found->by_state[AGENT_FAILED];
    if (failed == NULL) {
        if (found->by_state[AGENT_DIVERGED] != NULL)
            out->code = EXIT_CODE_DIVERGED;
        else if (found->by_state[AGENT_PREEMPTED] != NULL)
            out->code = EXIT_CODE_PREEMPTED;
        else if (found->by_state[AGENT_STOPPED] != NULL)
            out->code = EXIT_CODE_INTERNAL;
        return STATUS_OK;
    }
    TRY(process_failure_copy(&failed->cause, &out->cause));
    out->failed = true;
    out->code = process_failure_code(out->cause.wait_status);
    bool may_help = spec->restarts < spec->max_restarts && out->cause.start_errno == 0 &&
                    worker_spec_may_restart(spec, out->code);
    bool ends_all = found->signaled != NULL && !worker_spec_is_elastic(spec);
    out->again = out->counts = may_help && !ends_all;
    if (may_help && ends_all)
        blame_signal(found->signaled, out); /* it ends what the failure would not have */
    return STATUS_OK;
}

static status list_lost(const node_report *reports, int n, const firsts *found, group_outcome *out)
{
    if (found->n_lost == 0)
        return STATUS_OK;
    out->lost = calloc((size_t)found->n_lost, sizeof *out->lost);
    if (out->lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d lost nodes", found->n_lost);
    for (int i = 0; i < n; i++)
        if (reports[i].lost)
            out->lost[out->n_lost++] = i;
    return STATUS_OK;
}

/* What an elastic job does that no rank is to blame for: the others go on. Ranks that have left by
 * themselves, for no reason that anybody knows, are a failure; but if they had not all met, the
 * next round is one of fewer nodes. */
static void go_on(const firsts *found, const worker_spec *spec, int n, group_outcome *out)
{
    if (found->n_signaled == n && found->by_state[AGENT_LEFT] != NULL)
        blame_signal(found->by_state[AGENT_LEFT], out);
    bool changes =
        found->lost != NULL || found->signaled != NULL || found->by_state[AGENT_LEFT] != NULL;
    bool ends = found->n_signaled == n || found->by_state[AGENT_BROKEN] != NULL ||
                found->by_state[AGENT_DIVERGED] != NULL ||
                (found->by_state[AGENT_PREEMPTED] != NULL && !changes);
    bool unexplained = !changes && found->by_state[AGENT_STOPPED] != NULL;
    bool unmet = unexplained && found->unmet && n > 1;
    bool counts = unexplained && !unmet;
    if (ends || (counts && spec->restarts >= spec->max_restarts) || (!changes && !unexplained))
        return;
    out->again = true;
    out->counts = counts;
    out->unmet = unmet;
    if (unmet)
        snprintf(
            out->text, sizeof out->text,
            "round %lld does not begin: its ranks have not all met (is a port or a way between "
            "two nodes closed?); the next one is without node %d, if enough are left",
            (long long)spec->round, n - 1);
}

status group_outcome_make(const node_report *reports, int n, const worker_spec *spec,
                          group_outcome *out)
{
    status st = STATUS_OK;
    group_outcome outcome = {.told_by = -1};
    const firsts found = find_firsts(reports, n);
    const node_report *failed = found.by_state[AGENT_FAILED];
    TRY(collect_notes(reports, n, &outcome.notes));
    name_hung(reports, n, outcome.hangs);
    /* A rank's own failure explains more than what followed from it elsewhere. */
    bool clear = failed != NULL && failed->cause.priority > CAUSE_LOST && found.lost == NULL;
    if (clear || !blame_node(&found, &outcome))
        st = blame_rank(&found, spec, &outcome);
    if (st == STATUS_OK)
        st = list_lost(reports, n, &found, &outcome);
    if (st == STATUS_OK && worker_spec_is_elastic(spec) && !outcome.failed)
        go_on(&found, spec, n, &outcome);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}

status group_outcome_doubt(const node_report *own, const worker_spec *spec, group_outcome *out)
{
    group_outcome outcome;
    bool uncounted = !out->counts && worker_spec_is_elastic(spec);
    bool fits = out->again ? uncounted || spec->restarts < spec->max_restarts
                           : own->state == AGENT_SUCCEEDED ||
                                 (out->code != EXIT_SUCCESS &&
                                  (out->code != EXIT_CODE_PREEMPTED || own->state != AGENT_FAILED));
    if (fits)
        return STATUS_OK;
    TRY(group_outcome_make(own, 1, spec, &outcome));
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
    json_object_set_new(object, "counts", json_boolean(outcome->counts));
    json_object_set_new(object, "unmet", json_boolean(outcome->unmet));
    json_object_set_new(object, "code", json_integer(outcome->code));
    json_object_set_new(object, "text", json_value_text(outcome->text));
    json_object_set_new(object, "told_by", json_integer(outcome->told_by));
    json_object_set_new(object, "hangs", json_value_text(outcome->hangs));
    json_object_set_new(object, "notes", json_value_text(outcome->notes));
    json_t *lost = json_array();
    for (int i = 0; i < outcome->n_lost; i++)
        json_array_append_new(lost, json_integer(outcome->lost[i]));
    json_object_set_new(object, "lost", lost);
    if (outcome->failed)
        json_object_set_new(object, "cause", process_failure_to_json(&outcome->cause));
    status st = json_text_print(object, JSON_COMPACT, out);
    json_decref(object);
    return st;
}

static status read_lost(const json_t *list, group_outcome *out)
{
    size_t n = json_array_size(list);
    out->lost = calloc(n + 1, sizeof *out->lost);
    if (out->lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu lost nodes", n);
    for (size_t i = 0; i < n; i++) {
        json_int_t node = json_integer_value(json_array_get(list, i));
        if (node < 0 || node >= INT_MAX)
            return FAIL(STATUS_PEER, "another launcher's outcome names no node");
        out->lost[out->n_lost++] = (int)node;
    }
    return STATUS_OK;
}

static status read_object(const json_t *object, group_outcome *out)
{
    const json_t *cause = json_object_get(object, "cause");
    const json_t *told_by = json_object_get(object, "told_by");
    out->again = json_is_true(json_object_get(object, "again"));
    out->counts = json_is_true(json_object_get(object, "counts"));
    out->unmet = json_is_true(json_object_get(object, "unmet"));
    out->failed = cause != NULL;
    out->told_by = json_is_integer(told_by) ? (int)json_integer_value(told_by) : -1;
    TRY(json_value_integer(object, "code", 0, 255, &out->code));
    TRY(json_value_copy(object, "text", out->text, sizeof out->text));
    TRY(json_value_copy(object, "hangs", out->hangs, sizeof out->hangs));
    TRY(node_report_read_notes(object, &out->notes));
    TRY(read_lost(json_object_get(object, "lost"), out));
    return cause != NULL ? process_failure_from_json(cause, &out->cause) : STATUS_OK;
}

status group_outcome_read(const char *text, group_outcome *out)
{
    json_t *object = NULL;
    group_outcome outcome = {0};
    TRY(node_report_parse(text, &object));
    status st = read_object(object, &outcome);
    json_decref(object);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}
