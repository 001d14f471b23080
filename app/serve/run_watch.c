#include "app/serve/run_watch.h"

#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "base/json_text.h"
#include "model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES = 200 << 10 };

status run_watch_open(const char *path, run_watch *out)
{
    run_watch watch = {0};
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_INVALID, "%s: %s; name a run's folder or a safetensors file", path,
                    strerror(errno));
    if (strlen(path) >= sizeof watch.folder)
        return FAIL(STATUS_INVALID, "%.80s...: the path is too long", path);
    if (S_ISDIR(info.st_mode)) {
        strcpy(watch.folder, path);
        TRY(file_join(path, CHECKPOINT_MODEL, watch.model_path));
    } else {
        strcpy(watch.model_path, path);
    }
    *out = watch;
    return STATUS_OK;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool run_watch_model_is_new(const run_watch *watch, struct stat *found)
{
    struct stat now;
    const struct stat *last = &watch->model;
    if (stat(watch->model_path, &now) != 0 ||
        (now.st_ino == last->st_ino && now.st_size == last->st_size &&
         is_same_time(&now.st_mtim, &last->st_mtim)))
        return false;
    *found = now;
    return true;
}

/* When a file of the run was written; zeros if it is not there. */
static struct timespec time_of(const run_watch *watch, const char *name)
{
    char path[FILE_PATH_BYTES];
    struct stat info = {0};
    if (file_join(watch->folder, name, path) == STATUS_OK)
        (void)!stat(path, &info);
    return info.st_mtim;
}

/* Each start of the run writes config.json anew. */
static void name_generation(const run_watch *watch, char out[RUN_WATCH_GENERATION_BYTES])
{
    const struct timespec start = time_of(watch, RUN_FILE_CONFIG);
    snprintf(out, RUN_WATCH_GENERATION_BYTES, "%lld.%09ld", (long long)start.tv_sec, start.tv_nsec);
}

/* A line that is no JSON, as a torn one, is left out. Returns the bytes of all that are whole. */
static size_t parse_lines(const char *text, size_t size_bytes, json_t *lines)
{
    size_t at = 0;
    const char *end;
    while ((end = memchr(text + at, '\n', size_bytes - at)) != NULL) {
        size_t length = (size_t)(end - text) - at;
        json_t *line = json_text_parse(text + at, length, 0, NULL);
        if (json_is_object(line))
            json_array_append(lines, line);
        json_decref(line);
        at += length + 1;
    }
    return at;
}

/* Returns where the next line begins. *from is 0 if the file has become shorter. */
static long long read_lines(const run_watch *watch, long long *from, json_t *lines)
{
    char path[FILE_PATH_BYTES];
    struct stat info;
    int fd = -1;
    if (file_join(watch->folder, RUN_FILE_METRICS, path) != STATUS_OK ||
        file_open(path, &fd, &info) != STATUS_OK) {
        *from = 0;
        return 0;
    }
    *from = *from > info.st_size ? 0 : *from;
    char *text = malloc(PART_BYTES);
    ssize_t n = text != NULL ? pread(fd, text, PART_BYTES, (off_t)*from) : 0;
    size_t used = n > 0 ? parse_lines(text, (size_t)n, lines) : 0;
    if (n == PART_BYTES && used == 0) /* a part of a line that is none of ours */
        used = PART_BYTES;
    free(text);
    close(fd);
    return *from + (long long)used;
}

/* The result of an earlier start stays until the latest one has its own. */
static bool is_done(const run_watch *watch)
{
    const struct timespec none = {0}, start = time_of(watch, RUN_FILE_CONFIG),
                          result = time_of(watch, RUN_FILE_RESULT);
    if (is_same_time(&result, &none))
        return false;
    return result.tv_sec != start.tv_sec ? result.tv_sec > start.tv_sec
                                         : result.tv_nsec >= start.tv_nsec;
}

json_t *run_watch_lines(const run_watch *watch, const char *generation, long long from)
{
    char now[RUN_WATCH_GENERATION_BYTES];
    if (watch->folder[0] == '\0')
        return NULL;
    json_t *object = json_object(), *lines = json_array();
    name_generation(watch, now);
    if (generation == NULL || strcmp(generation, now) != 0)
        from = 0;
    long long next = read_lines(watch, &from, lines);
    json_object_set_new(object, "name", json_value_text(watch->folder));
    json_object_set_new(object, "done", json_boolean(is_done(watch)));
    json_object_set_new(object, "generation", json_string(now));
    json_object_set_new(object, "from", json_integer(from));
    json_object_set_new(object, "next", json_integer(next));
    json_object_set_new(object, "lines", lines);
    return object;
}
