#include "app/common/status_line.h"

#include "app/common/terminal.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

static int highest_priority(const status_parts *parts)
{
    int most = parts->bar_priority;
    for (int i = 0; i < parts->n; i++)
        if (parts->parts[i].priority > most)
            most = parts->parts[i].priority;
    return most;
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
    int priority = 1, most = highest_priority(parts), used = 0;
    while (priority < most && columns_of(parts, priority) > columns)
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

static void draw(const status_line *line)
{
    char text[MOST_COLUMNS + 1], whole[MOST_COLUMNS + sizeof TERMINAL_ERASE];
    status_parts parts = {.n = 0};
    int columns = paragraph_terminal_columns(line->fd) - 1; /* the last one may make a new row */
    line->tell(line->ctx, &parts);
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

status status_line_open(int fd, status_line_tell *tell, void *ctx, status_line *out)
{
    *out = (status_line){.fd = fd, .tell = tell, .ctx = ctx};
    pthread_mutex_init(&out->lock, NULL);
    pthread_cond_init(&out->changed, NULL);
    status st = thread_start(run, out, "the status line's", &out->thread);
    out->open = st == STATUS_OK;
    return st;
}

void status_line_close(status_line *line)
{
    if (!line->open)
        return;
    pthread_mutex_lock(&line->lock);
    line->ending = true;
    pthread_cond_signal(&line->changed);
    pthread_mutex_unlock(&line->lock);
    pthread_join(line->thread, NULL);
    pthread_cond_destroy(&line->changed);
    pthread_mutex_destroy(&line->lock);
    terminal_write(line->fd, TERMINAL_ERASE, strlen(TERMINAL_ERASE), ERASE_MS);
    line->open = false;
}
