#include "app/options/options_table.h"

#include "base/file.h"
#include "base/host.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* Rows of the launcher that are our own. */
static bool is_torchruns(const option_row *row)
{
    if (row->group != GROUP_LAUNCHER && row->group != GROUP_PROGRAM)
        return false;
    static const size_t own[] = {
        offsetof(options, world_size),       offsetof(options, local_rank),
        offsetof(options, local_world_size), offsetof(options, exit_code),
        offsetof(options, launcher),         offsetof(options, run.use_env)};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (row->offset == own[i])
            return false;
    return true;
}

status options_torchrun_read(options *opts)
{
    char name[OPTION_NAME_BYTES + 8];
    command of = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    unsigned commands = 1u << of;
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (!is_torchruns(row) || (row->commands & commands) == 0)
            continue;
        snprintf(name, sizeof name, "PET_%s", row->name);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        const char *value = environment_text(name);
        if (value != NULL)
            TRY(options_value_set(opts, (option_match){row, false}, value, SOURCE_ENVIRONMENT,
                                  name));
    }
    return STATUS_OK;
}

enum {
    CONFIG_LIMIT_BYTES = 1 << 20,
    WHERE_BYTES = FILE_PATH_BYTES + 16,
    KEY_SHOWN_BYTES = 60, /* of a key in a message */
};

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
    bool holds_event;
    const char *path;
    char where[WHERE_BYTES]; /* of the current event */
} reader;

static void set_where(reader *in, size_t line)
{
    snprintf(in->where, sizeof in->where, "%s:%zu", in->path, line + 1);
}

static status next_event(reader *in)
{
    if (in->holds_event)
        yaml_event_delete(&in->event);
    in->holds_event = false;
    if (!yaml_parser_parse(&in->parser, &in->event)) {
        set_where(in, in->parser.problem_mark.line);
        return FAIL(STATUS_INVALID, "%s: not YAML: %s", in->where,
                    in->parser.problem ? in->parser.problem : "unreadable");
    }
    in->holds_event = true;
    set_where(in, in->event.start_mark.line);
    return STATUS_OK;
}

/* The current event as a string without zero bytes; NULL if it is no such scalar. */
static const char *scalar(const reader *in)
{
    if (in->event.type != YAML_SCALAR_EVENT)
        return NULL;
    const char *text = (const char *)in->event.data.scalar.value;
    return strlen(text) == in->event.data.scalar.length ? text : NULL;
}

static bool is_null(const reader *in)
{
    return in->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (strcmp((const char *)in->event.data.scalar.value, "") == 0 ||
            strcmp((const char *)in->event.data.scalar.value, "~") == 0 ||
            strcmp((const char *)in->event.data.scalar.value, "null") == 0);
}

/* The current event is a key: reads its value and hands both over. */
static status read_setting(reader *in, config_fn take, void *ctx)
{
    status st = STATUS_OK;
    const char *text = scalar(in);
    if (text == NULL)
        return FAIL(STATUS_INVALID, "%s: a key must be a plain name", in->where);
    char *key = strdup(text);
    if (key == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes", in->where, strlen(text));
    st = next_event(in);
    if (st != STATUS_OK)
        goto out;
    text = scalar(in);
    if (text == NULL)
        st = FAIL(STATUS_INVALID, "%s: %.*s: one value is wanted here, not a list or a map",
                  in->where, KEY_SHOWN_BYTES, key);
    else if (is_null(in))
        st = FAIL(STATUS_INVALID, "%s: %.*s: has no value; remove the line for the default",
                  in->where, KEY_SHOWN_BYTES, key);
    else
        st = take(ctx, key, text, in->where);

out:
    free(key);
    return st;
}

static status read_document(reader *in, config_fn take, void *ctx)
{
    TRY(next_event(in)); /* the stream's start */
    TRY(next_event(in));
    if (in->event.type == YAML_STREAM_END_EVENT)
        return STATUS_OK; /* nothing but comments */
    TRY(next_event(in));
    if (in->event.type == YAML_SCALAR_EVENT && is_null(in)) {
        TRY(next_event(in));
    } else {
        if (in->event.type != YAML_MAPPING_START_EVENT)
            return FAIL(STATUS_INVALID, "%s: lines like \"batch-size: 64\" are wanted here",
                        in->where);
        TRY(next_event(in));
        while (in->event.type != YAML_MAPPING_END_EVENT) {
            TRY(read_setting(in, take, ctx));
            TRY(next_event(in));
        }
        TRY(next_event(in));
    }
    TRY(next_event(in));
    if (in->event.type != YAML_STREAM_END_EVENT)
        return FAIL(STATUS_INVALID, "%s: a second document; one file is one document", in->where);
    return STATUS_OK;
}

status config_read(const char *path, config_fn take, void *ctx)
{
    status st = STATUS_OK;
    char *text = NULL;
    size_t size_bytes = 0;
    reader in = {.path = path};
    if (file_read(path, CONFIG_LIMIT_BYTES, &text, &size_bytes) != STATUS_OK)
        return status_context(STATUS_INVALID, "--config");
    if (!yaml_parser_initialize(&in.parser)) {
        st = FAIL(STATUS_NO_MEMORY, "%s: the YAML parser", path);
        goto out;
    }
    yaml_parser_set_input_string(&in.parser, (const unsigned char *)text, size_bytes);
    st = read_document(&in, take, ctx);
    if (in.holds_event)
        yaml_event_delete(&in.event);
    yaml_parser_delete(&in.parser);

out:
    free(text);
    return st;
}
