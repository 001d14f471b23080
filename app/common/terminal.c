#include "app/common/terminal.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 8192, HURRY_MS = 500 };

static _Thread_local bool hurries; /* terminal_hurry_log */

/* mpirun gives ranks a terminal whatever stands behind it. srun does so only for --pty, which asks
 * for one; and when this program has become mpirun, it has looked behind it. */
static bool is_launchers(void)
{
    static const char *const theirs[] = {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK",
                                         "PMIX_RANK", "SLURM_STEP_ID"};
    bool found = false;
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++)
        found = found || environment_text(theirs[i]) != NULL;
    return found && environment_text("SLURM_PTY_PORT") == NULL &&
           environment_text("MNIST_DDP_MPIRUN") == NULL;
}

terminal_facts terminal_of(int fd)
{
    const char *kind = environment_text("TERM"), *force = environment_text("CLICOLOR_FORCE");
    bool erases = isatty(fd) == 1 && kind != NULL && strcmp(kind, "dumb") != 0 && !is_launchers();
    bool forced = force != NULL && strcmp(force, "0") != 0;
    bool colours = environment_text("NO_COLOR") == NULL && (forced || erases);
    return (terminal_facts){erases, colours,
                            .columns = erases ? paragraph_terminal_columns(fd) : 0};
}

bool terminal_may_follow(int fd)
{
    struct stat about;
    return fstat(fd, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode));
}

/* Where "error:" or "warning:" stands: at the begin, or after "[rank 1] ". */
static const char *find_word(const char *line, size_t size_bytes, size_t *length)
{
    static const char *const words[] = {"error:", "warning:"};
    const char *at = line, *end = line + size_bytes;
    const char *bracket = size_bytes > 0 && *line == '[' ? memchr(line, ']', size_bytes) : NULL;
    if (bracket != NULL && end - bracket > 2)
        at = bracket + 1 + (bracket[1] == ' ');
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        *length = strlen(words[i]);
        if ((size_t)(end - at) >= *length && memcmp(at, words[i], *length) == 0)
            return at;
    }
    return NULL;
}

static char *put(char *out, const char *text, size_t size_bytes)
{
    memcpy(out, text, size_bytes);
    return out + size_bytes;
}

static char *put_text(char *out, const char *text)
{
    return put(out, text, strlen(text));
}

/* "on node 1: mnist_ddp --nnodes=2 ...": the terminal breaks it, and copies it as one line. */
static bool has_command(const char *line, size_t size_bytes)
{
    static const char name[] = "mnist_ddp ", flag[] = " --";
    const char *at = memmem(line, size_bytes, name, sizeof name - 1);
    return at != NULL &&
           memmem(at, (size_t)(line + size_bytes - at), flag, sizeof flag - 1) != NULL;
}

/* Puts a new line in the place of spaces. Escapes, and what goes on a letter in UTF-8, have no
 * width. */
static void break_line(char *at, const char *end, int columns)
{
    char *space = NULL;
    int column = 0, after = 0; /* after: the column after the space */
    for (; at < end; at++) {
        while (at < end && *at == '\033')
            at += strcspn(at, "mK") + 1;
        if (at >= end || ((unsigned char)*at & 0xc0) == 0x80)
            continue;
        column = *at == '\r' || *at == '\n' ? 0 : column + 1;
        if (*at == ' ' && column > 1 && at[-1] != ' ') {
            space = at;
            after = column;
        } else if (column > columns && *at != ' ' && space != NULL) {
            *space = '\n';
            space = NULL;
            column -= after;
        }
    }
}

size_t terminal_format(terminal_facts t, const char *line, size_t size_bytes, char *out)
{
    char *to = t.erases ? put_text(out, TERMINAL_ERASE) : out;
    size_t length = 0;
    const char *word = t.colours ? find_word(line, size_bytes, &length) : NULL;
    if (word != NULL) {
        to = put(to, line, (size_t)(word - line));
        to = put_text(to, *word == 'e' ? TERMINAL_RED : TERMINAL_YELLOW);
        to = put(to, word, length);
        to = put_text(to, TERMINAL_PLAIN);
        size_bytes -= (size_t)(word + length - line);
        line = word + length;
    }
    to = put(to, line, size_bytes);
    if (t.columns > 0 && !has_command(out, (size_t)(to - out)))
        break_line(out, to, t.columns);
    return (size_t)(to - out);
}

int terminal_open_again(int fd)
{
    char link[32];
    struct stat about;
    if (fstat(fd, &about) != 0 || (!S_ISFIFO(about.st_mode) && !isatty(fd)))
        return fd;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int own = open(link, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own >= 0 ? own : fd;
}

/* Writes what is taken within `wait_ms`: a terminal that is stopped (Ctrl-S) keeps nobody longer.
 * The rest is left out: nothing is left to say so. */
static void terminal_write(int fd, const char *text, size_t size_bytes, int wait_ms)
{
    int64_t deadline_ns = clock_deadline_ns(wait_ms);
    int own = terminal_open_again(fd);
    for (size_t done = 0; done < size_bytes;) {
        struct pollfd ready = {.fd = own, .events = POLLOUT};
        int left_ms = (int)clock_remaining_ms(deadline_ns);
        if (poll(&ready, 1, left_ms) <= 0 || (ready.revents & POLLOUT) == 0)
            break;
        ssize_t n = write(own, text + done, size_bytes - done);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    if (own != fd)
        close(own);
}

static void write_line(void *self, const char *line, size_t size_bytes)
{
    (void)self;
    char text[LINE_BYTES + TERMINAL_FORMAT_BYTES];
    if (size_bytes > LINE_BYTES)
        size_bytes = LINE_BYTES;
    size_t length = terminal_format(terminal_of(STDERR_FILENO), line, size_bytes, text);
    if (hurries)
        terminal_write(STDERR_FILENO, text, length, HURRY_MS);
    else
        log_write(text, length);
}

void terminal_take_log(void)
{
    log_set_sink(write_line, NULL);
}

void terminal_hurry_log(void)
{
    hurries = true;
}

void terminal_leave(void)
{
    if (terminal_of(STDERR_FILENO).erases)
        terminal_write(STDERR_FILENO, TERMINAL_ERASE, strlen(TERMINAL_ERASE), HURRY_MS);
}

enum {
    INTERVAL_MS = 100,
    ERASE_MS = 500,
    MOST_COLUMNS = 400,
    LEAST_CELLS = 8,
    MOST_CELLS = 30,
    FRAME = 3, /* columns of a bar beside its cells: a blank and two brackets */
};

void status_parts_add(status_parts *to, int priority, const char *fmt, ...)
{
    va_list args;
    if (to->n == STATUS_PARTS)
        return;
    va_start(args, fmt);
    vsnprintf(to->parts[to->n].text, STATUS_PART_BYTES, fmt, args);
    va_end(args);
    to->parts[to->n++].priority = priority;
}

void status_parts_time(double seconds, char out[STATUS_TIME_BYTES])
{
    int64_t s = seconds > 0 && seconds < 1e12 ? (int64_t)seconds : 0;
    if (s < 3600)
        snprintf(out, STATUS_TIME_BYTES, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else
        snprintf(out, STATUS_TIME_BYTES, "%lld:%02d:%02d", (long long)(s / 3600),
                 (int)(s / 60 % 60), (int)(s % 60));
}

void status_parts_add_time(status_parts *to, int priority, double seconds, const char *what)
{
    char text[STATUS_TIME_BYTES];
    status_parts_time(seconds, text);
    status_parts_add(to, priority, "%s %s", text, what);
}

/* Columns of the parts from `priority` on, the bar with its fewest cells. */
static int columns_of(const status_parts *parts, int priority)
{
    int columns = parts->bar_priority >= priority ? LEAST_CELLS + FRAME : 0;
    for (int i = 0; i < parts->n; i++)
        if (parts->parts[i].priority >= priority)
            columns += (int)strlen(parts->parts[i].text) + (i > 0);
    return columns;
}

static int draw_bar(char *out, int cells, double done)
{
    int full = (int)(cells * (done > 0 ? done : 0));
    full = full < cells ? full : cells;
    out[0] = '[';
    memset(out + 1, '=', (size_t)full);
    memset(out + 1 + full, ' ', (size_t)(cells - full));
    out[1 + cells] = ']';
    return cells + 2;
}

void status_parts_fit(const status_parts *parts, int columns, char *out)
{
    int priority = 1, used = 0;
    while (columns_of(parts, priority) > columns && columns_of(parts, priority + 1) > 0)
        priority++;
    bool has_bar = parts->bar_priority >= priority && columns_of(parts, priority) <= columns;
    int cells = LEAST_CELLS + columns - columns_of(parts, priority);
    for (int i = 0; i < parts->n; i++) {
        const char *text = parts->parts[i].text;
        if (parts->parts[i].priority >= priority) {
            if (used > 0 && used < columns)
                out[used++] = ' ';
            int length = (int)strlen(text), room = columns - used;
            length = length < room ? length : room;
            memcpy(out + used, text, (size_t)length);
            used += length;
        }
        if (i == 0 && has_bar) {
            if (used > 0)
                out[used++] = ' ';
            used += draw_bar(out + used, cells < MOST_CELLS ? cells : MOST_CELLS, parts->done);
        }
    }
    out[used] = '\0';
}

static void draw(status_line *line)
{
    char text[MOST_COLUMNS + 1], whole[MOST_COLUMNS + sizeof TERMINAL_ERASE];
    status_parts parts = {.n = 0};
    int columns = paragraph_terminal_columns(line->fd) - 1; /* the last one may make a new row */
    pthread_mutex_lock(&line->lock);
    line->tell(line->ctx, &parts);
    pthread_mutex_unlock(&line->lock);
    status_parts_fit(&parts, columns < MOST_COLUMNS ? columns : MOST_COLUMNS, text);
    int length = snprintf(whole, sizeof whole, "\r%s\033[K", text);
    terminal_write(line->fd, whole, (size_t)length, 0);
}

static void *run(void *arg)
{
    status_line *line = arg;
    pthread_mutex_lock(&line->lock);
    while (!line->ending) {
        pthread_mutex_unlock(&line->lock);
        draw(line);
        int64_t next_ns = clock_deadline_ns(INTERVAL_MS);
        pthread_mutex_lock(&line->lock);
        while (!line->ending && clock_await(&line->changed, &line->lock, next_ns))
            continue;
    }
    pthread_mutex_unlock(&line->lock);
    return NULL;
}

void status_line_open(int fd, status_line_tell *tell, void *ctx, status_line *out)
{
    *out = (status_line){.fd = fd, .tell = tell, .ctx = ctx, .open = true};
    pthread_mutex_init(&out->lock, NULL);
    pthread_cond_init(&out->changed, NULL);
    out->is_drawn =
        fd >= 0 && thread_start(run, out, "the status line's", &out->thread) == STATUS_OK;
}

void status_line_close(status_line *line)
{
    if (!line->open)
        return;
    pthread_mutex_lock(&line->lock);
    line->ending = true;
    pthread_cond_signal(&line->changed);
    pthread_mutex_unlock(&line->lock);
    if (line->is_drawn)
        pthread_join(line->thread, NULL);
    pthread_cond_destroy(&line->changed);
    pthread_mutex_destroy(&line->lock);
    if (line->is_drawn)
        terminal_write(line->fd, TERMINAL_ERASE, strlen(TERMINAL_ERASE), ERASE_MS);
    line->open = line->is_drawn = false;
}
