/* JSON as text, whole or not at all. If memory runs out, jansson alone leaves out what it could not
 * make and goes on: a member of an object that is built, a letter of a text that is read. */
#ifndef MNIST_DDP_BASE_JSON_TEXT_H
#define MNIST_DDP_BASE_JSON_TEXT_H

#include "base/status.h"

#include <jansson.h>
#include <stddef.h>

/* First of all in main: from now on the functions below know of memory that ran out. */
void json_text_watch_memory(void);

/* Sets *out to the value as text, the caller's to free; `flags` are json_dumps'. STATUS_NO_MEMORY
 * if memory for any JSON ran out in this thread since the last call here: something is missing. */
status json_text_print(const json_t *value, size_t flags, char **out);

/* As json_loadb; NULL, with json_error_out_of_memory as the error's code, also if memory ran out
 * meanwhile. `error` may be NULL. */
json_t *json_text_parse(const char *text, size_t size_bytes, size_t flags, json_error_t *error);

/* The value in a text that comes from `name`; a key may not come twice in an object. *out is the
 * caller's. STATUS_INVALID "name:line: ..." if it is no JSON, STATUS_NO_MEMORY. */
status json_text_value(const char *text, size_t size_bytes, const char *name, json_t **out);

/* Reads a file of at most `limit_bytes`. *out is the caller's to decref. Fails as json_text_value
 * and file_read do. */
status json_text_read(const char *path, size_t limit_bytes, json_t **out);

/* Writes it as text and a newline to the file `path`, whole or not at all; `flags` are json_dumps'.
 * Fails like json_text_print and file_replace. */
status json_text_save(const json_t *value, size_t flags, const char *path);

#endif
