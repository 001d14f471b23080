#include "app/doctor/checkup.h"

#include "app/common/json_value.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 1024 };

static const char *const LEVEL_NAMES[] = {"ok", "note", "warning", "failed"};

static void add(checkup *c, checkup_level level, const char *name, const char *fmt, va_list args)
{
    char text[TEXT_BYTES];
    vsnprintf(text, sizeof text, fmt, args);
    c->warnings += level == CHECKUP_WARNING;
    if (level == CHECKUP_FAILED && c->failures++ == 0)
        snprintf(c->why, sizeof c->why, "%s", text);
    if (c->silent)
        return;
    if (!c->opts->json) {
        int column = printf("%-8s %-10s ", LEVEL_NAMES[level], name);
        paragraph_print_line(stdout, column, column, text);
        return;
    }
    json_t *entry = json_object();
    json_object_set_new(entry, "name", json_string(name));
    json_object_set_new(entry, "level", json_string(LEVEL_NAMES[level]));
    json_object_set_new(entry, "text", json_value_text(text));
    json_array_append_new(c->list, entry);
}

void checkup_add(checkup *c, checkup_level level, const char *name, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(c, level, name, fmt, args);
    va_end(args);
}

void checkup_fail(checkup *c, int exit_code, const char *name, const char *fmt, ...)
{
    va_list args;
    if (c->failures == 0)
        c->exit_code = exit_code;
    va_start(args, fmt);
    add(c, CHECKUP_FAILED, name, fmt, args);
    va_end(args);
}

void checkup_fail_message(checkup *c, int exit_code, const char *name)
{
    checkup_fail(c, exit_code, name, "%s", status_text());
}
