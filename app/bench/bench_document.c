#include "app/bench/bench_document.h"

#include "app/json_value.h"
#include "app/machine.h"
#include "app/version.h"
#include "base/file.h"
#include "base/json_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES = 1024, MAX_COLUMNS = 32 };

static const char *const LINES[] = {
    [BENCH_SUMMARY] = "summary", [BENCH_NOTES] = "notes", [BENCH_LIMITS] = "limits"};

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

json_t *bench_document_create(const char *benchmark, const char *title, int argc, char **argv)
{
    char started[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *document = json_object(), *report = json_object();
    json_object_set_new(document, "benchmark", json_string(benchmark));
    json_object_set_new(document, "version", json_string(MNIST_DDP_VERSION));
    json_object_set_new(document, "started", json_string(started));
    json_object_set_new(document, "command", command_line(argc, argv));
    json_object_set_new(document, "machine", describe_machine());
    json_object_set_new(report, "title", json_string(title));
    json_object_set_new(report, "summary", json_array());
    json_object_set_new(report, "tables", json_array());
    json_object_set_new(report, "plots", json_array());
    json_object_set_new(report, "notes", json_array());
    json_object_set_new(report, "limits", json_array());
    json_object_set_new(document, "report", report);
    return document;
}

static json_t *part_of(const json_t *document, const char *name)
{
    return json_object_get(json_object_get(document, "report"), name);
}

void bench_document_say(json_t *document, bench_lines where, const char *fmt, ...)
{
    char text[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(part_of(document, LINES[where]), json_value_text(text));
}

/* "a|b|c" as an array. */
static json_t *split(const char *text)
{
    json_t *list = json_array();
    char copy[LINE_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy, *end = copy; end != NULL; at = end + 1) {
        end = strchr(at, '|');
        if (end != NULL)
            *end = '\0';
        json_array_append_new(list, json_value_text(at));
        if (end == NULL)
            break;
    }
    return list;
}

json_t *bench_document_table(json_t *document, const char *title, const char *columns)
{
    json_t *table = json_object();
    json_object_set_new(table, "title", json_value_text(title));
    json_object_set_new(table, "columns", split(columns));
    json_object_set_new(table, "rows", json_array());
    json_array_append_new(part_of(document, "tables"), table);
    return table;
}

void bench_document_row(json_t *table, const char *note, const char *cells)
{
    json_t *row = json_object();
    json_object_set_new(row, "cells", split(cells));
    if (note != NULL && note[0] != '\0')
        json_object_set_new(row, "note", json_value_text(note));
    json_array_append_new(json_object_get(table, "rows"), row);
}

void bench_document_plot(json_t *document, const char *name, const char *caption)
{
    json_t *plot = json_object();
    json_object_set_new(plot, "name", json_value_text(name));
    json_object_set_new(plot, "caption", json_value_text(caption));
    json_array_append_new(part_of(document, "plots"), plot);
}

json_t *bench_document_number(double value, int digits)
{
    char text[64];
    if (!isfinite(value))
        return json_null();
    snprintf(text, sizeof text, "%.*g", digits, value);
    return json_real(strtod(text, NULL));
}

/* Columns on a terminal: letters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static const char *cell_of(const json_t *cells, size_t column)
{
    const char *text = json_string_value(json_array_get(cells, column));
    return text != NULL ? text : "";
}

static void print_cells(const json_t *cells, const int *widths, FILE *out)
{
    size_t n = json_array_size(cells);
    for (size_t c = 0; c < n && c < MAX_COLUMNS; c++) {
        const char *text = cell_of(cells, c);
        bool number = strchr("0123456789-+.", text[0]) != NULL;
        int room = widths[c] - width_of(text);
        fprintf(out, "%s%*s%s%*s", c > 0 ? "  " : "", number ? room : 0, "", text,
                number || c + 1 == n ? 0 : room, "");
    }
    fputc('\n', out);
}

static void print_table(const json_t *table, FILE *out)
{
    const json_t *columns = json_object_get(table, "columns"), *row;
    const json_t *rows = json_object_get(table, "rows");
    int widths[MAX_COLUMNS];
    size_t i;
    fprintf(out, "\n%s\n\n", json_string_value(json_object_get(table, "title")));
    for (size_t c = 0; c < MAX_COLUMNS; c++)
        widths[c] = width_of(cell_of(columns, c));
    json_array_foreach(rows, i, row) for (size_t c = 0; c < MAX_COLUMNS; c++)
    {
        int width = width_of(cell_of(json_object_get(row, "cells"), c));
        widths[c] = width > widths[c] ? width : widths[c];
    }
    print_cells(columns, widths, out);
    json_array_foreach(rows, i, row)
    {
        const char *note = json_string_value(json_object_get(row, "note"));
        print_cells(json_object_get(row, "cells"), widths, out);
        if (note != NULL)
            fprintf(out, "    %s\n", note);
    }
}

static void print_lines(const json_t *document, bench_lines which, FILE *out)
{
    const json_t *list = part_of(document, LINES[which]), *line;
    size_t i;
    if (json_array_size(list) > 0)
        fputc('\n', out);
    json_array_foreach(list, i, line) fprintf(out, "%s\n", json_string_value(line));
}

void bench_document_print(const json_t *document, FILE *out)
{
    const json_t *tables = part_of(document, "tables"), *table;
    size_t i;
    fprintf(out, "%s\n", json_string_value(part_of(document, "title")));
    json_array_foreach(tables, i, table) print_table(table, out);
    print_lines(document, BENCH_SUMMARY, out);
    print_lines(document, BENCH_NOTES, out);
    fflush(out);
}

status bench_document_write(const json_t *document, const char *folder)
{
    char name[64], path[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "%s.json",
             json_string_value(json_object_get(document, "benchmark")));
    TRY(file_make_folders(folder));
    TRY(file_join(folder, name, path));
    char *text = NULL;
    TRY(json_text_print(document, JSON_INDENT(1) | JSON_REAL_PRECISION(10), &text));
    const file_part parts[] = {{text, strlen(text)}, {"\n", 1}};
    status st = file_replace(path, parts, 2);
    free(text);
    return st;
}
