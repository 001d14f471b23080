#include "app/train/metrics_lines.h"

#include "app/common/run_files.h"
#include "base/json_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    static const char *const names[] = {[METRICS_STEP] = "step",
                                        [METRICS_TEST] = "test",
                                        [METRICS_VALIDATION] = "validation",
                                        [METRICS_EPOCH] = "epoch"};
    bool ends_epoch = e->event == METRICS_EPOCH;
    bool trained = e->event == METRICS_STEP || ends_epoch;
    size_t n = (size_t)snprintf(out, METRICS_LINE_BYTES,
                                "{\"event\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64,
                                names[e->event], e->step, e->epoch + 1);
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

/* What stays of a file. */
typedef struct kept {
    off_t size_bytes; /* at its beginning */
    double time_s;    /* of the last line in it */
} kept;

static bool is_before(const json_t *entry, const metrics_options *from)
{
    const json_t *step = json_object_get(entry, "step");
    const char *event = json_string_value(json_object_get(entry, "event"));
    bool ends_epoch = event != NULL && strcmp(event, "epoch") == 0;
    int64_t epoch = json_integer_value(json_object_get(entry, "epoch"));
    return json_is_integer(step) && json_integer_value(step) <= from->step &&
           !(ends_epoch && epoch > from->epochs);
}

/* Adds a line that stays to *all, else sets *ended. */
static status look_at(const char *line, size_t size_bytes, const metrics_options *from, kept *all,
                      bool *ended)
{
    json_t *entry = NULL;
    status st = line[size_bytes - 1] == '\n'
                    ? json_text_value(line, size_bytes, RUN_FILE_METRICS, &entry)
                    : STATUS_OK;
    if (st == STATUS_NO_MEMORY)
        return st;
    *ended = !is_before(entry, from);
    if (!*ended) {
        all->size_bytes += (off_t)size_bytes;
        all->time_s = json_number_value(json_object_get(entry, "time_s"));
    }
    json_decref(entry);
    return STATUS_OK;
}

static status measure(FILE *file, const char *path, const metrics_options *from, kept *all)
{
    char *line = NULL;
    size_t room_bytes = 0;
    bool ended = false;
    status st = STATUS_OK;
    while (!ended && st == STATUS_OK) {
        ssize_t size_bytes = getline(&line, &room_bytes, file);
        if (size_bytes > 0)
            st = look_at(line, (size_t)size_bytes, from, all, &ended);
        else if (feof(file))
            ended = true;
        else
            st = FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
    }
    free(line);
    return st;
}

static status cut(int fd, const char *path, const metrics_options *from, double *time_s)
{
    struct stat info;
    kept all = {0};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL(STATUS_INVALID, "%s: not a regular file", path);
    if (from->step > 0) {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        FILE *file = copy >= 0 ? fdopen(copy, "r") : NULL;
        if (file == NULL) {
            status st = FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
            if (copy >= 0)
                close(copy);
            return st;
        }
        status st = measure(file, path, from, &all);
        fclose(file);
        if (st != STATUS_OK)
            return st;
    }
    if (ftruncate(fd, all.size_bytes) != 0)
        return FAIL(STATUS_IO, "cut %s: %s", path, strerror(errno));
    *time_s = all.time_s;
    return STATUS_OK;
}

status metrics_lines_open(const char *path, const metrics_options *from, int *fd, double *time_s)
{
    double last_s = 0;
    int opened = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (opened < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    status st = cut(opened, path, from, &last_s);
    if (st != STATUS_OK) {
        close(opened);
        return st;
    }
    *fd = opened;
    *time_s = last_s;
    return STATUS_OK;
}
