#include "app/launch/launch_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_READS = 64, /* before others have their turn: a full pipe's worth */
    TAIL_BYTES = 64 << 10,
};

void launch_stream_init(launch_stream *stream)
{
    *stream = (launch_stream){.fd = -1, .file = -1, .target = -1};
}

/* Remembers a line for the report, without what a progress bar has overwritten. */
static void keep_line(launch_stream *stream, const char *text, size_t size_bytes)
{
    const char *bar = memrchr(text, '\r', size_bytes);
    if (bar != NULL) {
        size_bytes -= (size_t)(bar + 1 - text);
        text = bar + 1;
    }
    if (size_bytes == 0)
        return;
    char *copy = strndup(text, size_bytes < STREAM_KEPT_BYTES ? size_bytes : STREAM_KEPT_BYTES);
    char **place = &stream->lines[stream->lines_seen % STREAM_LINES];
    free(*place);
    *place = copy;
    stream->lines_seen++;
}

/* Shows a piece of one line, the prefix in front where it begins the line. */
static void show_piece(launch_stream *stream, launch_console *console, const char *text,
                       size_t size_bytes)
{
    char whole[LAUNCH_PREFIX_BYTES + STREAM_LINE_BYTES];
    size_t head = stream->begun ? 0 : strlen(stream->prefix);
    memcpy(whole, stream->prefix, head);
    memcpy(whole + head, text, size_bytes);
    stream->begun = text[size_bytes - 1] != '\n';
    launch_console_write(console, stream->target, whole, head + size_bytes);
}

static void show(launch_stream *stream, launch_console *console, const char *text,
                 size_t size_bytes)
{
    if (stream->target < 0 || size_bytes == 0)
        return;
    if (stream->prefix[0] == '\0') {
        stream->begun = text[size_bytes - 1] != '\n';
        launch_console_write(console, stream->target, text, size_bytes);
        return;
    }
    while (size_bytes > 0) {
        const char *end = memchr(text, '\n', size_bytes);
        size_t piece = end == NULL ? size_bytes : (size_t)(end + 1 - text);
        show_piece(stream, console, text, piece);
        text += piece;
        size_bytes -= piece;
    }
}

/* Shows what is whole in stream->line; all of it if the buffer is full or `flush` is set. */
static void show_lines(launch_stream *stream, bool flush, launch_console *console)
{
    size_t done = 0;
    for (;;) {
        const char *at = stream->line + done;
        const char *end = memchr(at, '\n', stream->line_bytes - done);
        if (end == NULL)
            break;
        keep_line(stream, at, (size_t)(end - at));
        done += (size_t)(end + 1 - at);
    }
    size_t rest = stream->line_bytes - done;
    /* A progress bar's line has no end; it is shown at once. */
    bool bar = rest > 0 && stream->line[done] == '\r';
    if (rest == STREAM_LINE_BYTES || (flush && rest > 0))
        keep_line(stream, stream->line + done, rest);
    if (bar || flush || rest == STREAM_LINE_BYTES)
        done = stream->line_bytes;
    show(stream, console, stream->line, done);
    if (flush && stream->begun)
        show(stream, console, "\n", 1);
    memmove(stream->line, stream->line + done, stream->line_bytes - done);
    stream->line_bytes -= done;
}

static void end_pipe(launch_stream *stream, launch_console *console)
{
    if (stream->fd < 0)
        return;
    close(stream->fd);
    stream->fd = -1;
    show_lines(stream, true, console);
}

static void say_cut(const launch_stream *stream, launch_console *console, int error)
{
    char link[32], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", stream->file);
    ssize_t length = readlink(link, path, sizeof path);
    launch_console_say(console, "warning: %.*s: %s: it ends here, the run goes on\n",
                       length > 0 ? (int)length : (int)strlen(link), length > 0 ? path : link,
                       strerror(error));
}

/* A disk that is full costs the copy, not the run. */
static void copy_to_file(launch_stream *stream, launch_console *console, const char *data,
                         size_t size_bytes)
{
    while (stream->file >= 0 && size_bytes > 0) {
        ssize_t n = write(stream->file, data, size_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            say_cut(stream, console, errno);
            close(stream->file);
            stream->file = -1;
            return;
        }
        data += n;
        size_bytes -= (size_t)n;
    }
}

bool launch_stream_read(launch_stream *stream, launch_console *console)
{
    for (int i = 0; i < MAX_READS && stream->fd >= 0; i++) {
        if (launch_console_is_full(console, stream->target))
            return true;
        char *end = stream->line + stream->line_bytes;
        ssize_t n = read(stream->fd, end, STREAM_LINE_BYTES - stream->line_bytes);
        if (n > 0) {
            copy_to_file(stream, console, end, (size_t)n);
            stream->line_bytes += (size_t)n;
            show_lines(stream, false, console);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            end_pipe(stream, console);
        } else if (errno == EAGAIN) {
            return false;
        }
    }
    return stream->fd >= 0;
}

/* Where memory was short the line was shown all the same; only the report lacks it. */
const char *launch_stream_line(const launch_stream *stream, int64_t k)
{
    const char *line = stream->lines[k % STREAM_LINES];
    return line != NULL ? line : "(a line is lost: out of memory)";
}

void launch_stream_take_file(launch_stream *stream, const char *path)
{
    char *text = malloc(TAIL_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    off_t from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
    ssize_t n = text == NULL || end < 0 ? 0 : pread(fd, text, TAIL_BYTES, from);
    for (const char *at = text; n > 0;) {
        const char *stop = memchr(at, '\n', (size_t)n);
        size_t length = stop != NULL ? (size_t)(stop - at) : (size_t)n;
        keep_line(stream, at, length);
        n -= (ssize_t)length + (stop != NULL);
        at += length + 1;
    }
    if (fd >= 0)
        close(fd);
    free(text);
}

void launch_stream_close(launch_stream *stream, launch_console *console)
{
    end_pipe(stream, console);
    if (stream->file >= 0)
        close(stream->file);
    for (int i = 0; i < STREAM_LINES; i++)
        free(stream->lines[i]);
    launch_stream_init(stream);
}
