#include "app/data/fetch_progress.h"

#include "app/common/terminal.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <unistd.h>

enum { LINE_MS = 2000 };

static const double MB = 1e6;

enum { RATE_PRIORITY = 1, BAR_PRIORITY, LEFT_PRIORITY, NAME_PRIORITY, SIZE_PRIORITY };

double fetch_progress_s(const fetch_progress *p)
{
    int64_t end_ns = p->ended_ns != 0 ? p->ended_ns : clock_now_ns();
    return clock_seconds(end_ns - p->started_ns);
}

/* Bytes a second, of what came. */
static double rate_of(const fetch_progress *p)
{
    double seconds = fetch_progress_s(p);
    return seconds > 0 ? (double)p->came_bytes / seconds : 0;
}

static void tell_line(void *ctx, status_parts *out)
{
    fetch_progress *p = ctx;
    pthread_mutex_lock(&p->lock);
    double done = (double)(p->before_bytes + p->done_bytes), all = (double)p->all_bytes;
    double rate = rate_of(p);
    status_parts_add(out, NAME_PRIORITY, "%s", p->name);
    status_parts_add(out, SIZE_PRIORITY, "%.1f/%.1f MB", done / MB, all / MB);
    if (rate > 0) {
        status_parts_add(out, RATE_PRIORITY, "%.1f MB/s", rate / MB);
        status_parts_add_time(out, LEFT_PRIORITY, (all - done) / rate, "left");
    }
    out->bar_priority = BAR_PRIORITY;
    out->done = all > 0 ? done / all : 0;
    pthread_mutex_unlock(&p->lock);
}

void fetch_progress_open(uint64_t all_bytes, bool quiet, fetch_progress *out)
{
    *out = (fetch_progress){.all_bytes = all_bytes, .started_ns = clock_now_ns(), .open = true};
    out->next_line_ns = quiet ? INT64_MAX : clock_deadline_ns(LINE_MS);
    pthread_mutex_init(&out->lock, NULL);
    if (quiet || !terminal_of(STDERR_FILENO).erases)
        return;
    if (status_line_open(STDERR_FILENO, tell_line, out, &out->line) == STATUS_OK)
        out->next_line_ns = INT64_MAX;
}

void fetch_progress_next(fetch_progress *p, const char *name)
{
    pthread_mutex_lock(&p->lock);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->before_bytes += p->done_bytes;
    p->done_bytes = 0;
    p->begins = true;
    pthread_mutex_unlock(&p->lock);
}

void fetch_progress_tell(void *ctx, uint64_t done_bytes)
{
    fetch_progress *p = ctx;
    pthread_mutex_lock(&p->lock);
    if (!p->begins && done_bytes > p->done_bytes)
        p->came_bytes += done_bytes - p->done_bytes;
    p->begins = false;
    p->done_bytes = done_bytes;
    double done = (double)(p->before_bytes + done_bytes), rate = rate_of(p);
    pthread_mutex_unlock(&p->lock);
    if (!clock_passed(p->next_line_ns))
        return;
    p->next_line_ns = clock_deadline_ns(LINE_MS);
    LOG_I("fetching %s: %.1f of %.1f MB, %.1f MB/s", p->name, done / MB, (double)p->all_bytes / MB,
          rate / MB);
}

void fetch_progress_close(fetch_progress *p)
{
    if (!p->open)
        return;
    status_line_close(&p->line);
    pthread_mutex_destroy(&p->lock);
    p->ended_ns = clock_now_ns();
    p->open = false;
}
