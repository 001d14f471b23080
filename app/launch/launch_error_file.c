#include "app/launch/launch_error_file.h"

#include "app/json_value.h"
#include "base/file_draft.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILE_BYTES = 1 << 20 };

void launch_error_file_message(const char *folder, char *out, size_t size_bytes)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t text_bytes = 0;
    out[0] = '\0';
    if (folder[0] == '\0' || file_join(folder, "error.json", path) != STATUS_OK ||
        file_read(path, FILE_BYTES, &text, &text_bytes) != STATUS_OK)
        return;
    json_error_t error;
    json_t *object = json_text_parse(text, strlen(text), 0, &error);
    const json_t *message = json_object_get(object, "message");
    if (json_is_object(message))
        message = json_object_get(message, "message");
    if (json_is_string(message))
        snprintf(out, size_bytes, "%s", json_string_value(message));
    json_decref(object);
    free(text);
}

/* What a reader wants of a rank that could not say it itself. */
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

void launch_error_file_write(const process_failure *failure)
{
    char path[FILE_PATH_BYTES], how[FAILURE_TEXT_BYTES], said[FAILURE_TEXT_BYTES + 64], seconds[24];
    if (failure->folder[0] == '\0' || file_join(failure->folder, "error.json", path) != STATUS_OK ||
        file_exists(path))
        return;
    process_failure_text(failure->wait_status, failure->start_errno, how);
    snprintf(said, sizeof said, "rank %d (pid %d): %s", failure->rank, failure->pid, how);
    snprintf(seconds, sizeof seconds, "%lld", (long long)time(NULL));
    char *words = last_words(failure);
    json_t *extra = json_pack("{s:o, s:s}", "py_callstack",
                              json_value_text(words != NULL ? words : ""), "timestamp", seconds);
    json_t *object =
        json_pack("{s:{s:o, s:i, s:o}}", "message", "message", json_value_text(said), "errorCode",
                  process_failure_code(failure->wait_status), "extraInfo", extra);
    char *text = NULL;
    status st = json_text_print(object, JSON_COMPACT, &text);
    if (st == STATUS_OK)
        st = file_replace(path, &(file_part){text, strlen(text)}, 1);
    if (st != STATUS_OK)
        LOG_D("%s", status_text());
    json_decref(object);
    free(text);
    free(words);
}
