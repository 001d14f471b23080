#include "base/status.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local status_kept latest;

/* The file's path depends on where the compiler was called from; its last two parts do not. */
static const char *short_name(const char *file)
{
    const char *name = strrchr(file, '/');
    while (name != NULL && name > file && name[-1] != '/')
        name--;
    return name != NULL ? name : file;
}

status status_fail(status code, const char *file, int line, const char *fmt, ...)
{
    char text[sizeof latest.text];
    int error = errno;
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (length < 0)
        text[0] = '\0';
    bool by_errno = code == STATUS_NO_MEMORY && error == ENOMEM;
    snprintf(latest.text, sizeof latest.text, "%s%s", by_errno ? "out of memory: " : "", text);
    latest.file = short_name(file);
    latest.line = line;
    LOG_D("%s: %s (%s:%d)", status_name(code), latest.text, latest.file, line);
    errno = error;
    return code;
}

status status_context(status code, const char *fmt, ...)
{
    char text[sizeof latest.text];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (length < 0)
        return code;
    char old[sizeof latest.text];
    memcpy(old, latest.text, sizeof old);
    int written = snprintf(latest.text, sizeof latest.text, "%s: ", text);
    if (written >= 0 && (size_t)written < sizeof latest.text)
        snprintf(latest.text + written, sizeof latest.text - (size_t)written, "%s", old);
    return code;
}

void status_append(const char *fmt, ...)
{
    size_t length = strlen(latest.text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(latest.text + length, sizeof latest.text - length, fmt, args);
    va_end(args);
}

const char *status_text(void)
{
    return latest.text;
}

const char *status_location(void)
{
    static _Thread_local char location[64];
    if (latest.file == NULL)
        return "";
    snprintf(location, sizeof location, "%s:%d", latest.file, latest.line);
    return location;
}

void status_keep(status_kept *out)
{
    *out = latest;
}

void status_restore(const status_kept *kept)
{
    latest = *kept;
}

const char *status_name(status code)
{
    static const char *const names[] = {"ok",           "invalid",  "no memory", "i/o",
                                        "timeout",      "peer",     "device",    "refused",
                                        "unknown host", "no module"};
    size_t i = (size_t)code;
    return i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

void status_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "mnist_ddp: internal error: %s is false (%s:%d)\n", condition, file, line);
    abort();
}
