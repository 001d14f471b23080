#include "app/launch/worker_output.h"

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

void worker_output_init(worker_output *output)
{
    *output = (worker_output){.fd = -1, .file = -1, .target = -1};
}

status worker_output_open(worker_output *output, const worker_route *route, int *fd)
{
    int ends[2], file = -1;
    if (route->file[0] != '\0') {
        file = open(route->file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (file < 0)
            return FAIL(STATUS_IO, "open %s: %s%s", route->file, strerror(errno),
                        errno == EMFILE ? " (raise ulimit -n)" : "");
    }
    *fd = file;
    if (!route->piped)
        return STATUS_OK;
    *fd = -1;
    output->file = file;
    output->target = route->target;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "pipe: %s (raise ulimit -n)", strerror(errno));
    output->fd = ends[0];
    *fd = ends[1];
    /* Only the reading end: a worker's writes may wait. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "fcntl: %s", strerror(errno));
    return STATUS_OK;
}

/* Remembers a line for the report, without what a progress bar has overwritten. */
static void keep_line(worker_output *output, const char *text, size_t size_bytes)
{
    const char *bar = memrchr(text, '\r', size_bytes);
    if (bar != NULL) {
        size_bytes -= (size_t)(bar + 1 - text);
        text = bar + 1;
    }
    if (size_bytes == 0)
        return;
    char *copy = strndup(text, size_bytes < OUTPUT_KEPT_BYTES ? size_bytes : OUTPUT_KEPT_BYTES);
    char **place = &output->lines[output->lines_seen % OUTPUT_LINES];
    free(*place);
    *place = copy;
    output->lines_seen++;
}

/* Shows a piece of one line, the prefix in front where it begins the line. */
static void show_piece(worker_output *output, agent_console *console, const char *text,
                       size_t size_bytes)
{
    char whole[LOGS_PREFIX_BYTES + OUTPUT_LINE_BYTES];
    size_t head = output->begun ? 0 : strlen(output->prefix);
    memcpy(whole, output->prefix, head);
    memcpy(whole + head, text, size_bytes);
    output->begun = text[size_bytes - 1] != '\n';
    agent_console_write(console, output->target, whole, head + size_bytes);
}

static void show(worker_output *output, agent_console *console, const char *text, size_t size_bytes)
{
    if (output->target < 0 || size_bytes == 0)
        return;
    if (output->prefix[0] == '\0') {
        output->begun = text[size_bytes - 1] != '\n';
        agent_console_write(console, output->target, text, size_bytes);
        return;
    }
    while (size_bytes > 0) {
        const char *end = memchr(text, '\n', size_bytes);
        size_t piece = end == NULL ? size_bytes : (size_t)(end + 1 - text);
        show_piece(output, console, text, piece);
        text += piece;
        size_bytes -= piece;
    }
}

/* Shows what is whole in stream->line; all of it if the buffer is full or `flush` is set. */
static void show_lines(worker_output *output, bool flush, agent_console *console)
{
    size_t done = 0;
    for (;;) {
        const char *at = output->line + done;
        const char *end = memchr(at, '\n', output->line_bytes - done);
        if (end == NULL)
            break;
        keep_line(output, at, (size_t)(end - at));
        done += (size_t)(end + 1 - at);
    }
    size_t rest = output->line_bytes - done;
    /* A progress bar's line has no end; it is shown at once. */
    bool bar = rest > 0 && output->line[done] == '\r';
    if (rest == OUTPUT_LINE_BYTES || (flush && rest > 0))
        keep_line(output, output->line + done, rest);
    if (bar || flush || rest == OUTPUT_LINE_BYTES)
        done = output->line_bytes;
    show(output, console, output->line, done);
    if (flush && output->begun)
        show(output, console, "\n", 1);
    memmove(output->line, output->line + done, output->line_bytes - done);
    output->line_bytes -= done;
}

static void end_pipe(worker_output *output, agent_console *console)
{
    if (output->fd < 0)
        return;
    close(output->fd);
    output->fd = -1;
    show_lines(output, true, console);
}

static void say_cut(const worker_output *output, agent_console *console, int error)
{
    char link[32], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", output->file);
    ssize_t length = readlink(link, path, sizeof path);
    agent_console_say(console, "warning: %.*s: %s: it ends here, the run goes on\n",
                      length > 0 ? (int)length : (int)strlen(link), length > 0 ? path : link,
                      strerror(error));
}

/* A disk that is full costs the copy, not the run. */
static void copy_to_file(worker_output *output, agent_console *console, const char *data,
                         size_t size_bytes)
{
    while (output->file >= 0 && size_bytes > 0) {
        ssize_t n = write(output->file, data, size_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            say_cut(output, console, errno);
            close(output->file);
            output->file = -1;
            return;
        }
        data += n;
        size_bytes -= (size_t)n;
    }
}

bool worker_output_read(worker_output *output, agent_console *console)
{
    for (int i = 0; i < MAX_READS && output->fd >= 0; i++) {
        if (agent_console_is_full(console, output->target))
            return true;
        char *end = output->line + output->line_bytes;
        ssize_t n = read(output->fd, end, OUTPUT_LINE_BYTES - output->line_bytes);
        if (n > 0) {
            copy_to_file(output, console, end, (size_t)n);
            output->line_bytes += (size_t)n;
            show_lines(output, false, console);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            end_pipe(output, console);
        } else if (errno == EAGAIN) {
            return false;
        }
    }
    return output->fd >= 0;
}

/* Where memory was short the line was shown all the same; only the report lacks it. */
const char *worker_output_line(const worker_output *output, int64_t k)
{
    const char *line = output->lines[k % OUTPUT_LINES];
    return line != NULL ? line : "(a line is lost: out of memory)";
}

void worker_output_take_file(worker_output *output, const char *path)
{
    char *text = malloc(TAIL_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    off_t from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
    ssize_t n = text == NULL || end < 0 ? 0 : pread(fd, text, TAIL_BYTES, from);
    for (const char *at = text; n > 0;) {
        const char *stop = memchr(at, '\n', (size_t)n);
        size_t length = stop != NULL ? (size_t)(stop - at) : (size_t)n;
        keep_line(output, at, length);
        n -= (ssize_t)length + (stop != NULL);
        at += length + 1;
    }
    if (fd >= 0)
        close(fd);
    free(text);
}

void worker_output_close(worker_output *output, agent_console *console)
{
    end_pipe(output, console);
    if (output->file >= 0)
        close(output->file);
    for (int i = 0; i < OUTPUT_LINES; i++)
        free(output->lines[i]);
    worker_output_init(output);
}
