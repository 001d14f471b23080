#include "app/common/error_file.h"

#include "app/common/json_value.h"
#include "base/file.h"
#include "base/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILE_BYTES = 1 << 20 };

/* Takes the object. */
static status replace(const char *path, json_t *object)
{
    char *text = NULL;
    status st = json_text_print(object, JSON_COMPACT, &text);
    json_decref(object);
    if (st == STATUS_OK)
        st = file_replace(path, &(file_part){text, strlen(text)}, 1);
    free(text);
    return st;
}

status error_file_write(const char *path, const error_file *file)
{
    char seconds[24];
    snprintf(seconds, sizeof seconds, "%lld", (long long)time(NULL));
    json_t *extra = json_pack("{s:o}", "py_callstack", json_value_text(file->callstack));
    if (file->location != NULL)
        json_object_set_new(extra, "location", json_value_text(file->location));
    json_object_set_new(extra, "timestamp", json_string(seconds));
    if (file->location != NULL)
        json_object_update_new(extra,
                               json_pack("{s:i, s:i}", "rank", file->rank, "pid", file->pid));
    return replace(path, json_pack("{s:{s:o, s:i, s:o}}", "message", "message",
                                   json_value_text(file->message), "errorCode", file->exit_code,
                                   "extraInfo", extra));
}

/* NULL: it is none. */
static json_t *read_file(const char *path)
{
    char *text = NULL;
    size_t text_bytes = 0;
    json_error_t error;
    if (file_read(path, FILE_BYTES, &text, &text_bytes) != STATUS_OK)
        return NULL;
    json_t *object = json_text_parse(text, strlen(text), 0, &error);
    free(text);
    return object;
}

status error_file_copy(const char *from, int exit_code, const char *path)
{
    json_t *object = read_file(from), *message = json_object_get(object, "message");
    if (object == NULL)
        return FAIL(STATUS_INVALID, "%s is no error file", from);
    if (json_is_object(message))
        json_object_set_new(message, "errorCode", json_integer(exit_code));
    return replace(path, object);
}

void error_file_read_message(const char *path, char *out, size_t size_bytes)
{
    json_t *object = read_file(path);
    out[0] = '\0';
    const json_t *message = json_object_get(object, "message");
    if (json_is_object(message))
        message = json_object_get(message, "message");
    if (json_is_string(message))
        snprintf(out, size_bytes, "%s", json_string_value(message));
    json_decref(object);
}
