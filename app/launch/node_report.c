#include "app/launch/node_report.h"

#include "app/common/json_value.h"
#include "base/json_text.h"
#include "base/text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { NOTES_BYTES = 64 << 10 };

void node_report_cut_notes(char *notes)
{
    if (notes == NULL || strlen(notes) <= NOTES_BYTES)
        return;
    notes[NOTES_BYTES] = '\0';
    char *end = strrchr(notes, '\n');
    if (end != NULL)
        end[1] = '\0';
}

/* It had to be killed, so it may be the one that the others waited for. */
static bool is_stuck(const worker *w)
{
    return w->was_stopped && WIFSIGNALED(w->wait_status) && WTERMSIG(w->wait_status) == SIGKILL;
}

/* What became of the other workers, as lines of the report on the cause. Free with free(); NULL: no
 * memory. */
static char *describe_others(const worker_group *group)
{
    char failure[FAILURE_TEXT_BYTES], *text = NULL;
    int shown = 0, stopped = 0;
    text_stream lines;
    if (text_stream_open(&lines) != STATUS_OK)
        return NULL;
    FILE *out = lines.file;
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (i == group->cause || w->pid == 0 || w->running || w->wait_status == 0)
            continue;
        if (w->was_stopped) {
            stopped++;
            continue;
        }
        process_failure_text(w->wait_status, w->start_errno, failure);
        fprintf(out, "%srank %d: %s", shown++ ? ", " : "  also: ", w->rank, failure);
    }
    if (shown > 0)
        fputc('\n', out);
    if (stopped > 0)
        fprintf(out, "  %d other rank%s stopped\n", stopped, stopped == 1 ? " was" : "s were");
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (is_stuck(w))
            fprintf(out, "  rank %d (pid %d) did not end on SIGTERM: it was stuck, or stopped\n",
                    w->rank, (int)w->pid);
    }
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

status node_report_make(const worker_group *group, agent_state state, int signal,
                        bool memory_killed, node_report *out)
{
    node_report report = {.node = group->start.spec->node_rank, .state = state, .signal = signal};
    for (int i = 0; i < group->n; i++)
        report.unmet = report.unmet || (group->workers[i].waits && group->workers[i].unmet);
    if (report.state == AGENT_FAILED) {
        TRY(process_failure_read(&group->workers[group->cause], &group->start, &report.cause));
        report.cause.memory_killed = memory_killed;
        snprintf(report.cause.doing, sizeof report.cause.doing, "%s",
                 worker_group_last_place(group, group->cause));
        char *others = describe_others(group);
        node_report_cut_notes(others);
        if (others != NULL) {
            free(report.cause.others);
            report.cause.others = others;
        }
    }
    if (report.state == AGENT_FAILED || report.state == AGENT_STOPPED) {
        report.notes = worker_group_describe_ranks(group);
        worker_group_name_hung(group, report.hangs);
    }
    node_report_cut_notes(report.notes);
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

status node_report_write(const node_report *report, char **out)
{
    json_t *object = json_object();
    json_object_set_new(object, "result", json_integer(report->state - AGENT_SUCCEEDED));
    json_object_set_new(object, "signal", json_integer(report->signal));
    json_object_set_new(object, "unmet", json_boolean(report->unmet));
    json_object_set_new(object, "hangs", json_value_text(report->hangs));
    json_object_set_new(object, "notes",
                        json_value_text(report->notes != NULL ? report->notes : ""));
    if (report->state == AGENT_FAILED)
        json_object_set_new(object, "cause", process_failure_to_json(&report->cause));
    status st = json_text_print(object, JSON_COMPACT, out);
    json_decref(object);
    return st;
}

status node_report_parse(const char *text, json_t **out)
{
    enum { JSON_BYTES = 1 << 20 }; /* more than the longest honest one has */
    json_error_t error;
    size_t size_bytes = strlen(text);
    if (size_bytes > JSON_BYTES)
        return FAIL(STATUS_PEER,
                    "another launcher's message makes no sense: %zu bytes, at most %d are taken",
                    size_bytes, JSON_BYTES);
    *out = json_text_parse(text, size_bytes, JSON_REJECT_DUPLICATES, &error);
    return *out != NULL
               ? STATUS_OK
               : FAIL(STATUS_PEER, "another launcher's message makes no sense: %s", error.text);
}

status node_report_read_notes(const json_t *object, char **out)
{
    const char *text = json_string_value(json_object_get(object, "notes"));
    *out = strdup(text != NULL ? text : "");
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "another launcher's notes");
}

static status read_object(const json_t *object, const worker_spec *spec, node_report *out)
{
    const json_t *cause = json_object_get(object, "cause");
    int result = 0;
    TRY(json_value_integer(object, "result", 0, AGENT_STATES - 1 - AGENT_SUCCEEDED, &result));
    TRY(json_value_integer(object, "signal", 0, NSIG - 1, &out->signal));
    out->unmet = json_is_true(json_object_get(object, "unmet"));
    TRY(json_value_copy(object, "hangs", out->hangs, sizeof out->hangs));
    TRY(node_report_read_notes(object, &out->notes));
    if (cause != NULL)
        TRY(process_failure_from_json(cause, &out->cause));
    out->state = (agent_state)(AGENT_SUCCEEDED + result);
    if ((cause != NULL) != (out->state == AGENT_FAILED))
        return FAIL(STATUS_PEER, "another launcher's report does not say who failed");
    int local_rank = out->cause.rank - worker_spec_first_rank(spec, out->node);
    if (cause != NULL && (local_rank < 0 || local_rank >= worker_spec_ranks_of(spec, out->node)))
        return FAIL(STATUS_PEER,
                    "another launcher's message makes no sense: rank %d is not its own",
                    out->cause.rank);
    if (out->state == AGENT_SIGNALED && out->signal == 0)
        return FAIL(STATUS_PEER, "another launcher's report does not say by which signal it ended");
    out->cause.node = out->node; /* whatever it says */
    return STATUS_OK;
}

status node_report_read(const char *text, int node, const worker_spec *spec, node_report *out)
{
    json_t *object = NULL;
    node_report report = {.node = node};
    TRY(node_report_parse(text, &object));
    status st = read_object(object, spec, &report);
    json_decref(object);
    if (st == STATUS_OK)
        *out = report;
    else
        node_report_free(&report);
    return st;
}
