#include "base/log.h"

#include "base/host.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

static log_level threshold = LOG_VERBOSE;
static char prefix_text[36];
static log_sink *line_sink;
static void *sink_self;
static log_sink *line_copy;
static void *copy_self;

void log_set_level(log_level level)
{
    threshold = level;
}

void log_set_quiet(void)
{
    if (threshold == LOG_VERBOSE)
        threshold = LOG_INFO;
}

void log_set_level_from_environment(void)
{
    const char *text = environment_text("TORCH_DISTRIBUTED_DEBUG");
    if (text == NULL || strcasecmp(text, "OFF") == 0)
        return;
    if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "DETAIL") == 0)
        log_set_level(LOG_DEBUG);
    else
        LOG_W("TORCH_DISTRIBUTED_DEBUG is '%s', which is not OFF, INFO or DETAIL: taken as OFF",
              text);
}

void log_set_prefix(const char *prefix)
{
    if (prefix[0] == '\0')
        prefix_text[0] = '\0';
    else
        snprintf(prefix_text, sizeof prefix_text, "[%.31s] ", prefix);
}

void log_set_sink(log_sink *sink, void *self)
{
    line_sink = sink;
    sink_self = self;
}

void log_set_copy(log_sink *copy, void *self)
{
    line_copy = copy;
    copy_self = self;
}

void log_write(const char *text, size_t size_bytes)
{
    for (size_t done = 0; done < size_bytes;) {
        ssize_t n = write(STDERR_FILENO, text + done, size_bytes - done);
        if (n <= 0)
            return; /* nowhere left to say so */
        done += (size_t)n;
    }
}

void log_line(log_level level, const char *fmt, ...)
{
    bool is_shown = level <= threshold;
    bool is_copied = line_copy != NULL && (is_shown || level <= LOG_VERBOSE);
    if (!is_shown && !is_copied)
        return;
    static const char *const words[] = {"error: ", "warning: ", "", "", "debug: "};
    char text[LINE_BYTES], line[LINE_BYTES * 2];
    int head = snprintf(text, sizeof text, "%s%s", prefix_text, words[level]);
    va_list args;
    va_start(args, fmt);
    int body = vsnprintf(text + head, sizeof text - (size_t)head, fmt, args);
    va_end(args);
    if (body < 0)
        return;
    printable_copy(PRINTABLE_LINES, text, line, sizeof line - 1);
    size_t length = strlen(line);
    line[length++] = '\n';
    if (is_copied)
        line_copy(copy_self, line, length);
    if (!is_shown)
        return;
    if (line_sink != NULL)
        line_sink(sink_self, line, length);
    else
        log_write(line, length);
}
