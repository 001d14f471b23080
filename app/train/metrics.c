#include "app/train/metrics.h"

#include "app/common/run_files.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Records of the event file. */

/* Fields of the messages, and how a field is encoded. */
enum { WALL_TIME = 1, STEP = 2, FILE_VERSION = 3, SUMMARY = 5, SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, LOG_STATUS = 1, STATUS_START = 1 };
enum { VARINT = 0, FIXED_64 = 1, LENGTH_DELIMITED = 2, FIXED_32 = 5 };

enum { LENGTH_BYTES = 8, CRC_BYTES = 4, HEADER_BYTES = LENGTH_BYTES + CRC_BYTES };

static uint32_t masked_crc(const uint8_t *data, size_t size_bytes)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size_bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* Each of these writes at `at`, and returns the end of what it has written. */

static uint8_t *put_little_endian(uint8_t *at, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

/* Seven bits a byte, the lowest first; the top bit says that more follow. */
static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *put_key(uint8_t *at, int field, int encoding)
{
    return put_varint(at, (uint64_t)(field << 3 | encoding));
}

static uint8_t *put_bytes(uint8_t *at, int field, const void *data, size_t size_bytes)
{
    at = put_varint(put_key(at, field, LENGTH_DELIMITED), size_bytes);
    memcpy(at, data, size_bytes);
    return at + size_bytes;
}

/* An event that is at `step`, -1: at none, and has one more field, of bytes. */
static size_t put_record(double wall_time, int64_t step, int field, const uint8_t *bytes,
                         size_t n_bytes, uint8_t *out)
{
    uint8_t *event = out + HEADER_BYTES, *at = put_key(event, WALL_TIME, FIXED_64);
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    at = put_little_endian(at, bits, sizeof bits);
    if (step >= 0)
        at = put_varint(put_key(at, STEP, VARINT), (uint64_t)step);
    at = put_bytes(at, field, bytes, n_bytes);
    size_t size_bytes = (size_t)(at - event);
    put_little_endian(out, size_bytes, LENGTH_BYTES);
    put_little_endian(out + LENGTH_BYTES, masked_crc(out, LENGTH_BYTES), CRC_BYTES);
    put_little_endian(at, masked_crc(event, size_bytes), CRC_BYTES);
    return HEADER_BYTES + size_bytes + CRC_BYTES;
}

/* The first two of every file. */
static size_t event_file_begin(double wall_time, int64_t step, uint8_t *out)
{
    static const uint8_t version[] = "brain.Event:2",
                         start[] = {LOG_STATUS << 3 | VARINT, STATUS_START};
    size_t n = put_record(wall_time, -1, FILE_VERSION, version, sizeof version - 1, out);
    return n + put_record(wall_time, step, SESSION_LOG, start, sizeof start, out + n);
}

size_t event_file_scalars(double wall_time, int64_t step, const event_scalar *scalars, int n,
                          uint8_t *out)
{
    uint8_t summary[EVENT_FILE_MAX_SCALARS * (EVENT_FILE_TAG_BYTES + 12)], *end = summary;
    ASSERT(n >= 1 && n <= EVENT_FILE_MAX_SCALARS);
    for (int i = 0; i < n; i++) {
        uint8_t value[EVENT_FILE_TAG_BYTES + 8];
        size_t length = strlen(scalars[i].tag);
        float number = (float)scalars[i].value;
        uint32_t bits;
        ASSERT(length < EVENT_FILE_TAG_BYTES);
        memcpy(&bits, &number, sizeof bits);
        uint8_t *at = put_bytes(value, VALUE_TAG, scalars[i].tag, length);
        at = put_little_endian(put_key(at, VALUE_SIMPLE, FIXED_32), bits, sizeof bits);
        end = put_bytes(end, SUMMARY_VALUE, value, (size_t)(at - value));
    }
    return put_record(wall_time, step, SUMMARY, summary, (size_t)(end - summary), out);
}

/* Lines of metrics.jsonl. */

static const char *const NAMES[] = {[METRICS_STEP] = "step",
                                    [METRICS_TEST] = "test",
                                    [METRICS_VALIDATION] = "validation",
                                    [METRICS_EPOCH] = "epoch"};
enum { N_NAMES = sizeof NAMES / sizeof NAMES[0] };

enum { READ_BYTES = 512 << 20 };

#define DAMAGED ".damaged" /* the end of the name of a file that was put aside */

/* ,"key":value */
static size_t print_number(const char *key, double value, int digits, char *out)
{
    enum { ROOM_BYTES = 48 };
    if (!isfinite(value))
        return (size_t)snprintf(out, ROOM_BYTES, ",\"%s\":null", key);
    return (size_t)snprintf(out, ROOM_BYTES, ",\"%s\":%.*g", key, digits, value);
}

size_t metrics_lines_print(const metrics_entry *e, double time_s, char *out)
{
    enum { DIGITS = 7, TIME_DIGITS = 12, EXACT_DIGITS = 10 };
    bool ends_epoch = e->event == METRICS_EPOCH;
    bool trained = e->event == METRICS_STEP || ends_epoch;
    size_t n = (size_t)snprintf(out, METRICS_LINE_BYTES,
                                "{\"event\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64,
                                NAMES[e->event], e->step, e->epoch + 1);
    n += print_number("time_s", round(time_s * 1e6) / 1e6, TIME_DIGITS, out + n);
    if (trained)
        n += print_number(ends_epoch ? "train_loss" : "loss", e->loss, DIGITS, out + n);
    if (!(e->grad_norm <= 0))
        n += print_number("grad_norm", e->grad_norm, DIGITS, out + n);
    if (e->event == METRICS_VALIDATION || (ends_epoch && e->validates)) {
        n += print_number("val_loss", e->val_loss, DIGITS, out + n);
        n += print_number("val_acc", e->val_acc, EXACT_DIGITS, out + n);
    }
    if (e->event == METRICS_TEST || ends_epoch) {
        n += print_number("test_loss", e->test_loss, DIGITS, out + n);
        n += print_number("test_acc", e->test_acc, EXACT_DIGITS, out + n);
    }
    if (trained) {
        n += print_number("lr", e->lr, DIGITS, out + n);
        n += print_number("images_per_s", e->images_per_s, DIGITS, out + n);
    }
    memcpy(out + n, "}\n", 3);
    return n + 2;
}

/* A file as it is read. */
typedef struct reading {
    const metrics_options *from;
    size_t kept_bytes; /* at its beginning */
    int64_t n_lines;
    int64_t n_bad, first_bad; /* lines that cannot be read and stay, the first by number from 1 */
    bool readable;            /* a line is */
    bool ended;               /* what stays of it */
    metrics_lines_found found;
} reading;

/* N_NAMES: none of them. */
static int event_of(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "event"));
    int event = 0;
    while (event < N_NAMES && (name == NULL || strcmp(name, NAMES[event]) != 0))
        event++;
    return event;
}

/* A test inside an epoch is of one that is not complete; that at a run's end, of one that is. */
static bool is_before(const json_t *entry, const metrics_options *from)
{
    const json_t *step = json_object_get(entry, "step");
    int64_t at = json_integer_value(step);
    int64_t epoch = json_integer_value(json_object_get(entry, "epoch"));
    int event = event_of(entry);
    bool of_end = event == METRICS_TEST && at == from->step && epoch <= from->epochs;
    return json_is_integer(step) && at <= from->step &&
           !(event == METRICS_EPOCH && epoch > from->epochs) && !of_end;
}

static bool has_test(const json_t *entry)
{
    return json_is_number(json_object_get(entry, "test_acc")) ||
           json_is_number(json_object_get(entry, "val_acc"));
}

/* The line from `begin` to `end`, with what it says. One that cannot be read was torn by a kill if
 * it is the last one; another one stays. */
static void look_at(reading *r, const json_t *entry, size_t begin, size_t end)
{
    const json_t *step = json_object_get(entry, "step");
    bool readable = json_is_integer(step);
    if (!r->ended && r->kept_bytes < begin && r->n_bad++ == 0)
        r->first_bad = r->n_lines;
    r->n_lines++;
    r->readable = r->readable || readable;
    if (!r->ended) {
        r->ended = readable && !is_before(entry, r->from);
        r->kept_bytes = readable && !r->ended ? end : begin;
        if (readable && !r->ended)
            r->found.time_s = json_number_value(json_object_get(entry, "time_s"));
    }
    if (r->ended && json_integer_value(step) == r->from->step && has_test(entry))
        r->found.cut |= 1u << event_of(entry);
}

static status look_at_all(const char *path, reading *r)
{
    char *text = NULL;
    size_t size_bytes = 0, end = 0;
    status st = STATUS_OK;
    TRY(file_read(path, READ_BYTES, &text, &size_bytes));
    for (size_t begin = 0; begin < size_bytes && st == STATUS_OK; begin = end) {
        const char *line = text + begin, *newline = memchr(line, '\n', size_bytes - begin);
        json_t *entry = NULL;
        end = newline != NULL ? (size_t)(newline - text) + 1 : size_bytes;
        if (newline != NULL) /* what is no JSON is no entry */
            st = json_text_value(line, end - begin, RUN_FILE_METRICS, &entry);
        st = st == STATUS_NO_MEMORY ? st : STATUS_OK;
        look_at(r, entry, begin, end);
        json_decref(entry);
    }
    free(text);
    return st;
}

/* The file has no line of metrics: its name is free afterwards. */
static status put_aside(const char *path)
{
    char aside[FILE_PATH_BYTES + sizeof DAMAGED];
    snprintf(aside, sizeof aside, "%s" DAMAGED, path);
    if (link(path, aside) != 0 || unlink(path) != 0)
        return FAIL(STATUS_IO, "%s has no line that can be read; keep it as %s: %s", path, aside,
                    strerror(errno));
    LOG_W("%s has no line that can be read: it is kept as %s", path, aside);
    return STATUS_OK;
}

static status cut(int fd, const char *path, const reading *r)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL(STATUS_INVALID, "%s: not a regular file", path);
    if (ftruncate(fd, (off_t)r->kept_bytes) != 0)
        return FAIL(STATUS_IO, "cut %s: %s", path, strerror(errno));
    if (r->n_bad > 0)
        LOG_W("%s: lines that cannot be read: %" PRId64 ", the first is line %" PRId64
              "; they stay as they are",
              path, r->n_bad, r->first_bad);
    return STATUS_OK;
}

status metrics_lines_open(const char *path, const metrics_options *from, int *fd,
                          metrics_lines_found *found)
{
    reading r = {.from = from};
    if (from->step > 0 && file_exists(path))
        TRY(look_at_all(path, &r));
    if (r.n_lines > 0 && !r.readable) {
        TRY(put_aside(path));
        r = (reading){.from = from};
    }
    int opened = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (opened < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    status st = cut(opened, path, &r);
    if (st != STATUS_OK) {
        close(opened);
        return st;
    }
    *fd = opened;
    *found = r.found;
    return STATUS_OK;
}

/* Both. */

enum {
    INTERVAL_MS = 1000,
    ROOM_BYTES = 16384,
    NAMESAKES = 1000,
    HOST_BYTES = 64,
};

/* A file that is appended to, and what waits for it: whole lines or records, so that a run that is
 * killed leaves one torn one at most. */
typedef struct output {
    int fd;
    char path[FILE_PATH_BYTES];
    uint8_t waiting[ROOM_BYTES];
    size_t n;
} output;

struct metrics {
    output lines, events;
    int64_t due_ns;     /* when what waits is to be written */
    bool failed;        /* no more is */
    double wall_zero_s; /* seconds since 1970 at the zero of now_ns */
    metrics_options settings;
    metrics_lines_found before;
};

/* The first failure is logged. */
static void write_out(metrics *m, output *to)
{
    if (!m->failed && file_append(to->fd, to->path, to->waiting, to->n) != STATUS_OK) {
        m->failed = true;
        LOG_W("no more metrics are written: %s", status_text());
    }
    to->n = 0;
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
    if (e->step == m->settings.step && (m->before.cut & 1u << e->event) != 0)
        return 0; /* an earlier start's event file has it, and that step's events stay there */
    if (e->event == METRICS_STEP)
        return event_file_scalars(now, e->step, step, 3, out);
    if (e->event == METRICS_VALIDATION || (e->validates && !isnan(e->val_acc)))
        return event_file_scalars(now, e->step, val, 2, out);
    return isnan(e->test_acc) ? 0 : event_file_scalars(now, e->step, test, 2, out);
}

void metrics_add(metrics *m, const metrics_entry *e)
{
    if (m == NULL)
        return;
    output *lines = &m->lines, *events = &m->events;
    double time_s = m->before.time_s + clock_seconds(e->now_ns - m->settings.started_ns);
    lines->n += metrics_lines_print(e, time_s, (char *)lines->waiting + lines->n);
    events->n += encode(m, e, events->waiting + events->n);
    bool full = lines->n > ROOM_BYTES - METRICS_LINE_BYTES ||
                events->n > ROOM_BYTES - EVENT_FILE_RECORD_BYTES;
    if (full || e->event != METRICS_STEP || clock_passed(m->due_ns))
        metrics_flush(m);
}

void metrics_flush(metrics *m)
{
    if (m == NULL)
        return;
    write_out(m, &m->events); /* a test that has its line has its event */
    write_out(m, &m->lines);
    m->due_ns = clock_deadline_ns(INTERVAL_MS);
}

/* A file of this start's own, named after the second; an earlier start may have had the same. */
static status open_events(metrics *m, const metrics_options *settings)
{
    char host[HOST_BYTES] = "", name[2 * HOST_BYTES];
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
    size_t n = event_file_begin(wall, settings->step + 1, to->waiting);
    return file_append(to->fd, to->path, to->waiting, n);
}

static status open_all(metrics *m, const metrics_options *settings)
{
    struct timespec wall;
    (void)timespec_get(&wall, TIME_UTC);
    m->wall_zero_s = (double)wall.tv_sec + clock_seconds(wall.tv_nsec - clock_now_ns());
    m->settings = *settings;
    TRY(file_join(settings->folder, RUN_FILE_METRICS, m->lines.path));
    TRY(metrics_lines_open(m->lines.path, settings, &m->lines.fd, &m->before));
    return open_events(m, settings);
}

status metrics_open(const metrics_options *settings, metrics **out)
{
    metrics *m = calloc(1, sizeof *m);
    if (m == NULL)
        return FAIL(STATUS_NO_MEMORY, "metrics");
    m->lines.fd = m->events.fd = -1;
    status st = open_all(m, settings);
    if (st == STATUS_OK)
        *out = m;
    else
        metrics_close(m);
    return st;
}

void metrics_close(metrics *m)
{
    if (m == NULL)
        return;
    status_kept cause;
    status_keep(&cause);
    metrics_flush(m);
    if (m->lines.fd >= 0)
        close(m->lines.fd);
    if (m->events.fd >= 0)
        close(m->events.fd);
    free(m);
    status_restore(&cause);
}
