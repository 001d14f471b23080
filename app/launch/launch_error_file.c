#include "app/launch/launch_error_file.h"

#include "app/json_value.h"
#include "base/log.h"

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
    json_t *object = json_loads(text, 0, &error);
    const json_t *message = json_object_get(object, "message");
    if (json_is_object(message))
        message = json_object_get(message, "message");
    if (json_is_string(message))
        snprintf(out, size_bytes, "%s", json_string_value(message));
    json_decref(object);
    free(text);
}

/* What a reader wants of a rank that could not say it itself. */
static char *last_words(const launch_ending *ending)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *file = open_memstream(&text, &size_bytes);
    if (file == NULL)
        return NULL;
    for (int i = 0; i < ending->n_lines; i++)
        fprintf(file, "%s\n", ending->lines[i]);
    return fclose(file) == 0 ? text : (free(text), NULL);
}

void launch_error_file_write(const launch_ending *ending)
{
    char path[FILE_PATH_BYTES], how[ENDING_TEXT_BYTES], said[ENDING_TEXT_BYTES + 64], seconds[24];
    if (ending->folder[0] == '\0' || file_join(ending->folder, "error.json", path) != STATUS_OK ||
        file_exists(path))
        return;
    launch_ending_text(ending->wait_status, ending->start_errno, how);
    snprintf(said, sizeof said, "rank %d (pid %d): %s", ending->rank, ending->pid, how);
    snprintf(seconds, sizeof seconds, "%lld", (long long)time(NULL));
    char *words = last_words(ending);
    json_t *extra = json_pack("{s:o, s:s}", "py_callstack",
                              json_value_text(words != NULL ? words : ""), "timestamp", seconds);
    json_t *object =
        json_pack("{s:{s:o, s:i, s:o}}", "message", "message", json_value_text(said), "errorCode",
                  launch_ending_code(ending->wait_status), "extraInfo", extra);
    char *text = json_dumps(object, JSON_COMPACT);
    const file_part part = {text, text != NULL ? strlen(text) : 0};
    if (text != NULL && file_replace(path, &part, 1) != STATUS_OK)
        LOG_D("%s", status_message());
    json_decref(object);
    free(text);
    free(words);
}
