#include "app/launch/output.h"

#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A word ends at the text's next zero byte. */
status line_filter_parse(const char *flag, const char *list, line_filter *out)
{
    line_filter filter = {.n = 0};
    size_t used = 0;
    if (list != NULL && strlen(list) >= sizeof filter.text - 1)
        return FAIL(STATUS_INVALID, "%s: longer than %d letters", flag, LINE_FILTER_BYTES - 2);
    for (const char *at = list; at != NULL && *at != '\0';) {
        if (filter.n == LINE_FILTER_WORDS)
            return FAIL(STATUS_INVALID, "%s: more than %d words", flag, LINE_FILTER_WORDS);
        size_t begin = used;
        for (; *at != '\0' && (*at != ',' || at[1] == ','); at++) {
            at += *at == ',';
            filter.text[used++] = *at;
        }
        if (used > begin) { /* an empty word would match every line */
            filter.n++;
            filter.text[used++] = '\0';
        }
        at += *at == ',';
    }
    *out = filter;
    return STATUS_OK;
}

bool line_filter_matches(const line_filter *filter, const char *line, size_t size_bytes)
{
    const char *word = filter->text;
    for (int i = 0; i < filter->n; i++, word += strlen(word) + 1)
        if (memmem(line, size_bytes, word, strlen(word)) != NULL)
            return true;
    return false;
}

enum { SHOWN_BYTES = 80, DESCRIPTORS = 16, NAME_BYTES = 128 };

/* "3", or "0:1,12:3": like torchrun's, and for local ranks of more than one digit. Ranks that are
 * not there are passed over, as torchrun does. */
static status parse_streams(const char *flag, const char *text, uint8_t *out)
{
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') {
        memset(out, text[0] - '0', NPROC_PER_NODE_MAX);
        return STATUS_OK;
    }
    memset(out, 0, NPROC_PER_NODE_MAX);
    const char *at = text;
    for (;;) {
        int rank = 0;
        if (!number_next(&at, 0, NPROC_PER_NODE_MAX - 1, &rank) || at[0] != ':' || at[1] < '0' ||
            at[1] > '3' || (at[2] != '\0' && at[2] != ','))
            return FAIL(STATUS_INVALID,
                        "%s: '%.*s' is neither 0 to 3 (1 stdout, 2 stderr, 3 both) nor a list by "
                        "local rank, as 0:1,12:3",
                        flag, SHOWN_BYTES, text);
        out[rank] = (uint8_t)(at[1] - '0');
        if (at[2] == '\0')
            return STATUS_OK;
        at += 3;
    }
}

static status parse_filter(const char *text, bool *hidden)
{
    memset(hidden, text != NULL, NPROC_PER_NODE_MAX * sizeof *hidden);
    for (const char *at = text; at != NULL;) {
        int rank = 0;
        at += strspn(at, " ");
        if (!number_next(&at, 0, NPROC_PER_NODE_MAX - 1, &rank) || (*at != '\0' && *at != ','))
            return FAIL(STATUS_INVALID,
                        "--local-ranks-filter: '%.*s' is no list of local ranks, as 0,1,12",
                        SHOWN_BYTES, text);
        hidden[rank] = false;
        at = *at == ',' ? at + 1 : NULL;
    }
    return STATUS_OK;
}

status worker_logs_read(const options *opts, int nproc, worker_logs *out)
{
    memset(out, 0, sizeof *out);
    TRY(parse_streams("--redirects", opts->redirects, out->redirects));
    TRY(parse_streams("--tee", opts->tee, out->tees));
    TRY(parse_filter(opts->local_ranks_filter, out->hidden));
    TRY(line_filter_parse("--duplicate-stdout-filters", opts->duplicate_stdout_filters,
                          &out->out_filter));
    TRY(line_filter_parse("--duplicate-stderr-filters", opts->duplicate_stderr_filters,
                          &out->err_filter));
    bool shown = false;
    for (int i = 0; i < nproc; i++)
        shown = shown || !out->hidden[i];
    if (!shown)
        LOG_W("--local-ranks-filter=%.*s shows none of the local ranks 0 to %d", SHOWN_BYTES,
              opts->local_ranks_filter, nproc - 1);
    const char *template_text = opts->log_line_prefix_template;
    if (template_text == NULL)
        template_text = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (template_text == NULL || template_text[0] == '\0')
        template_text = "[${role_name}${local_rank}]:";
    if (strlen(template_text) >= sizeof out->template_text)
        return FAIL(STATUS_INVALID, "--log-line-prefix-template: longer than %d letters",
                    LOGS_TEMPLATE_BYTES - 1);
    strcpy(out->template_text, template_text);
    const char *base = opts->log_dir != NULL ? opts->log_dir : "";
    if (strlen(base) + 256 >= sizeof out->base)
        return FAIL(STATUS_INVALID, "--log-dir is too long");
    strcpy(out->base, base);
    out->none = strcmp(base, "/dev/null") == 0;
    return STATUS_OK;
}

status worker_logs_open(worker_logs *logs, const char *run_id)
{
    char path[FILE_PATH_BYTES], name[NAME_BYTES];
    status st;
    if (logs->none)
        return STATUS_OK;
    snprintf(name, sizeof name, "%s", run_id); /* as part of a file's name */
    for (char *c = name; *c != '\0'; c++)
        if ((!isalnum((unsigned char)*c) && strchr("-_.", *c) == NULL) || (c == name && *c == '.'))
            *c = '_';
    if (logs->base[0] != '\0') {
        TRY(status_context(file_make_folders(logs->base), "--log-dir"));
        st = file_make_temporary_folder(logs->base, name, path);
    } else {
        st = file_make_temporary_folder(NULL, "mnist_ddp", path);
    }
    if (st != STATUS_OK) {
        status_append("; name another folder for logs with --log-dir");
        return st;
    }
    char *whole = realpath(path, NULL); /* a worker may change its folder */
    snprintf(logs->folder, sizeof logs->folder, "%s",
             whole != NULL && strlen(whole) < FILE_PATH_BYTES - 256 ? whole : path);
    free(whole);
    return STATUS_OK;
}

/* A path in the folder of this launch; "" if nothing is written. */
__attribute__((format(printf, 3, 4))) static void path_in(const worker_logs *logs, char *out,
                                                          const char *fmt, ...)
{
    char rest[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(rest, sizeof rest, fmt, args);
    va_end(args);
    out[0] = '\0';
    if (logs->folder[0] != '\0')
        snprintf(out, FILE_PATH_BYTES, "%.*s/%s", FILE_PATH_BYTES - 256, logs->folder, rest);
}

void worker_logs_file(const worker_logs *logs, int attempt, int local_rank, const char *name,
                      char *out)
{
    path_in(logs, out, "attempt_%d/%d%s%s", attempt, local_rank, name[0] != '\0' ? "/" : "", name);
}

void worker_logs_dumps(const worker_logs *logs, int attempt, char *out)
{
    if (logs->outlive)
        path_in(logs, out, "ranks");
    else
        path_in(logs, out, "attempt_%d/ranks", attempt);
}

status worker_logs_start(const worker_logs *logs, int attempt, int nproc)
{
    char path[FILE_PATH_BYTES];
    if (logs->folder[0] == '\0')
        return STATUS_OK;
    worker_logs_dumps(logs, attempt, path);
    TRY(file_make_folders(path));
    path_in(logs, path, "attempt_%d", attempt);
    TRY(file_make_folders(path));
    for (int i = 0; i < nproc; i++) {
        worker_logs_file(logs, attempt, i, "", path);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return FAIL(STATUS_IO, "make folder %s: %s", path, strerror(errno));
    }
    return STATUS_OK;
}

void worker_logs_route(const worker_logs *logs, int attempt, int local_rank, int which,
                       worker_route *out)
{
    bool err = which == LOGS_STDERR, hidden = logs->hidden[local_rank];
    bool tee = (logs->tees[local_rank] & which) != 0;
    bool to_file = tee || (logs->redirects[local_rank] & which) != 0;
    *out = (worker_route){.piped = tee || (err && !to_file),
                          .target = hidden ? -1
                                    : err  ? STDERR_FILENO
                                           : STDOUT_FILENO,
                          .prefixed = tee};
    if (to_file)
        worker_logs_file(logs, attempt, local_rank, err ? "stderr.log" : "stdout.log", out->file);
    const line_filter *filter = err ? &logs->err_filter : &logs->out_filter;
    if (tee && !hidden && filter->n > 0 && logs->folder[0] != '\0') {
        out->filter = filter;
        path_in(logs, out->filtered, "attempt_%d/filtered_%s.log", attempt,
                err ? "stderr" : "stdout");
    }
    if (out->file[0] == '\0' && (to_file || (hidden && !out->piped)))
        strcpy(out->file, "/dev/null");
}

/* In the template "${name}" and "$name" are a macro's value, and "$$" is a dollar sign. */
void worker_logs_prefix(const worker_logs *logs, const char *role, int rank, int local_rank,
                        char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    char rank_text[16], local_text[16], host[256] = "?";
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(local_text, sizeof local_text, "%d", local_rank);
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    const char *const macros[][2] = {
        {"role_name", role}, {"local_rank", local_text}, {"rank", rank_text}, {"hostname", host}};
    size_t used = 0;
    for (const char *at = logs->template_text; *at != '\0' && used + 1 < LOGS_PREFIX_BYTES;) {
        bool braces = at[0] == '$' && at[1] == '{';
        const char *name = at + (braces ? 2 : 1), *value = NULL;
        size_t length = at[0] == '$' ? strspn(name, letters) : 0, room = LOGS_PREFIX_BYTES - used;
        for (size_t i = 0; i < sizeof macros / sizeof macros[0]; i++)
            if (strlen(macros[i][0]) == length && strncmp(macros[i][0], name, length) == 0)
                value = macros[i][1];
        if (value != NULL && (!braces || name[length] == '}')) {
            size_t n = (size_t)snprintf(out + used, room, "%s", value);
            used += n < room ? n : room - 1;
            at = name + length + braces;
        } else {
            out[used++] = *at;
            at += at[0] == '$' && at[1] == '$' ? 2 : 1;
        }
    }
    out[used] = '\0';
}

void worker_logs_check_disk(const worker_logs *logs)
{
    struct statvfs disk;
    if (logs->folder[0] != '\0' && statvfs(logs->folder, &disk) == 0 && disk.f_blocks > 0 &&
        disk.f_bavail == 0)
        LOG_W("%s: the disk is full: files that ranks write there are cut", logs->folder);
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *place)
{
    (void)about, (void)type, (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

void worker_logs_close(worker_logs *logs, bool keep)
{
    if (logs->folder[0] != '\0' && logs->base[0] == '\0' && !keep &&
        nftw(logs->folder, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS) != 0)
        LOG_D("%s is left: %s", logs->folder, strerror(errno));
    logs->folder[0] = '\0';
}

enum {
    WAIT_MS = 500,
    CHUNK_BYTES = 4096,      /* PIPE_BUF: a pipe takes so much at once, or says that it does not */
    BACKLOG_BYTES = 1 << 20, /* if no worker is to wait, the rest is dropped */
    MAX_READS = 64,          /* from one stream, before others have their turn: a full pipe */
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
        byte_buffer_free(&console->backlogs[fd].waiting);
        if (console->backlogs[fd].fd != fd)
            close(console->backlogs[fd].fd);
    }
    pthread_mutex_destroy(&console->lock);
    if (console->wake_fd >= 0)
        close(console->wake_fd);
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
    byte_buffer *waiting = &backlog->waiting;
    if (waiting->size > 0)
        byte_buffer_consume(waiting, write_now(backlog, (char *)waiting->data, waiting->size));
}

void output_console_push(output_console *console)
{
    eventfd_t woken;
    eventfd_read(console->wake_fd, &woken);
    pthread_mutex_lock(&console->lock);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        push(&console->backlogs[fd]);
    pthread_mutex_unlock(&console->lock);
}

/* All lines, formatted; the first one only if it begins here. NULL: no memory. */
static char *format_lines(const output_backlog *backlog, const char *text, size_t *size_bytes)
{
    const char *last = text + *size_bytes;
    size_t lines = 1, used = 0;
    for (const char *at = text; at < last; at++)
        lines += *at == '\n';
    char *out = malloc(*size_bytes + lines * TERMINAL_FORMAT_BYTES);
    terminal_facts facts = backlog->begun ? (terminal_facts){0} : backlog->terminal;
    if (out == NULL)
        return NULL;
    for (const char *end; text < last; text = end) {
        end = memchr(text, '\n', (size_t)(last - text));
        end = end != NULL ? end + 1 : last;
        used += terminal_format(facts, text, (size_t)(end - text), out + used);
        facts = backlog->terminal;
    }
    *size_bytes = used;
    return out;
}

/* Writes what is taken now, after what waits, and keeps the rest. */
static void put(output_console *console, int fd, const char *text, size_t size_bytes, bool is_log)
{
    output_backlog *backlog = &console->backlogs[fd];
    byte_buffer *waiting = &backlog->waiting;
    char *formatted = NULL;
    size_t done = 0;
    pthread_mutex_lock(&console->lock);
    if (is_log && (backlog->terminal.erases || backlog->terminal.colours))
        formatted = format_lines(backlog, text, &size_bytes);
    text = formatted != NULL ? formatted : text;
    push(backlog);
    if (waiting->size == 0)
        done = write_now(backlog, text, size_bytes);
    const size_t rest = size_bytes - done;
    if (rest > 0 && waiting->size + rest <= BACKLOG_BYTES &&
        byte_buffer_append(waiting, text + done, rest) != STATUS_OK) {
        backlog->error = ENOMEM;
        byte_buffer_consume(waiting, waiting->size);
    }
    /* A bar that a program draws itself may be erased as a whole. */
    backlog->begun = text[size_bytes - 1] != '\n' && text[0] != '\r';
    pthread_mutex_unlock(&console->lock);
    free(formatted);
    if (rest > 0)
        eventfd_write(console->wake_fd, 1);
}

void output_console_write(output_console *console, int fd, const char *text, size_t size_bytes)
{
    put(console, fd, text, size_bytes, false);
}

void output_console_say(output_console *console, int fd, const char *text, size_t size_bytes)
{
    put(console, fd, text, size_bytes, true);
}

static bool waits(output_console *console, int fd)
{
    pthread_mutex_lock(&console->lock);
    bool some = console->backlogs[fd].waiting.size > 0;
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

/* A disk that is full costs the copy, not the run. */
static void write_copy(int *file, const char *data, size_t size_bytes)
{
    int error = *file >= 0 ? file_try_append(*file, data, size_bytes) : 0;
    char link[32], path[512];
    if (error == 0)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", *file);
    ssize_t length = readlink(link, path, sizeof path);
    LOG_W("%.*s: %s: it ends here, the run goes on", length > 0 ? (int)length : (int)strlen(link),
          length > 0 ? path : link, strerror(error));
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

/* Shows text, each line with the prefix, which a begun one has already. */
static void show(output_stream *stream, output_console *console, const char *text,
                 size_t size_bytes)
{
    char whole[LOGS_PREFIX_BYTES + OUTPUT_LINE_BYTES];
    while (stream->target >= 0 && size_bytes > 0) {
        const char *end = stream->prefix[0] != '\0' ? memchr(text, '\n', size_bytes) : NULL;
        size_t piece = end == NULL ? size_bytes : (size_t)(end + 1 - text);
        size_t head = stream->begun ? 0 : strlen(stream->prefix);
        memcpy(whole, stream->prefix, head);
        memcpy(whole + head, text, piece);
        stream->begun = text[piece - 1] != '\n';
        put(console, stream->target, whole, head + piece, console->own);
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
