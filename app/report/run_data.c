#include "app/report/run_data.h"

#include "app/common/run_config.h"
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
#include <unistd.h>

enum { RESULT_BYTES = 64 << 20, LINES_BYTES = 512 << 20 };

/* The folder's last part that is a name. */
static void name_run(const char *folder, char *out, size_t size_bytes)
{
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    snprintf(out, size_bytes, "%.*s", (int)(end - begin), folder + begin);
}

/* *out stays NULL if there is no such file. */
static status read_result(const char *folder, const char *name, json_t **out)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, name, path));
    return file_exists(path) ? json_text_read(path, RESULT_BYTES, out) : STATUS_OK;
}

/* Passes over lines that are no object, with one warning; the last one may be torn. */
static status parse_lines(const char *text, const char *path, json_t *out)
{
    const char *end;
    int64_t n = 0, n_bad = 0, first_bad = 0;
    for (const char *line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *entry = NULL;
        status st = json_text_value(line, (size_t)(end - line), path, &entry);
        if (st == STATUS_NO_MEMORY)
            return st;
        n++;
        if (!json_is_object(entry)) {
            json_decref(entry);
            if (n_bad++ == 0)
                first_bad = n;
        } else if (json_array_append_new(out, entry) != 0) {
            return FAIL(STATUS_NO_MEMORY, "%s: %zu lines", path, json_array_size(out));
        }
    }
    if (n_bad > 0)
        LOG_W("%s: lines that cannot be read and are not shown: %" PRId64
              ", the first is line %" PRId64,
              path, n_bad, first_bad);
    return STATUS_OK;
}

/* As read_result. */
static status read_lines(const char *folder, json_t **out)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t size_bytes = 0;
    TRY(file_join(folder, RUN_FILE_METRICS, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(file_read(path, LINES_BYTES, &text, &size_bytes));
    *out = json_array();
    status st = parse_lines(text, path, *out);
    free(text);
    return st;
}

static status no_run(const char *folder)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, RUN_FILE_CONFIG, path));
    if (faccessat(AT_FDCWD, path, F_OK, AT_EACCESS) != 0 && errno == EACCES)
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    return FAIL(STATUS_INVALID,
                "%s: not the folder of a run: no " RUN_FILE_CONFIG ", " RUN_FILE_METRICS
                " or " RUN_FILE_RESULT,
                folder);
}

status run_data_read(const char *folder, run_data *out)
{
    run_data run = {.folder = folder};
    run_config config = {0};
    name_run(folder, run.name, sizeof run.name);
    status st = run_config_read(folder, &config);
    run.config = config.document;
    if (st == STATUS_OK)
        st = read_result(folder, RUN_FILE_RESULT, &run.result);
    if (st == STATUS_OK)
        st = read_result(folder, RUN_FILE_EVAL, &run.eval);
    if (st == STATUS_OK)
        st = read_lines(folder, &run.lines);
    if (st == STATUS_OK && run.config == NULL && run.result == NULL && run.lines == NULL)
        st = no_run(folder);
    if (st == STATUS_OK)
        *out = run;
    else
        run_data_close(&run);
    return st;
}

void run_data_close(run_data *run)
{
    json_decref(run->config);
    json_decref(run->result);
    json_decref(run->eval);
    json_decref(run->lines);
    *run = (run_data){0};
}

double run_data_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static bool is_point(const json_t *line, const char *event, const char *key)
{
    if (event == NULL)
        return json_is_number(json_object_get(line, key));
    const char *name = json_string_value(json_object_get(line, "event"));
    return name != NULL && strcmp(name, event) == 0;
}

status run_data_curve(const run_data *run, const char *event, const char *key, int max_points,
                      run_curve *out)
{
    size_t n = json_array_size(run->lines), found = 0, of_event = 0;
    for (size_t i = 0; i < n; i++)
        of_event += is_point(json_array_get(run->lines, i), event, key);
    size_t every = of_event / (size_t)max_points + 1, points = of_event / every + 1;
    double *x = calloc(3 * points, sizeof *x);
    if (x == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu points of a curve", points);
    double *time_s = x + points, *y = time_s + points;
    for (size_t i = 0; i < n; i++) {
        const json_t *line = json_array_get(run->lines, i);
        if (!is_point(line, event, key))
            continue;
        size_t at = found / every, nth = found % every + 1; /* of its point */
        x[at] = run_data_number(line, "step");
        time_s[at] = run_data_number(line, "time_s");
        y[at] += (run_data_number(line, key) - y[at]) / (double)nth;
        found++;
    }
    *out = (run_curve){x, time_s, y, (int)((found + every - 1) / every), (int)every};
    return STATUS_OK;
}
