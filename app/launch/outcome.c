#include "app/launch/outcome.h"

#include "app/common/error_file.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/run_log.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILURE_TEXT_BYTES = 160, NOTES_BYTES = 64 << 10 };

/* What a shell calls it: the exit code, or 128 + signal. */
static int exit_code_of(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* "exit code 7", "SIGKILL (Killed)" */
static void describe_end(int wait_status, int start_errno, char out[FAILURE_TEXT_BYTES])
{
    if (start_errno != 0) {
        snprintf(out, FAILURE_TEXT_BYTES, "could not be executed: %s", strerror(start_errno));
    } else if (WIFSIGNALED(wait_status)) {
        const char *name = sigabbrev_np(WTERMSIG(wait_status));
        snprintf(out, FAILURE_TEXT_BYTES, "SIG%s (%s)", name ? name : "?",
                 strsignal(WTERMSIG(wait_status)));
    } else {
        snprintf(out, FAILURE_TEXT_BYTES, "exit code %d", WEXITSTATUS(wait_status));
    }
}

/* NULL is an empty text. */
static const char *text_of(const char *text)
{
    return text != NULL ? text : "";
}

static status copy_text(const char *text, char **out)
{
    *out = strdup(text_of(text));
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "how a rank ended");
}

static void free_cause(process_failure *failure)
{
    free(failure->others);
    free(failure->words);
    *failure = (process_failure){0};
}

static void error_file_path(const process_failure *failure, char out[FILE_PATH_BYTES])
{
    if (failure->folder[0] == '\0' || file_join(failure->folder, "error.json", out) != STATUS_OK)
        out[0] = '\0';
}

static status read_cause(const worker *w, const worker_start *start, process_failure *out)
{
    const worker_spec *spec = start->spec;
    char path[FILE_PATH_BYTES];
    process_failure failure = {.node = spec->node_rank,
                               .rank = w->rank,
                               .local_rank = w->local_rank,
                               .pid = (int)w->pid,
                               .wait_status = w->wait_status,
                               .start_errno = w->start_errno,
                               .priority = worker_failure_priority(w),
                               .after_s = clock_seconds(w->ended_ns - start->started_ns)};
    if (gethostname(failure.host, sizeof failure.host - 1) != 0)
        strcpy(failure.host, "?");
    worker_logs_file(&spec->logs, w->attempt, w->local_rank, "", failure.folder);
    error_file_path(&failure, path);
    if (path[0] != '\0')
        error_file_read_message(path, failure.says, sizeof failure.says);
    const output_stream *err = &w->err;
    int64_t first = err->lines_seen > OUTPUT_LINES ? err->lines_seen - OUTPUT_LINES : 0;
    text_stream words;
    TRY(text_stream_open(&words));
    for (int64_t k = first; k < err->lines_seen; k++)
        fprintf(words.file, "%s\n", output_stream_line(err, k));
    TRY(text_stream_close(&words, &failure.words, NULL));
    *out = failure;
    return STATUS_OK;
}

static status write_error_file(const process_failure *failure, const char *path)
{
    char how[FAILURE_TEXT_BYTES], said[FAILURE_TEXT_BYTES + 64];
    describe_end(failure->wait_status, failure->start_errno, how);
    snprintf(said, sizeof said, "rank %d (pid %d): %s", failure->rank, failure->pid, how);
    error_file file = {.message = failure->says[0] != '\0' ? failure->says : said,
                       .callstack = failure->words,
                       .exit_code = exit_code_of(failure->wait_status)};
    return error_file_write(path, &file);
}

static void pass_on(const process_failure *failure, bool here)
{
    char path[FILE_PATH_BYTES];
    const char *to = environment_text("TORCHELASTIC_ERROR_FILE");
    int code = exit_code_of(failure->wait_status);
    if (to == NULL)
        return;
    error_file_path(failure, path);
    if (here && path[0] != '\0' && error_file_copy(path, code, to) == STATUS_OK)
        return;
    if (write_error_file(failure, to) != STATUS_OK)
        LOG_W("error file not written: %s", status_text());
}

static json_t *cause_to_json(const process_failure *failure)
{
    json_t *lines = json_array();
    for (const char *at = failure->words; *at != '\0'; at += strcspn(at, "\n") + 1) {
        char line[OUTPUT_KEPT_BYTES + 1];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        json_array_append_new(lines, json_value_text(line));
    }
    /* clang-format off */
    return json_pack("{si si si si si si si sf sb so so so so so so}",
        "node", failure->node, "rank", failure->rank, "local_rank", failure->local_rank,
        "pid", failure->pid, "wait_status", failure->wait_status,
        "start_errno", failure->start_errno, "weight", (int)failure->priority,
        "after_s", failure->after_s, "memory_killed", failure->memory_killed,
        "host", json_value_text(failure->host), "says", json_value_text(failure->says),
        "doing", json_value_text(failure->doing), "folder", json_value_text(failure->folder),
        "others", json_value_text(text_of(failure->others)), "lines", lines);
    /* clang-format on */
}

/* From another node: every value is checked. STATUS_PEER if one is out of its range; what was read
 * by then is to be freed. */
static status cause_from_json(const json_t *object, process_failure *out)
{
    TRY(json_value_integer(object, "node", 0, INT_MAX, &out->node));
    TRY(json_value_integer(object, "rank", 0, INT_MAX, &out->rank));
    TRY(json_value_integer(object, "local_rank", 0, INT_MAX, &out->local_rank));
    TRY(json_value_integer(object, "pid", 0, INT_MAX, &out->pid));
    TRY(json_value_integer(object, "wait_status", 0, 0xffff, &out->wait_status));
    TRY(json_value_integer(object, "start_errno", 0, 4095, &out->start_errno));
    int priority = CAUSE_LOST;
    TRY(json_value_integer(object, "weight", CAUSE_LOST, CAUSE_OWN, &priority));
    out->priority = (cause_priority)priority;
    out->after_s = json_number_value(json_object_get(object, "after_s"));
    out->memory_killed = json_is_true(json_object_get(object, "memory_killed"));
    TRY(json_value_copy(object, "host", out->host, sizeof out->host));
    TRY(json_value_copy(object, "says", out->says, sizeof out->says));
    TRY(json_value_copy(object, "doing", out->doing, sizeof out->doing));
    TRY(json_value_copy(object, "folder", out->folder, sizeof out->folder));
    TRY(copy_text(json_string_value(json_object_get(object, "others")), &out->others));
    const json_t *lines = json_object_get(object, "lines");
    text_stream words;
    TRY(text_stream_open(&words));
    for (size_t i = 0; i < json_array_size(lines) && i < OUTPUT_LINES; i++) {
        const char *line = json_string_value(json_array_get(lines, i));
        fprintf(words.file, "%s\n", line != NULL ? line : "");
    }
    return text_stream_close(&words, &out->words, NULL);
}

/* Cuts notes at the end of a line if they are very long. NULL: none. */
static void cut_notes(char *notes)
{
    if (notes == NULL || strlen(notes) <= NOTES_BYTES)
        return;
    notes[NOTES_BYTES] = '\0';
    char *end = strrchr(notes, '\n');
    if (end != NULL)
        end[1] = '\0';
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
        describe_end(w->wait_status, w->start_errno, failure);
        fprintf(out, "%srank %d: %s", shown++ ? ", " : "  also: ", w->rank, failure);
    }
    if (shown > 0)
        fputc('\n', out);
    if (stopped > 0)
        fprintf(out, "  %d other rank%s stopped\n", stopped, stopped == 1 ? " was" : "s were");
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        int signal = WIFSIGNALED(w->wait_status) ? WTERMSIG(w->wait_status) : 0;
        if (w->was_stopped && signal == SIGKILL) /* it may be the one that the others waited for */
            fprintf(out, "  rank %d (pid %d) did not end on SIGTERM: it was stuck, or stopped\n",
                    w->rank, (int)w->pid);
    }
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

status node_end_make(const worker_group *group, agent_state state, int signal, bool memory_killed,
                     node_end *out)
{
    const rank_snapshot *ranks = group->snapshots;
    node_end end = {.node = group->start.spec->node_rank, .state = state, .signal = signal};
    for (int i = 0; i < group->n; i++)
        end.unmet = end.unmet || (group->workers[i].waits && group->workers[i].unmet);
    if (end.state == AGENT_FAILED) {
        TRY(read_cause(&group->workers[group->cause], &group->start, &end.cause));
        end.cause.memory_killed = memory_killed;
        if (ranks != NULL && ranks[group->cause].pid != 0)
            memcpy(end.cause.doing, ranks[group->cause].doing, sizeof end.cause.doing);
        end.cause.others = describe_others(group);
        cut_notes(end.cause.others);
    }
    if (ranks != NULL && (end.state == AGENT_FAILED || end.state == AGENT_STOPPED)) {
        end.notes = hang_report_lines(ranks, group->n);
        hang_report_name(ranks, group->n, end.hangs);
    }
    cut_notes(end.notes);
    *out = end;
    return STATUS_OK;
}

void node_end_free(node_end *end)
{
    free_cause(&end->cause);
    free(end->notes);
    *end = (node_end){0};
}

/* Takes the object. */
static status print_message(json_t *object, char **out)
{
    status st = json_text_print(object, JSON_COMPACT, out);
    json_decref(object);
    return st;
}

status node_end_write(const node_end *end, char **out)
{
    /* clang-format off */
    json_t *object = json_pack("{si si sb so so}",
        "result", end->state - AGENT_SUCCEEDED, "signal", end->signal,
        "unmet", end->unmet, "hangs", json_value_text(end->hangs),
        "notes", json_value_text(text_of(end->notes)));
    /* clang-format on */
    if (end->state == AGENT_FAILED)
        json_object_set_new(object, "cause", cause_to_json(&end->cause));
    return print_message(object, out);
}

/* JSON takes up to a hundred times as much memory as its text. */
static status parse_message(const char *text, json_t **out)
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

static status read_end(const json_t *object, const worker_spec *spec, node_end *out)
{
    const json_t *cause = json_object_get(object, "cause");
    int result = 0;
    TRY(json_value_integer(object, "result", 0, AGENT_STATES - 1 - AGENT_SUCCEEDED, &result));
    TRY(json_value_integer(object, "signal", 0, NSIG - 1, &out->signal));
    out->unmet = json_is_true(json_object_get(object, "unmet"));
    TRY(json_value_copy(object, "hangs", out->hangs, sizeof out->hangs));
    TRY(copy_text(json_string_value(json_object_get(object, "notes")), &out->notes));
    if (cause != NULL)
        TRY(cause_from_json(cause, &out->cause));
    out->state = (agent_state)(AGENT_SUCCEEDED + result);
    if ((cause != NULL) != (out->state == AGENT_FAILED))
        return FAIL(STATUS_PEER, "another launcher's message does not say who failed");
    int local_rank = out->cause.rank - worker_spec_first_rank(spec, out->node);
    if (cause != NULL && (local_rank < 0 || local_rank >= worker_spec_ranks_of(spec, out->node)))
        return FAIL(STATUS_PEER,
                    "another launcher's message makes no sense: rank %d is not its own",
                    out->cause.rank);
    if (out->state == AGENT_SIGNALED && out->signal == 0)
        return FAIL(STATUS_PEER,
                    "another launcher's message does not say by which signal it ended");
    out->cause.node = out->node; /* whatever it says */
    return STATUS_OK;
}

status node_end_read(const char *text, int node, const worker_spec *spec, node_end *out)
{
    json_t *object = NULL;
    node_end end = {.node = node};
    TRY(parse_message(text, &object));
    status st = read_end(object, spec, &end);
    json_decref(object);
    if (st == STATUS_OK)
        *out = end;
    else
        node_end_free(&end);
    return st;
}

void group_outcome_free(group_outcome *outcome)
{
    free_cause(&outcome->cause);
    free(outcome->notes);
    free(outcome->lost);
    *outcome = (group_outcome){0};
}

/* The first of each kind; NULL: there is none. */
typedef struct firsts {
    const node_end *lost;
    const node_end *by_state[AGENT_STATES]; /* for AGENT_FAILED the one that says most */
    const node_end *signaled;               /* its agent was told to stop, whatever came */
    int n_lost, n_signaled;
    bool unmet; /* ranks of some node had not met all others */
} firsts;

static firsts find_firsts(const node_end *ends, int n)
{
    firsts found = {0};
    for (int i = n - 1; i >= 0; i--) {
        const node_end *end = &ends[i], **same = &found.by_state[end->state];
        if (end->lost) {
            found.lost = end;
            found.n_lost++;
            continue;
        }
        found.unmet = found.unmet || end->unmet;
        found.n_signaled += end->signal != 0;
        if (end->signal != 0)
            found.signaled = end;
        if (end->state != AGENT_FAILED || *same == NULL ||
            end->cause.priority >= (*same)->cause.priority)
            *same = end;
    }
    return found;
}

static void blame_signal(const node_end *end, group_outcome *out)
{
    const char *name = sigabbrev_np(end->signal); /* NULL: SIGRTMIN and beyond have none */
    out->code = 128 + end->signal;
    out->told_by = end->node;
    if (name != NULL)
        snprintf(out->text, sizeof out->text, "node %d was stopped by SIG%s", end->node, name);
    else
        snprintf(out->text, sizeof out->text, "node %d was stopped by signal %d", end->node,
                 end->signal);
}

/* What no rank is to blame for. false: nothing of the kind. */
static bool blame_node(const firsts *found, group_outcome *out)
{
    const node_end *stopped = found->by_state[AGENT_SIGNALED];
    const node_end *broken = found->by_state[AGENT_BROKEN];
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

/* The notes of all nodes, and who hangs: who is stopped, else the first one that is late. */
static status collect_notes(const node_end *ends, int n, group_outcome *out)
{
    text_stream notes;
    TRY(text_stream_open(&notes));
    for (int i = 0; i < n; i++) {
        fputs(text_of(ends[i].notes), notes.file);
        if (out->hangs[0] == '\0' || strchr(ends[i].hangs, '(') != NULL)
            memcpy(out->hangs, ends[i].hangs, sizeof out->hangs);
    }
    TRY(text_stream_close(&notes, &out->notes, NULL));
    cut_notes(out->notes);
    return STATUS_OK;
}

/* Whether another attempt may help after one of the workers ended with this exit code (128 +
 * signal). Wrong flags, unreadable data and a run folder that is taken stay as they are. */
static bool may_restart(const worker_spec *spec, int code)
{
    return !spec->policy.own ||
           (code != EXIT_CODE_USAGE && code != EXIT_CODE_DATA && code != EXIT_CODE_CHECKPOINT &&
            code != EXIT_CODE_PREEMPTED && code != EXIT_CODE_DIVERGED);
}

/* All nodes start again after a rank's failure if that may help and nobody was told to stop. */
static status blame_rank(const firsts *found, const worker_spec *spec, group_outcome *out)
{
    const node_end *failed = found->by_state[AGENT_FAILED];
    if (failed == NULL) {
        if (found->by_state[AGENT_DIVERGED] != NULL)
            out->code = EXIT_CODE_DIVERGED;
        else if (found->by_state[AGENT_PREEMPTED] != NULL)
            out->code = EXIT_CODE_PREEMPTED;
        else if (found->by_state[AGENT_STOPPED] != NULL)
            out->code = EXIT_CODE_INTERNAL;
        return STATUS_OK;
    }
    out->cause = failed->cause;
    out->cause.others = out->cause.words = NULL;
    TRY(copy_text(failed->cause.others, &out->cause.others));
    TRY(copy_text(failed->cause.words, &out->cause.words));
    out->failed = true;
    out->code = exit_code_of(out->cause.wait_status);
    bool may_help = spec->now.restarts < spec->max_restarts && out->cause.start_errno == 0 &&
                    may_restart(spec, out->code);
    bool ends_all = found->signaled != NULL && !worker_spec_is_elastic(spec);
    out->again = out->counts = may_help && !ends_all;
    if (may_help && ends_all)
        blame_signal(found->signaled, out); /* it ends what the failure would not have */
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
    if (ends || (counts && spec->now.restarts >= spec->max_restarts) || (!changes && !unexplained))
        return;
    out->again = true;
    out->counts = counts;
    out->unmet = unmet;
    if (unmet)
        snprintf(
            out->text, sizeof out->text,
            "round %lld does not begin: its ranks have not all met (is a port or a way between "
            "two nodes closed?); the next one is without node %d, if enough are left",
            (long long)spec->now.round, n - 1);
}

status group_outcome_make(const node_end *ends, int n, const worker_spec *spec, group_outcome *out)
{
    status st = STATUS_OK;
    group_outcome outcome = {.told_by = -1};
    const firsts found = find_firsts(ends, n);
    const node_end *failed = found.by_state[AGENT_FAILED];
    TRY(collect_notes(ends, n, &outcome));
    /* A rank's own failure explains more than what followed from it elsewhere. */
    bool clear = failed != NULL && failed->cause.priority > CAUSE_LOST && found.lost == NULL;
    if (clear || !blame_node(&found, &outcome))
        st = blame_rank(&found, spec, &outcome);
    outcome.lost = calloc((size_t)found.n_lost + 1, sizeof *outcome.lost);
    if (st == STATUS_OK && outcome.lost == NULL)
        st = FAIL(STATUS_NO_MEMORY, "%d lost nodes", found.n_lost);
    for (int i = 0; i < n && st == STATUS_OK; i++)
        if (ends[i].lost)
            outcome.lost[outcome.n_lost++] = i;
    if (st == STATUS_OK && worker_spec_is_elastic(spec) && !outcome.failed)
        go_on(&found, spec, n, &outcome);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}

status group_outcome_doubt(const node_end *own, const worker_spec *spec, group_outcome *out)
{
    group_outcome outcome;
    bool uncounted = !out->counts && worker_spec_is_elastic(spec);
    bool fits = out->again ? uncounted || spec->now.restarts < spec->max_restarts
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
    json_t *lost = json_array();
    for (int i = 0; i < outcome->n_lost; i++)
        json_array_append_new(lost, json_integer(outcome->lost[i]));
    /* clang-format off */
    json_t *object = json_pack("{sb sb sb si so si so so so}",
        "again", outcome->again, "counts", outcome->counts, "unmet", outcome->unmet,
        "code", outcome->code, "text", json_value_text(outcome->text),
        "told_by", outcome->told_by, "hangs", json_value_text(outcome->hangs),
        "notes", json_value_text(outcome->notes), "lost", lost);
    /* clang-format on */
    if (outcome->failed)
        json_object_set_new(object, "cause", cause_to_json(&outcome->cause));
    return print_message(object, out);
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

static status read_outcome(const json_t *object, group_outcome *out)
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
    TRY(copy_text(json_string_value(json_object_get(object, "notes")), &out->notes));
    TRY(read_lost(json_object_get(object, "lost"), out));
    return cause != NULL ? cause_from_json(cause, &out->cause) : STATUS_OK;
}

status group_outcome_read(const char *text, group_outcome *out)
{
    json_t *object = NULL;
    group_outcome outcome = {0};
    TRY(parse_message(text, &object));
    status st = read_outcome(object, &outcome);
    json_decref(object);
    if (st == STATUS_OK)
        *out = outcome;
    else
        group_outcome_free(&outcome);
    return st;
}

static const char *hint_for_signal(int signal, bool memory_killed, bool own)
{
    switch (signal) {
    case SIGKILL:
        return memory_killed
                   ? "killed by the kernel's out of memory killer? It was at work during the run: "
                     "fewer ranks, or a smaller batch size; dmesg tells"
                   : "somebody killed it (kill -9, a batch system, a container's memory limit)";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
        return "somebody stopped this rank; to stop them all, signal the launcher";
    case SIGBUS:
        return "out of space in /dev/shm or on disk (df), or a bug; a core dump tells";
    default:
        return own ? "a bug in mnist_ddp or a library: please report it with the lines above and "
                     "what mnist_ddp env says"
                   : "a bug in the program or a library; a core dump tells where (ulimit -c "
                     "unlimited)";
    }
}

static const char *hint_for_code(int code)
{
    switch (code) {
    case EXIT_CODE_USAGE:
        return "correct the flag, variable or file that the lines above name; mnist_ddp help";
    case EXIT_CODE_DATA:
        return "check --data-dir or MNIST_DDP_DATA: the folder with MNIST's four files";
    case EXIT_CODE_RENDEZVOUS:
        return "check that every machine has started, with the same --master-addr, --master-port "
               "and --nnodes, and that the port is open; mnist_ddp doctor";
    case EXIT_CODE_PEER:
        return "another rank, or the connection to it, went away first: its own report, perhaps on "
               "another machine, says why";
    case EXIT_CODE_CHECKPOINT:
        return "the lines above say what is wrong with --run-dir, --html or stdout; df and ls "
               "-ld tell space and permissions";
    case EXIT_CODE_TIMEOUT:
        return "a rank is stuck or slow: look at the one that never came (its log, gdb -p PID), or "
               "raise --timeout";
    default:
        return "the lines above say why";
    }
}

/* NULL: what it has said is all that is known. */
static const char *hint_for(const process_failure *cause, bool own)
{
    if (cause->start_errno == ENOEXEC)
        return "it is no program: a script needs a first line as #!/usr/bin/env python3, or the "
               "ending .py";
    if (cause->start_errno != 0)
        return own ? "the program's own file, /proc/self/exe, is executed again"
                   : "check the program's path and permissions (ls -l)";
    if (WIFSIGNALED(cause->wait_status))
        return hint_for_signal(WTERMSIG(cause->wait_status), cause->memory_killed, own);
    if (own)
        return hint_for_code(WEXITSTATUS(cause->wait_status));
    if (strstr(cause->words, "remote=[127.") != NULL)
        return "does another host's own name stand for a loopback address there? Then set "
               "GLOO_SOCKET_IFNAME on it to the interface that the others reach";
    return cause->words[0] != '\0'
               ? NULL
               : "it said nothing on stderr: see its stdout, or --tee=3 to keep it";
}

/* From another node: nothing of it may look like a line of ours, or do more than be read. NULL: no
 * memory. */
static char *printable_of(const char *text)
{
    size_t size_bytes = strlen(text) * 4 + 1;
    char *shown = malloc(size_bytes);
    if (shown != NULL)
        printable_copy(PRINTABLE_LINES, text, shown, size_bytes);
    return shown;
}

static void put_printable(FILE *file, const char *before, const char *text)
{
    char *shown = printable_of(text);
    fputs(before, file);
    fputs(shown != NULL ? shown : "", file);
    free(shown);
}

/* "error: rank 1 WHAT: SIGKILL (Killed)", with "; restart 1 of 3" if all ranks start again; of a
 * deadline that has passed "error: rank 2 hangs (stopped), rank 1 has waited ...". */
static void write_head(FILE *file, const failure_report *report, const process_failure *cause,
                       const char *what)
{
    char ending[FAILURE_TEXT_BYTES];
    bool again = report->outcome->again;
    describe_end(cause->wait_status, cause->start_errno, ending);
    fprintf(file, "%s: ", again ? "warning" : "error");
    if (cause->priority == CAUSE_WAITED && report->outcome->hangs[0] != '\0') {
        put_printable(file, "", report->outcome->hangs);
        fprintf(file, ", rank %d has waited for it in vain: %s", cause->rank, ending);
    } else {
        fprintf(file, "rank %d %s: %s", cause->rank, what, ending);
    }
    if (again)
        fprintf(file, "; restart %d of %d", report->spec->now.restarts + 1,
                report->spec->max_restarts);
    fputc('\n', file);
}

/* Whether the last lines hold the message already, without its kind ("RuntimeError: "). */
static bool is_said(const process_failure *cause)
{
    const char *text = strstr(cause->says, ": ");
    text = text != NULL ? text + 2 : cause->says;
    char start[80];
    snprintf(start, sizeof start, "%.*s", (int)strcspn(text, "\n"), text);
    return strstr(cause->words, start) != NULL;
}

static void write_report(FILE *file, const failure_report *report, const process_failure *cause,
                         bool here)
{
    const char *hint = hint_for(cause, report->spec->policy.own);
    write_head(file, report, cause, "failed first");
    fprintf(file, "  rank %d, local rank %d, node %d, host %s, pid %d, after %.1f s\n", cause->rank,
            cause->local_rank, cause->node, cause->host, cause->pid, cause->after_s);
    /* Words of other ranks may be in what a rank says of itself. */
    if (cause->doing[0] != '\0') {
        put_printable(file, "  it was last ", cause->doing);
        fputc('\n', file);
    }
    /* Whether its stderr has been on this one's already. Of our own ranks one is looked for among
     * many lines. */
    const worker_spec *spec = report->spec;
    worker_route route = {.piped = false};
    if (here) /* on another node its local rank may be anything */
        worker_logs_route(&spec->logs, 0, cause->local_rank, LOGS_STDERR, &route);
    bool shown = here && cause->words[0] != '\0' && !spec->policy.own && route.piped &&
                 route.target == STDERR_FILENO;
    if (cause->says[0] != '\0' && (shown || !is_said(cause))) {
        put_printable(file, "  it says: ", cause->says);
        fputc('\n', file);
    } else if (shown) {
        const char *last = strrchr(cause->words, '\n');
        while (last > cause->words && last[-1] != '\n')
            last--;
        fprintf(file, "  it says: %s", last);
    }
    if (!shown)
        fputs(cause->words[0] != '\0' ? "  its last lines:\n" : "  it wrote nothing to stderr\n",
              file);
    for (const char *at = cause->words; !shown && *at != '\0'; at += strcspn(at, "\n") + 1)
        fprintf(file, "    | %.*s\n", (int)strcspn(at, "\n"), at);
    fputs(text_of(cause->others), file);
    if (cause->priority < CAUSE_OWN)
        put_printable(file, "", report->outcome->notes); /* all nodes' */
    if (cause->folder[0] != '\0')
        fprintf(file, "  log: %s%s%s\n", cause->folder, here ? "" : " on ",
                here ? "" : cause->host);
    if (hint != NULL)
        fprintf(file, "  hint: %s\n", hint);
}

/* Free with free(). What comes from another node is escaped. */
static status create_text(const failure_report *report, const process_failure *cause, bool here,
                          char **out)
{
    char *text = NULL, what[FAILURE_HOST_BYTES + 64];
    text_stream lines;
    TRY(text_stream_open(&lines));
    snprintf(what, sizeof what, "on node %d (%s) failed first", cause->node, cause->host);
    if (here || report->spec->node_rank == 0)
        write_report(lines.file, report, cause, here);
    else
        write_head(lines.file, report, cause, what); /* that node's agent has the report */
    TRY(text_stream_close(&lines, &text, NULL));
    if (!here) {
        char *shown = printable_of(text);
        free(text);
        text = shown;
    }
    *out = text;
    return text != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "the report");
}

static void say(const char *text, output_console *console)
{
    run_log_say(text, strlen(text));
    output_console_say(console, STDERR_FILENO, text, strlen(text));
}

/* Of a rank of this node what it says itself is believed, not what came back through the store. */
static void show_cause(const failure_report *report, output_console *console)
{
    const node_end *own = report->own;
    const process_failure *cause = &report->outcome->cause;
    char *text = NULL, path[FILE_PATH_BYTES];
    bool here = own->state == AGENT_FAILED && own->cause.rank == cause->rank &&
                cause->node == report->spec->node_rank;
    if (here) {
        cause = &own->cause;
        error_file_path(cause, path);
        if (path[0] != '\0' && !file_exists(path) && write_error_file(cause, path) != STATUS_OK)
            LOG_D("%s", status_text());
    }
    if (!report->outcome->again)
        pass_on(cause, here);
    if (create_text(report, cause, here, &text) == STATUS_OK)
        say(text, console);
    else
        LOG_E("rank %d failed; %s", cause->rank, status_text());
    free(text);
}

void failure_report_own(status st, int code)
{
    char why[2048];
    const char *path = environment_text("TORCHELASTIC_ERROR_FILE");
    LOG_E("%s", status_text());
    snprintf(why, sizeof why, "%s: %s", status_name(st), status_text());
    error_file file = {.message = why, .callstack = "", .exit_code = code};
    if (path != NULL && error_file_write(path, &file) != STATUS_OK)
        LOG_W("error file not written: %s", status_text());
}

void failure_report_show(const failure_report *report, output_console *console)
{
    const group_outcome *outcome = report->outcome;
    if (outcome->failed) {
        show_cause(report, console);
        if (outcome->text[0] != '\0')
            LOG_E("no restart: %s", outcome->text);
    } else if (outcome->text[0] != '\0' && outcome->told_by != report->spec->node_rank) {
        log_line(outcome->again ? LOG_WARNING : LOG_ERROR, "%s", outcome->text);
    }
}
