#include "base/json_text.h"

#include "base/file.h"

#include <errno.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of this thread, since it was last asked for. */
static _Thread_local bool memory_ran_out;
/* The parse that runs in this thread, if one does. */
static _Thread_local jmp_buf *parse;

/* jansson's parser does not look whether its buffer could grow: it would drop a character, and a
 * string without its closing quote is read, and copied, beyond its end. So the parse ends at once.
 * The values that it has made are lost. */
static void *allocate(size_t size_bytes)
{
    void *memory = malloc(size_bytes);
    memory_ran_out = memory_ran_out || memory == NULL;
    if (memory == NULL && parse != NULL)
        longjmp(*parse, 1);
    return memory;
}

void json_text_watch_memory(void)
{
    json_set_alloc_funcs(allocate, free);
}

status json_text_print(const json_t *value, size_t flags, char **out)
{
    char *text = json_dumps(value, flags);
    bool whole = text != NULL && !memory_ran_out;
    memory_ran_out = false;
    if (!whole) {
        free(text);
        errno = ENOMEM;
        return FAIL(STATUS_NO_MEMORY, "JSON to be written");
    }
    *out = text;
    return STATUS_OK;
}

static json_t *parse_or_escape(const char *text, size_t size_bytes, size_t flags,
                               json_error_t *error)
{
    jmp_buf start;
    parse = &start;
    json_t *value = setjmp(start) == 0 ? json_loadb(text, size_bytes, flags, error) : NULL;
    parse = NULL;
    return value;
}

json_t *json_text_parse(const char *text, size_t size_bytes, size_t flags, json_error_t *error)
{
    json_error_t own;
    error = error != NULL ? error : &own;
    bool before = memory_ran_out;
    memory_ran_out = false;
    json_t *value = parse_or_escape(text, size_bytes, flags, error);
    if (memory_ran_out) {
        snprintf(error->text, sizeof error->text - 1, "out of memory");
        error->text[sizeof error->text - 1] = json_error_out_of_memory; /* jansson's place for it */
        errno = ENOMEM;
    }
    memory_ran_out = before;
    return value;
}

status json_text_value(const char *text, size_t size_bytes, const char *name, json_t **out)
{
    json_error_t error;
    json_t *value = json_text_parse(text, size_bytes, JSON_REJECT_DUPLICATES, &error);
    if (value == NULL && json_error_code(&error) == json_error_out_of_memory)
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu bytes of JSON", name, size_bytes);
    if (value == NULL)
        return FAIL(STATUS_INVALID, "%s:%d: not JSON: %.160s", name, error.line, error.text);
    *out = value;
    return STATUS_OK;
}

status json_text_read(const char *path, size_t limit_bytes, json_t **out)
{
    char *text = NULL;
    size_t size_bytes = 0;
    TRY(file_read(path, limit_bytes, &text, &size_bytes));
    status st = json_text_value(text, size_bytes, path, out);
    free(text);
    return st;
}

status json_text_save(const json_t *value, size_t flags, const char *path)
{
    char *text = NULL;
    TRY(json_text_print(value, flags, &text));
    const file_part parts[] = {{text, strlen(text)}, {"\n", 1}};
    status st = file_replace(path, parts, 2);
    free(text);
    return st;
}
