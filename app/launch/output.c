#include "app/launch/output.h"

#include "base/file.h"
#include "base/host.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    WAIT_MS = 500,
    CHUNK_BYTES = 4096,      /* PIPE_BUF: a pipe takes so much at once, or says that it does not */
    BACKLOG_BYTES = 1 << 20, /* if no worker is to wait, the rest is dropped */
    MAX_READS = 64,          /* of one stream, before others have their turn: a full pipe */
    TAIL_BYTES = 64 << 10,
};

static void take_log_line(void *self, const char *line, size_t size_bytes)
{
    output_console_say(self, STDERR_FILENO, line, size_bytes);
}

void output_console_init(output_console *console)
{
    *console = (output_console){.stop_fd = -1, .wait_ms = WAIT_MS};
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        console->backlogs[fd] =
            (output_backlog){terminal_open_again(fd), .terminal = terminal_of(fd)};
    console->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&console->lock, NULL);
    log_set_sink(take_log_line, console);
}

void output_console_close(output_console *console)
{
    log_set_sink(NULL, NULL);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        free(console->backlogs[fd].text);
        if (console->backlogs[fd].fd != fd)
            close(console->backlogs[fd].fd);
    }
    pthread_mutex_destroy(&console->lock);
    if (console->wake_fd >= 0)
        close(console->wake_fd);
}

static void keep(output_backlog *backlog, const char *text, size_t size_bytes)
{
    size_t needed = backlog->size_bytes + size_bytes;
    if (needed > BACKLOG_BYTES)
        return;
    if (needed > backlog->room_bytes) {
        char *larger = realloc(backlog->text, needed * 2);
        if (larger == NULL) {
            backlog->error = ENOMEM;
            backlog->size_bytes = 0;
            return;
        }
        backlog->text = larger;
        backlog->room_bytes = needed * 2;
    }
    memcpy(backlog->text + backlog->size_bytes, text, size_bytes);
    backlog->size_bytes = needed;
}

/* How much the descriptor takes now. */
static size_t write_now(output_backlog *backlog, const char *text, size_t size_bytes)
{
    size_t done = 0;
    while (done < size_bytes && backlog->error == 0) {
        struct pollfd ready = {.fd = backlog->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0)
            break;
        size_t rest = size_bytes - done;
        ssize_t n = write(backlog->fd, text + done, rest < CHUNK_BYTES ? rest : CHUNK_BYTES);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            backlog->error = errno;
        if (n < 0 && errno == EAGAIN)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    return backlog->error != 0 ? size_bytes : done;
}

static void push(output_backlog *backlog)
{
    size_t done = write_now(backlog, backlog->text, backlog->size_bytes);
    if (done > 0 && done < backlog->size_bytes)
        memmove(backlog->text, backlog->text + done, backlog->size_bytes - done);
    backlog->size_bytes -= done;
}

void output_console_push(output_console *console)
{
    eventfd_t woken;
    eventfd_read(console->wake_fd, &woken);
    pthread_mutex_lock(&console->lock);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (console->backlogs[fd].size_bytes > 0)
            push(&console->backlogs[fd]);
    pthread_mutex_unlock(&console->lock);
}

/* Writes what is taken now, after what waits, and keeps the rest. Returns how much was written. */
static size_t write_or_keep(output_backlog *backlog, const char *text, size_t size_bytes)
{
    size_t done = 0;
    if (backlog->size_bytes > 0)
        push(backlog);
    if (backlog->size_bytes == 0)
        done = write_now(backlog, text, size_bytes);
    if (done < size_bytes)
        keep(backlog, text + done, size_bytes - done);
    /* A bar that a program draws itself may be erased as a whole. */
    backlog->begun = text[size_bytes - 1] != '\n' && text[0] != '\r';
    return done;
}

void output_console_write(output_console *console, int fd, const char *text, size_t size_bytes)
{
    pthread_mutex_lock(&console->lock);
    size_t done = write_or_keep(&console->backlogs[fd], text, size_bytes);
    pthread_mutex_unlock(&console->lock);
    if (done < size_bytes)
        eventfd_write(console->wake_fd, 1);
}

/* All lines, formatted; the first one only if it begins here. NULL: no memory. */
static char *format_lines(const output_backlog *backlog, const char *text, size_t size_bytes,
                          size_t *out_bytes)
{
    size_t lines = 1, used = 0;
    for (size_t i = 0; i < size_bytes; i++)
        lines += text[i] == '\n';
    char *out = malloc(size_bytes + lines * TERMINAL_FORMAT_BYTES);
    const terminal_facts plain = {0};
    bool begun = backlog->begun;
    while (out != NULL && size_bytes > 0) {
        const char *end = memchr(text, '\n', size_bytes);
        size_t line_bytes = end != NULL ? (size_t)(end + 1 - text) : size_bytes;
        used += terminal_format(begun ? plain : backlog->terminal, text, line_bytes, out + used);
        begun = false;
        text += line_bytes;
        size_bytes -= line_bytes;
    }
    *out_bytes = used;
    return out;
}

void output_console_say(output_console *console, int fd, const char *text, size_t size_bytes)
{
    output_backlog *backlog = &console->backlogs[fd];
    char *formatted = NULL;
    pthread_mutex_lock(&console->lock);
    if (backlog->terminal.erases || backlog->terminal.colours) {
        size_t formatted_bytes = 0;
        formatted = format_lines(backlog, text, size_bytes, &formatted_bytes);
        text = formatted != NULL ? formatted : text;
        size_bytes = formatted != NULL ? formatted_bytes : size_bytes;
    }
    size_t done = write_or_keep(backlog, text, size_bytes);
    pthread_mutex_unlock(&console->lock);
    free(formatted);
    if (done < size_bytes)
        eventfd_write(console->wake_fd, 1);
}

static bool waits(output_console *console, int fd)
{
    pthread_mutex_lock(&console->lock);
    bool some = console->backlogs[fd].size_bytes > 0;
    pthread_mutex_unlock(&console->lock);
    return some;
}

bool output_console_is_full(output_console *console, int fd)
{
    return fd >= 0 && !console->hurried && waits(console, fd);
}

int output_console_poll(output_console *console, struct pollfd *out)
{
    int n = 0;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (waits(console, fd))
            out[n++] = (struct pollfd){.fd = console->backlogs[fd].fd, .events = POLLOUT};
    out[n++] = (struct pollfd){.fd = console->wake_fd, .events = POLLIN};
    return n;
}

void output_console_flush(output_console *console)
{
    struct pollfd fds[OUTPUT_CONSOLE_FDS];
    for (;;) {
        output_console_push(console);
        int n = output_console_poll(console, fds) - 1; /* it is awake */
        if (n == 0)
            return;
        fds[n] = (struct pollfd){.fd = console->stop_fd, .events = POLLIN};
        bool hurried = console->hurried || (poll(&fds[n], 1, 0) > 0);
        int ready = poll(fds, (nfds_t)(hurried ? n : n + 1), hurried ? console->wait_ms : -1);
        if (hurried && ready == 0) {
            console->wait_ms = 0; /* once, not for every line */
            return;
        }
    }
}

int output_console_error(const output_console *console, int fd)
{
    return console->backlogs[fd].error;
}

void output_stream_init(output_stream *stream)
{
    *stream = (output_stream){.fd = -1, .file = -1, .filtered = -1, .target = -1};
}

status output_stream_open(output_stream *stream, const worker_route *route, int *fd)
{
    int ends[2], file = -1;
    if (route->file[0] != '\0') {
        file = open(route->file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (file < 0)
            return FAIL(STATUS_IO, "open %s: %s", route->file, file_limit_reason(errno));
    }
    *fd = file;
    if (!route->piped)
        return STATUS_OK;
    *fd = -1;
    stream->file = file;
    stream->target = route->target;
    if (route->filter != NULL) {
        stream->filter = route->filter;
        stream->filtered = open(route->filtered, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (stream->filtered < 0)
            return FAIL(STATUS_IO, "open %s: %s", route->filtered, file_limit_reason(errno));
    }
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "pipe: %s", file_limit_reason(errno));
    stream->fd = ends[0];
    *fd = ends[1];
    /* Only the reading end: a worker's writes may wait. */
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
        return FAIL(STATUS_IO, "fcntl: %s", strerror(errno));
    return STATUS_OK;
}

/* Remembers a line for the report, without what a progress bar has overwritten. */
static void keep_line(output_stream *stream, const char *text, size_t size_bytes)
{
    const char *bar = memrchr(text, '\r', size_bytes);
    if (bar != NULL) {
        size_bytes -= (size_t)(bar + 1 - text);
        text = bar + 1;
    }
    if (size_bytes == 0)
        return;
    char *copy = strndup(text, size_bytes < OUTPUT_KEPT_BYTES ? size_bytes : OUTPUT_KEPT_BYTES);
    char **place = &stream->lines[stream->lines_seen % OUTPUT_LINES];
    free(*place);
    *place = copy;
    stream->lines_seen++;
}

static void show_text(const output_stream *stream, output_console *console, const char *text,
                      size_t size_bytes)
{
    if (console->own)
        output_console_say(console, stream->target, text, size_bytes);
    else
        output_console_write(console, stream->target, text, size_bytes);
}

static void say_cut(int fd, int error)
{
    char link[32], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    LOG_W("%.*s: %s: it ends here, the run goes on", length > 0 ? (int)length : (int)strlen(link),
          length > 0 ? path : link, strerror(error));
}

/* A disk that is full costs the copy, not the run. */
static void write_copy(int *file, const char *data, size_t size_bytes)
{
    int error = *file >= 0 ? file_try_append(*file, data, size_bytes) : 0;
    if (error == 0)
        return;
    say_cut(*file, error);
    close(*file);
    *file = -1;
}

/* A line of the stream has come, without its end. The streams of all workers write to one file, a
 * line at a time. */
static void take_line(output_stream *stream, const char *text, size_t size_bytes)
{
    char whole[LOGS_PREFIX_BYTES + OUTPUT_LINE_BYTES + 1];
    keep_line(stream, text, size_bytes);
    if (stream->filtered < 0 || !line_filter_matches(stream->filter, text, size_bytes))
        return;
    size_t head = strlen(stream->prefix);
    memcpy(whole, stream->prefix, head);
    memcpy(whole + head, text, size_bytes);
    whole[head + size_bytes] = '\n';
    write_copy(&stream->filtered, whole, head + size_bytes + 1);
}

/* Shows a piece of one line; the prefix too, if it is the first piece. */
static void show_piece(output_stream *stream, output_console *console, const char *text,
                       size_t size_bytes)
{
    char whole[LOGS_PREFIX_BYTES + OUTPUT_LINE_BYTES];
    size_t head = stream->begun ? 0 : strlen(stream->prefix);
    memcpy(whole, stream->prefix, head);
    memcpy(whole + head, text, size_bytes);
    stream->begun = text[size_bytes - 1] != '\n';
    show_text(stream, console, whole, head + size_bytes);
}

static void show(output_stream *stream, output_console *console, const char *text,
                 size_t size_bytes)
{
    if (stream->target < 0 || size_bytes == 0)
        return;
    if (stream->prefix[0] == '\0') {
        stream->begun = text[size_bytes - 1] != '\n';
        show_text(stream, console, text, size_bytes);
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
static void show_lines(output_stream *stream, bool flush, output_console *console)
{
    size_t done = 0;
    for (;;) {
        const char *at = stream->line + done;
        const char *end = memchr(at, '\n', stream->line_bytes - done);
        if (end == NULL)
            break;
        take_line(stream, at, (size_t)(end - at));
        done += (size_t)(end + 1 - at);
    }
    size_t rest = stream->line_bytes - done;
    /* A progress bar's line has no end; it is shown at once. */
    bool bar = rest > 0 && stream->line[done] == '\r';
    if (rest == OUTPUT_LINE_BYTES || (flush && rest > 0))
        take_line(stream, stream->line + done, rest);
    if (bar || flush || rest == OUTPUT_LINE_BYTES)
        done = stream->line_bytes;
    show(stream, console, stream->line, done);
    if (flush && stream->begun)
        show(stream, console, "\n", 1);
    memmove(stream->line, stream->line + done, stream->line_bytes - done);
    stream->line_bytes -= done;
}

static void end_pipe(output_stream *stream, output_console *console)
{
    if (stream->fd < 0)
        return;
    close(stream->fd);
    stream->fd = -1;
    show_lines(stream, true, console);
}

bool output_stream_read(output_stream *stream, output_console *console)
{
    for (int i = 0; i < MAX_READS && stream->fd >= 0; i++) {
        if (output_console_is_full(console, stream->target))
            return true;
        char *end = stream->line + stream->line_bytes;
        ssize_t n = read(stream->fd, end, OUTPUT_LINE_BYTES - stream->line_bytes);
        if (n > 0) {
            write_copy(&stream->file, end, (size_t)n);
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

/* If memory was short, the line was shown all the same; only the report lacks it. */
const char *output_stream_line(const output_stream *stream, int64_t k)
{
    const char *line = stream->lines[k % OUTPUT_LINES];
    return line != NULL ? line : "(a line is lost: out of memory)";
}

void output_stream_take_file(output_stream *stream, const char *path)
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

void output_stream_close(output_stream *stream, output_console *console)
{
    end_pipe(stream, console);
    if (stream->file >= 0)
        close(stream->file);
    if (stream->filtered >= 0)
        close(stream->filtered);
    for (int i = 0; i < OUTPUT_LINES; i++)
        free(stream->lines[i]);
    output_stream_init(stream);
}
