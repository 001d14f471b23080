#include "app/train/metrics_lines.h"

#include "app/common/run_files.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const NAMES[] = {[METRICS_STEP] = "step",
                                    [METRICS_TEST] = "test",
                                    [METRICS_VALIDATION] = "validation",
                                    [METRICS_EPOCH] = "epoch"};
enum { N_NAMES = sizeof NAMES / sizeof NAMES[0] };

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
    off_t kept_bytes;    /* at its beginning */
    off_t pending_bytes; /* the line before this one, if it cannot be read */
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

/* A line that cannot be read was torn by a kill if it is the last one; another one stays. */
static void keep_pending(reading *r)
{
    if (r->pending_bytes == 0)
        return;
    r->kept_bytes += r->pending_bytes;
    r->pending_bytes = 0;
    if (r->n_bad++ == 0)
        r->first_bad = r->n_lines - 1;
}

static void look_at_entry(reading *r, const json_t *entry, off_t size_bytes)
{
    bool readable = json_is_integer(json_object_get(entry, "step"));
    if (!r->ended)
        keep_pending(r);
    r->readable = r->readable || readable;
    r->ended = r->ended || (readable && !is_before(entry, r->from));
    if (!r->ended && !readable) {
        r->pending_bytes = size_bytes;
    } else if (!r->ended) {
        r->kept_bytes += size_bytes;
        r->found.time_s = json_number_value(json_object_get(entry, "time_s"));
    } else if (json_integer_value(json_object_get(entry, "step")) == r->from->step &&
               has_test(entry)) {
        r->found.cut |= 1u << event_of(entry);
    }
}

/* Keeps the line, or notes what is cut off with it. */
static status look_at(reading *r, const char *line, size_t size_bytes)
{
    json_t *entry = NULL;
    status st = line[size_bytes - 1] == '\n'
                    ? json_text_value(line, size_bytes, RUN_FILE_METRICS, &entry)
                    : STATUS_OK;
    if (st == STATUS_NO_MEMORY)
        return st;
    r->n_lines++;
    look_at_entry(r, entry, (off_t)size_bytes);
    json_decref(entry);
    return STATUS_OK;
}

static status measure(FILE *file, const char *path, reading *r)
{
    char *line = NULL;
    size_t room_bytes = 0;
    status st = STATUS_OK;
    while (st == STATUS_OK) {
        ssize_t size_bytes = getline(&line, &room_bytes, file);
        if (size_bytes <= 0)
            break;
        st = look_at(r, line, (size_t)size_bytes);
    }
    if (st == STATUS_OK && !feof(file))
        st = FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
    free(line);
    return st;
}

static status cut(int fd, const char *path, reading *r)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL(STATUS_INVALID, "%s: not a regular file", path);
    if (r->from->step > 0) {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        FILE *file = copy >= 0 ? fdopen(copy, "r") : NULL;
        if (file == NULL) {
            status st = FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
            if (copy >= 0)
                close(copy);
            return st;
        }
        status st = measure(file, path, r);
        fclose(file);
        if (st != STATUS_OK)
            return st;
    }
    if (r->n_lines > 0 && !r->readable)
        return STATUS_OK; /* metrics_lines_open puts it aside */
    if (ftruncate(fd, r->kept_bytes) != 0)
        return FAIL(STATUS_IO, "cut %s: %s", path, strerror(errno));
    if (r->n_bad > 0)
        LOG_W("%s: lines that cannot be read: %" PRId64 ", the first is line %" PRId64
              "; they stay as they are",
              path, r->n_bad, r->first_bad);
    return STATUS_OK;
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

static status open_and_cut(const char *path, reading *r, int *fd)
{
    int opened = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (opened < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    status st = cut(opened, path, r);
    if (st == STATUS_OK)
        *fd = opened;
    else
        close(opened);
    return st;
}

status metrics_lines_open(const char *path, const metrics_options *from, int *fd,
                          metrics_lines_found *found)
{
    reading r = {.from = from};
    int opened = -1;
    TRY(open_and_cut(path, &r, &opened));
    if (r.n_lines > 0 && !r.readable) {
        close(opened);
        TRY(put_aside(path));
        r = (reading){.from = from};
        TRY(open_and_cut(path, &r, &opened));
    }
    *fd = opened;
    *found = r.found;
    return STATUS_OK;
}
