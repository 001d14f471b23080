#include "app/report/report.h"

#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/version.h"
#include "app/report/table.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES = 1024, INDENT = 2 };

static const char *const PARTS[] = {
    [REPORT_SUMMARY] = "summary", [REPORT_NOTES] = "notes", [REPORT_LIMITS] = "limits"};

static json_t *describe_machine(void)
{
    machine m;
    char memory[32];
    json_t *object = json_object();
    machine_read(&m);
    machine_size(m.memory_bytes, memory, sizeof memory);
    json_object_set_new(object, "processor", json_value_text(m.processor));
    json_object_set_new(object, "cores", json_integer(m.cores));
    json_object_set_new(object, "memory", json_value_text(memory));
    json_object_set_new(object, "system", json_value_text(m.system));
    json_object_set_new(object, "kernel", json_value_text(m.kernel));
    if (m.driver[0] != '\0')
        json_object_set_new(object, "nvidia_driver", json_value_text(m.driver));
    return object;
}

static json_t *command_line(int argc, char **argv)
{
    char text[LINE_BYTES] = "mnist_ddp";
    size_t used = strlen(text);
    for (int i = 1; i < argc && used < sizeof text; i++) {
        int n = snprintf(text + used, sizeof text - used, " %s", argv[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return json_value_text(text);
}

json_t *report_create(const report_head *head)
{
    static const char *const lists[] = {"summary", "tables", "plots", "notes", "limits"};
    char started[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *document = json_object(), *report = json_object();
    json_object_set_new(document, head->kind, json_string(head->name));
    json_object_set_new(document, "version", json_string(MNIST_DDP_VERSION));
    json_object_set_new(document, "started", json_string(started));
    json_object_set_new(document, "command", command_line(head->argc, head->argv));
    json_object_set_new(document, "machine", describe_machine());
    json_object_set_new(report, "title", json_string(head->title));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        json_object_set_new(report, lists[i], json_array());
    json_object_set_new(document, "report", report);
    return document;
}

static json_t *part_of(const json_t *document, const char *name)
{
    return json_object_get(json_object_get(document, "report"), name);
}

void report_say(json_t *document, report_part part, const char *fmt, ...)
{
    char text[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_t *lines = part_of(document, PARTS[part]), *line = json_value_text(text), *said;
    size_t i;
    json_array_foreach(lines, i, said) if (json_equal(said, line))
    {
        json_decref(line);
        return;
    }
    json_array_append_new(lines, line);
}

json_t *report_table(json_t *document, const char *title, const char *const *columns)
{
    json_t *table = table_create(title, columns);
    json_array_append_new(part_of(document, "tables"), table);
    return table;
}

json_t *report_plot(json_t *document, const char *name, const char *caption)
{
    json_t *plot = json_object();
    json_object_set_new(plot, "name", json_value_text(name));
    json_object_set_new(plot, "caption", json_value_text(caption));
    json_object_set_new(plot, "series", json_array());
    json_array_append_new(part_of(document, "plots"), plot);
    return plot;
}

json_t *report_series(json_t *plot, const char *name)
{
    json_t *series = json_object();
    json_object_set_new(series, "name", json_value_text(name));
    json_object_set_new(series, "points", json_array());
    json_array_append_new(json_object_get(plot, "series"), series);
    return series;
}

json_t *report_number(double value, int digits)
{
    char text[64];
    if (!isfinite(value))
        return json_null();
    snprintf(text, sizeof text, "%.*g", digits, value);
    return json_real(strtod(text, NULL));
}

void report_set_number(json_t *object, const char *key, double value, int digits)
{
    json_object_set_new(object, key, report_number(value, digits));
}

static void print_lines(const json_t *document, report_part part, FILE *out)
{
    const json_t *lines = part_of(document, PARTS[part]), *line;
    size_t i;
    if (json_array_size(lines) > 0)
        fputc('\n', out);
    json_array_foreach(lines, i, line) paragraph_print(out, 0, INDENT, table_text(line));
}

void report_print(const json_t *document, FILE *out)
{
    const json_t *table;
    size_t i;
    fprintf(out, "%s\n", table_text(part_of(document, "title")));
    json_array_foreach(part_of(document, "tables"), i, table) table_print(table, out);
    print_lines(document, REPORT_SUMMARY, out);
    print_lines(document, REPORT_NOTES, out);
    fflush(out);
}

status report_write(const json_t *document, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_make_folders(folder));
    TRY(file_join(folder, name, path));
    return json_text_save(document, JSON_INDENT(1) | JSON_REAL_PRECISION(10), path);
}
