#include "app/launch/process_failure.h"

#include "app/common/error_file.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How other libraries say that another rank went away. */
static const char *const LOST_PEER_WORDS[] = {"Connection closed by peer",
                                              "Connection reset by peer",
                                              "Socket closed",
                                              "Broken pipe",
                                              "ncclRemoteError",
                                              "remote process exited",
                                              "communicator was aborted",
                                              "failed to recv, got 0 bytes"};

/* Whether the process ended because it lost another. Only the last lines tell: an error that it
 * survived does not count. */
static bool lost_a_peer(const output_stream *err)
{
    enum { LAST_LINES = 8 };
    int64_t first = err->lines_seen > LAST_LINES ? err->lines_seen - LAST_LINES : 0;
    for (int64_t k = first; k < err->lines_seen; k++)
        for (size_t i = 0; i < sizeof LOST_PEER_WORDS / sizeof LOST_PEER_WORDS[0]; i++)
            if (strstr(output_stream_line(err, k), LOST_PEER_WORDS[i]) != NULL)
                return true;
    return false;
}

cause_priority process_failure_priority(const worker *w)
{
    int code = process_failure_code(w->wait_status);
    if (code == EXIT_CODE_PEER)
        return first_cause_priority(STATUS_PEER);
    if (code == EXIT_CODE_TIMEOUT)
        return first_cause_priority(STATUS_TIMEOUT);
    return WIFEXITED(w->wait_status) && lost_a_peer(&w->err) ? CAUSE_LOST : CAUSE_OWN;
}

int process_failure_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void process_failure_text(int wait_status, int start_errno, char out[FAILURE_TEXT_BYTES])
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

bool process_failure_memory_was_short(int64_t *kills)
{
    char line[128];
    long long before = *kills, count = -1;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "oom_kill %lld", &count) == 1)
            break;
    if (file != NULL)
        fclose(file);
    *kills = count;
    return before >= 0 && count > before;
}

static status add_line(process_failure *failure, const char *line)
{
    char *copy = strdup(line);
    if (copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "how rank %d ended", failure->rank);
    failure->lines[failure->n_lines++] = copy;
    return STATUS_OK;
}

static status set_others(process_failure *failure, const char *text)
{
    failure->others = strdup(text);
    return failure->others != NULL ? STATUS_OK
                                   : FAIL(STATUS_NO_MEMORY, "how rank %d ended", failure->rank);
}

/* Success hands over to `out`. */
static status finish(status st, process_failure *failure, process_failure *out)
{
    if (st == STATUS_OK)
        *out = *failure;
    else
        process_failure_free(failure);
    return st;
}

static void error_file_path(const process_failure *failure, char out[FILE_PATH_BYTES])
{
    if (failure->folder[0] == '\0' || file_join(failure->folder, "error.json", out) != STATUS_OK)
        out[0] = '\0';
}

status process_failure_read(const worker *w, const worker_start *start, process_failure *out)
{
    const worker_spec *spec = start->spec;
    char path[FILE_PATH_BYTES];
    process_failure failure = {.node = spec->node_rank,
                               .rank = w->rank,
                               .local_rank = w->local_rank,
                               .pid = (int)w->pid,
                               .wait_status = w->wait_status,
                               .start_errno = w->start_errno,
                               .priority = process_failure_priority(w),
                               .after_s = clock_seconds(w->ended_ns - start->started_ns)};
    if (gethostname(failure.host, sizeof failure.host - 1) != 0)
        strcpy(failure.host, "?");
    worker_logs_file(&spec->logs, w->attempt, w->local_rank, "", failure.folder);
    error_file_path(&failure, path);
    if (path[0] != '\0')
        error_file_read_message(path, failure.says, sizeof failure.says);
    const output_stream *err = &w->err;
    int64_t first = err->lines_seen > OUTPUT_LINES ? err->lines_seen - OUTPUT_LINES : 0;
    status st = set_others(&failure, "");
    for (int64_t k = first; k < err->lines_seen && st == STATUS_OK; k++)
        st = add_line(&failure, output_stream_line(err, k));
    return finish(st, &failure, out);
}

status process_failure_copy(const process_failure *failure, process_failure *out)
{
    process_failure copy = *failure;
    copy.n_lines = 0;
    status st = set_others(&copy, failure->others);
    for (int i = 0; i < failure->n_lines && st == STATUS_OK; i++)
        st = add_line(&copy, failure->lines[i]);
    return finish(st, &copy, out);
}

void process_failure_free(process_failure *failure)
{
    for (int i = 0; i < failure->n_lines; i++)
        free(failure->lines[i]);
    free(failure->others);
    *failure = (process_failure){0};
}

/* "line\nline\n"; NULL: no memory. */
static char *last_words(const process_failure *failure)
{
    char *text = NULL;
    text_stream lines;
    if (text_stream_open(&lines) != STATUS_OK)
        return NULL;
    for (int i = 0; i < failure->n_lines; i++)
        fprintf(lines.file, "%s\n", failure->lines[i]);
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

static status write_error_file(const process_failure *failure, const char *path)
{
    char how[FAILURE_TEXT_BYTES], said[FAILURE_TEXT_BYTES + 64];
    process_failure_text(failure->wait_status, failure->start_errno, how);
    snprintf(said, sizeof said, "rank %d (pid %d): %s", failure->rank, failure->pid, how);
    char *words = last_words(failure);
    error_file file = {.message = failure->says[0] != '\0' ? failure->says : said,
                       .callstack = words != NULL ? words : "",
                       .exit_code = process_failure_code(failure->wait_status)};
    status st = error_file_write(path, &file);
    free(words);
    return st;
}

void process_failure_write_error_file(const process_failure *failure)
{
    char path[FILE_PATH_BYTES];
    error_file_path(failure, path);
    if (path[0] != '\0' && !file_exists(path) && write_error_file(failure, path) != STATUS_OK)
        LOG_D("%s", status_text());
}

void process_failure_pass_on(const process_failure *failure, bool here)
{
    char path[FILE_PATH_BYTES];
    const char *to = environment_text("TORCHELASTIC_ERROR_FILE");
    int code = process_failure_code(failure->wait_status);
    if (to == NULL)
        return;
    error_file_path(failure, path);
    if (here && path[0] != '\0' && error_file_copy(path, code, to) == STATUS_OK)
        return;
    if (write_error_file(failure, to) != STATUS_OK)
        LOG_W("error file not written: %s", status_text());
}

json_t *process_failure_to_json(const process_failure *failure)
{
    json_t *lines = json_array(), *object = json_object();
    for (int i = 0; i < failure->n_lines; i++)
        json_array_append_new(lines, json_value_text(failure->lines[i]));
    json_object_set_new(object, "node", json_integer(failure->node));
    json_object_set_new(object, "rank", json_integer(failure->rank));
    json_object_set_new(object, "local_rank", json_integer(failure->local_rank));
    json_object_set_new(object, "pid", json_integer(failure->pid));
    json_object_set_new(object, "wait_status", json_integer(failure->wait_status));
    json_object_set_new(object, "start_errno", json_integer(failure->start_errno));
    json_object_set_new(object, "weight", json_integer((json_int_t)failure->priority));
    json_object_set_new(object, "after_s", json_real(failure->after_s));
    json_object_set_new(object, "memory_killed", json_boolean(failure->memory_killed));
    json_object_set_new(object, "host", json_value_text(failure->host));
    json_object_set_new(object, "says", json_value_text(failure->says));
    json_object_set_new(object, "doing", json_value_text(failure->doing));
    json_object_set_new(object, "folder", json_value_text(failure->folder));
    json_object_set_new(object, "others", json_value_text(failure->others));
    json_object_set_new(object, "lines", lines);
    return object;
}

static status read_object(const json_t *object, process_failure *out)
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
    const char *others = json_string_value(json_object_get(object, "others"));
    TRY(set_others(out, others != NULL ? others : ""));
    const json_t *lines = json_object_get(object, "lines");
    for (size_t i = 0; i < json_array_size(lines) && out->n_lines < OUTPUT_LINES; i++) {
        const char *line = json_string_value(json_array_get(lines, i));
        TRY(add_line(out, line != NULL ? line : ""));
    }
    return STATUS_OK;
}

status process_failure_from_json(const json_t *object, process_failure *out)
{
    process_failure failure = {0};
    return finish(read_object(object, &failure), &failure, out);
}
