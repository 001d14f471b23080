#include "app/train/metrics.h"

#include "app/common/run_files.h"
#include "app/train/event_file.h"
#include "app/train/metrics_lines.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    INTERVAL_MS = 1000,
    FLUSH_MS = 5000,
    ENTRIES = 4096, /* that can wait for the thread */
    NAMESAKES = 1000,
    HOST_BYTES = 64,
};

/* A file that is appended to. Only the thread writes. */
typedef struct output {
    int fd;
    char path[FILE_PATH_BYTES];
} output;

/* Entries wait in `entries` until the thread swaps them for its own, empty ones. */
struct metrics {
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows, up to the thread's own */
    pthread_cond_t changed;
    metrics_entry *entries; /* (ENTRIES) */
    int n;
    int64_t dropped; /* for which there was no room */
    bool urgent;     /* an epoch has ended, or somebody waits: write now */
    bool writing;    /* the thread's own entries */
    pthread_cond_t written;
    bool closing;

    metrics_entry *own; /* (ENTRIES), the thread's */
    output lines, events;
    bool failed;        /* no more is written */
    double wall_zero_s; /* seconds since 1970 at the zero of now_ns */
    int64_t started_ns; /* of the program */
    int64_t from_step;  /* of the checkpoint that the run continues; 0 */
    metrics_lines_found before;
};

/* The first failure is told. */
static void append(metrics *m, const output *to, const void *data, size_t size_bytes)
{
    if (m->failed || file_append(to->fd, to->path, data, size_bytes) == STATUS_OK)
        return;
    m->failed = true;
    LOG_W("no more metrics are written: %s", status_text());
}

static double wall_time(const metrics *m, int64_t now_ns)
{
    return m->wall_zero_s + clock_seconds(now_ns);
}

/* The entry as an event; returns its size, 0 if it has none. */
static size_t encode(const metrics *m, const metrics_entry *e, uint8_t *out)
{
    const event_scalar step[] = {
        {"train/loss", e->loss}, {"train/lr", e->lr}, {"train/images_per_s", e->images_per_s}};
    const event_scalar test[] = {{"test/loss", e->test_loss}, {"test/accuracy", e->test_acc}};
    const event_scalar val[] = {{"val/loss", e->val_loss}, {"val/accuracy", e->val_acc}};
    double now = wall_time(m, e->now_ns);
    if (e->step == m->from_step && (m->before.cut & 1u << e->event) != 0)
        return 0; /* an earlier start's event file has it, and that step's events stay there */
    if (e->event == METRICS_STEP)
        return event_file_scalars(now, e->step, step, 3, out);
    if (e->event == METRICS_VALIDATION || (e->validates && !isnan(e->val_acc)))
        return event_file_scalars(now, e->step, val, 2, out);
    return isnan(e->test_acc) ? 0 : event_file_scalars(now, e->step, test, 2, out);
}

/* Whole lines and records: what a killed run leaves has one torn one at most. */
static void write_entries(metrics *m, int n)
{
    enum { BYTES = 16384 };
    char lines[BYTES];
    uint8_t events[BYTES];
    size_t n_lines = 0, n_events = 0;
    for (int i = 0; i < n; i++) {
        const metrics_entry *e = &m->own[i];
        double time_s = m->before.time_s + clock_seconds(e->now_ns - m->started_ns);
        n_lines += metrics_lines_print(e, time_s, lines + n_lines);
        n_events += encode(m, e, events + n_events);
        bool full =
            n_lines > BYTES - METRICS_LINE_BYTES || n_events > BYTES - EVENT_FILE_RECORD_BYTES;
        if (!full && i + 1 < n)
            continue;
        append(m, &m->events, events, n_events); /* a test that has its line has its event */
        append(m, &m->lines, lines, n_lines);
        n_lines = n_events = 0;
    }
}

/* With the lock held: waits for entries, and then for more of them until they are due. */
static void await_entries(metrics *m)
{
    while (m->n == 0 && !m->closing)
        (void)clock_await(&m->changed, &m->lock, clock_deadline_ns(INTERVAL_MS));
    int64_t deadline_ns = clock_deadline_ns(INTERVAL_MS);
    while (!m->urgent && !m->closing && m->n < ENTRIES / 2 && !clock_passed(deadline_ns))
        (void)clock_await(&m->changed, &m->lock, deadline_ns);
}

static void *write_all(void *arg)
{
    metrics *m = arg;
    bool last = false;
    pthread_mutex_lock(&m->lock);
    while (!last) {
        await_entries(m);
        metrics_entry *filled = m->entries;
        int n = m->n;
        m->entries = m->own;
        m->own = filled;
        m->n = 0;
        m->urgent = false;
        m->writing = true;
        last = m->closing;
        pthread_mutex_unlock(&m->lock);
        write_entries(m, n);
        pthread_mutex_lock(&m->lock);
        m->writing = false;
        pthread_cond_signal(&m->written);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void metrics_add(metrics *m, const metrics_entry *entry)
{
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    if (m->n < ENTRIES)
        m->entries[m->n++] = *entry;
    else
        m->dropped++;
    m->urgent = m->urgent || entry->event != METRICS_STEP;
    if (m->urgent || m->n == 1 || m->n == ENTRIES / 2)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void metrics_flush(metrics *m)
{
    if (m == NULL)
        return;
    int64_t deadline_ns = clock_deadline_ns(FLUSH_MS);
    pthread_mutex_lock(&m->lock);
    m->urgent = m->n > 0;
    pthread_cond_signal(&m->changed);
    while ((m->n > 0 || m->writing) && !clock_passed(deadline_ns))
        (void)clock_await(&m->written, &m->lock, deadline_ns);
    pthread_mutex_unlock(&m->lock);
}

/* A file of this start's own, named after the second; an earlier start may have had the same. */
static status open_events(metrics *m, const metrics_options *settings)
{
    char host[HOST_BYTES] = "", name[2 * HOST_BYTES];
    uint8_t record[EVENT_FILE_RECORD_BYTES];
    output *to = &m->events;
    time_t now = time(NULL);
    if (gethostname(host, sizeof host - 1) != 0 || strchr(host, '/') != NULL)
        strcpy(host, "localhost");
    for (int i = 0; i < NAMESAKES && to->fd < 0; i++) {
        snprintf(name, sizeof name, "events.out.tfevents.%lld.%s", (long long)now + i, host);
        TRY(file_join(settings->folder, name, to->path));
        to->fd = open(to->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (to->fd < 0 && errno != EEXIST)
            break;
    }
    if (to->fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", to->path, strerror(errno));
    double wall = wall_time(m, clock_now_ns());
    TRY(file_append(to->fd, to->path, record, event_file_version(wall, record)));
    return file_append(to->fd, to->path, record,
                       event_file_start(wall, settings->step + 1, record));
}

static void set_clock(metrics *m, int64_t started_ns)
{
    struct timespec wall;
    (void)timespec_get(&wall, TIME_UTC);
    m->started_ns = started_ns;
    m->wall_zero_s = (double)wall.tv_sec + clock_seconds(wall.tv_nsec - clock_now_ns());
}

static status open_all(metrics *m, const metrics_options *settings)
{
    m->entries = malloc(sizeof *m->entries * ENTRIES);
    m->own = malloc(sizeof *m->own * ENTRIES);
    if (m->entries == NULL || m->own == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes of metrics", sizeof *m->own * ENTRIES);
    set_clock(m, settings->started_ns);
    m->from_step = settings->step;
    TRY(file_join(settings->folder, RUN_FILE_METRICS, m->lines.path));
    TRY(metrics_lines_open(m->lines.path, settings, &m->lines.fd, &m->before));
    TRY(open_events(m, settings));
    TRY(thread_start(write_all, m, "the metrics'", &m->thread));
    m->has_thread = true;
    if (settings->cores->n > 0)
        (void)cores_bind(m->thread, settings->cores->ids, settings->cores->n);
    return STATUS_OK;
}

status metrics_open(const metrics_options *settings, metrics **out)
{
    metrics *m = calloc(1, sizeof *m);
    if (m == NULL)
        return FAIL(STATUS_NO_MEMORY, "metrics");
    m->lines.fd = m->events.fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    pthread_cond_init(&m->written, NULL);
    status st = open_all(m, settings);
    if (st == STATUS_OK)
        *out = m;
    else
        metrics_close(m);
    return st;
}

static void end_thread(metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    if (m->dropped > 0)
        LOG_W("%s: %lld lines are missing: the disk was too slow for them", m->lines.path,
              (long long)m->dropped);
}

void metrics_close(metrics *m)
{
    if (m == NULL)
        return;
    status_kept cause;
    status_keep(&cause);
    if (m->has_thread)
        end_thread(m);
    if (m->lines.fd >= 0)
        close(m->lines.fd);
    if (m->events.fd >= 0)
        close(m->events.fd);
    pthread_cond_destroy(&m->changed);
    pthread_cond_destroy(&m->written);
    pthread_mutex_destroy(&m->lock);
    free(m->entries);
    free(m->own);
    free(m);
    status_restore(&cause);
}
