#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = sizeof((status_kept *)0)->message };

static _Thread_local char message[MESSAGE_BYTES];

status status_fail(status code, const char *file, int line, const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    int error = errno;
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (length < 0)
        text[0] = '\0';
    /* The file's path depends on where the compiler was called from; its last two parts do not. */
    const char *name = strrchr(file, '/');
    while (name != NULL && name > file && name[-1] != '/')
        name--;
    snprintf(message, sizeof message, "%s%s (%s:%d)",
             code == STATUS_NO_MEMORY && error == ENOMEM ? "out of memory: " : "", text,
             name ? name : file, line);
    return code;
}

status status_context(status code, const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (length < 0)
        return code;
    char old[MESSAGE_BYTES];
    memcpy(old, message, sizeof old);
    int written = snprintf(message, sizeof message, "%s: ", text);
    if (written >= 0 && (size_t)written < sizeof message)
        snprintf(message + written, sizeof message - (size_t)written, "%s", old);
    return code;
}

const char *status_message(void)
{
    return message;
}

void status_keep(status_kept *out)
{
    memcpy(out->message, message, sizeof message);
}

void status_restore(const status_kept *kept)
{
    memcpy(message, kept->message, sizeof message);
}

const char *status_name(status code)
{
    static const char *const names[] = {"ok",      "invalid", "no memory", "i/o",
                                        "timeout", "peer",    "device"};
    size_t i = (size_t)code;
    return i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

void status_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "mnist_ddp: internal error: %s is false (%s:%d)\n", condition, file, line);
    abort();
}
