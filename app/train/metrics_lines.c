#include "app/train/metrics_lines.h"

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
    static const char *const names[] = {"step", "test", "epoch"};
    bool trained = e->event != METRICS_TEST, tested = e->event != METRICS_STEP;
    size_t n = (size_t)snprintf(out, METRICS_LINE_BYTES,
                                "{\"event\":\"%s\",\"step\":%" PRId64 ",\"epoch\":%" PRId64,
                                names[e->event], e->step, e->epoch + 1);
    n += print_number("time_s", round(time_s * 1e6) / 1e6, TIME_DIGITS, out + n);
    if (trained)
        n += print_number(tested ? "train_loss" : "loss", e->loss, DIGITS, out + n);
    if (!(e->grad_norm <= 0))
        n += print_number("grad_norm", e->grad_norm, DIGITS, out + n);
    if (tested) {
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

/* Whether a line stays; then *time_s is the one that it has. */
static bool stays(const char *line, size_t size_bytes, int64_t step, double *time_s)
{
    if (line[size_bytes - 1] != '\n')
        return false;
    json_t *entry = json_text_parse(line, size_bytes, 0, NULL);
    const json_t *number = json_object_get(entry, "step");
    bool is_earlier = json_is_integer(number) && json_integer_value(number) <= step;
    if (is_earlier)
        *time_s = json_number_value(json_object_get(entry, "time_s"));
    json_decref(entry);
    return is_earlier;
}

/* The bytes at the file's beginning that stay. */
static status measure(FILE *file, const char *path, int64_t step, off_t *kept_bytes, double *time_s)
{
    char *line = NULL;
    size_t room_bytes = 0;
    ssize_t size_bytes;
    *kept_bytes = 0;
    while ((size_bytes = getline(&line, &room_bytes, file)) > 0 &&
           stays(line, (size_t)size_bytes, step, time_s))
        *kept_bytes += size_bytes;
    int error = errno;
    free(line);
    return ferror(file) ? FAIL(STATUS_IO, "read %s: %s", path, strerror(error)) : STATUS_OK;
}

static status cut(int fd, const char *path, int64_t step, double *time_s)
{
    struct stat info;
    off_t kept_bytes = 0;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL(STATUS_INVALID, "%s: not a regular file", path);
    if (step > 0) {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        FILE *file = copy >= 0 ? fdopen(copy, "r") : NULL;
        if (file == NULL) {
            status st = FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
            if (copy >= 0)
                close(copy);
            return st;
        }
        status st = measure(file, path, step, &kept_bytes, time_s);
        fclose(file);
        if (st != STATUS_OK)
            return st;
    }
    if (ftruncate(fd, kept_bytes) != 0)
        return FAIL(STATUS_IO, "cut %s: %s", path, strerror(errno));
    return STATUS_OK;
}

status metrics_lines_open(const char *path, int64_t step, int *fd, double *time_s)
{
    double last_s = 0;
    int opened = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (opened < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    status st = cut(opened, path, step, &last_s);
    if (st != STATUS_OK) {
        close(opened);
        return st;
    }
    *fd = opened;
    *time_s = last_s;
    return STATUS_OK;
}
