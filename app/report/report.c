#include "app/report/report.h"

#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/page_files.h"
#include "app/common/run_files.h"
#include "app/common/version.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CELL_BYTES = 256, MAX_COLUMNS = 32, GAP = 2, NOTE_INDENT = 4 };

json_t *table_create(const char *title, const char *const *columns)
{
    json_t *table = json_object(), *names = json_array();
    for (; *columns != NULL; columns++)
        json_array_append_new(names, json_value_text(*columns));
    json_object_set_new(table, "title", json_value_text(title));
    json_object_set_new(table, "columns", names);
    json_object_set_new(table, "rows", json_array());
    return table;
}

static json_t *last_row(const json_t *table)
{
    const json_t *rows = json_object_get(table, "rows");
    return json_array_get(rows, json_array_size(rows) - 1);
}

void table_row(json_t *table)
{
    json_t *row = json_object();
    json_object_set_new(row, "cells", json_array());
    json_array_append_new(json_object_get(table, "rows"), row);
}

void table_cell(json_t *table, const char *fmt, ...)
{
    char text[CELL_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_array_append_new(json_object_get(last_row(table), "cells"), json_value_text(text));
}

/* "12.3", with as many digits as are worth reading; "" if it is not known (NAN). */
enum { DIGITS_BYTES = 32 };
static void print_digits(double value, char out[DIGITS_BYTES])
{
    double size = fabs(value);
    int decimals = size >= 100 || value == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    out[0] = '\0';
    if (isfinite(value))
        snprintf(out, DIGITS_BYTES, "%.*f", decimals, value);
}

void table_number(json_t *table, double value)
{
    char text[DIGITS_BYTES];
    print_digits(value, text);
    table_cell(table, "%s", text);
}

void table_interval(json_t *table, double low, double high)
{
    char from[DIGITS_BYTES], to[DIGITS_BYTES];
    print_digits(low, from);
    print_digits(high, to);
    if (from[0] == '\0' || to[0] == '\0')
        table_cell(table, "n too small");
    else
        table_cell(table, "%s to %s", from, to);
}

void table_note(json_t *table, const char *note)
{
    json_object_set_new(last_row(table), "note", json_value_text(note));
}

/* "" for what is no text: in a document of another one, anything may stand. */
static const char *table_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL ? text : "";
}

static const char *text_at(const json_t *cells, size_t column)
{
    return table_text(json_array_get(cells, column));
}

/* As a terminal shows it. */
typedef struct layout {
    size_t n;
    int widths[MAX_COLUMNS];
    bool numbers[MAX_COLUMNS]; /* they stand to the right, as does their column's head */
    const char *heads[MAX_COLUMNS];
    int head_lines;
} layout;

static bool is_number(const char *text)
{
    return text[0] != '\0' && strchr("0123456789-+.>", text[0]) != NULL;
}

/* The next line of a head: as many of its words as its column is wide for, one at least. Returns
 * its length; *head goes on behind it. */
static int next_line(const char **head, int width)
{
    const char *begin = *head;
    size_t length = strcspn(begin, " ");
    for (size_t end = length; begin[end] == ' ';) {
        end += 1 + strcspn(begin + end + 1, " ");
        if (end > (size_t)width)
            break;
        length = end;
    }
    *head = begin + length + (begin[length] == ' ');
    return (int)length;
}

static int longest_word(const char *text)
{
    int longest = 0;
    while (*text != '\0') {
        int length = next_line(&text, 0);
        longest = length > longest ? length : longest;
    }
    return longest;
}

static int lines_of(const char *head, int width)
{
    int lines = 0;
    for (; *head != '\0'; lines++)
        next_line(&head, width);
    return lines;
}

static void lay_out(const json_t *table, layout *out)
{
    const json_t *columns = json_object_get(table, "columns"), *row;
    size_t n = json_array_size(columns), i;
    *out = (layout){.n = n < MAX_COLUMNS ? n : MAX_COLUMNS};
    for (size_t c = 0; c < out->n; c++) {
        out->heads[c] = text_at(columns, c);
        out->widths[c] = longest_word(out->heads[c]);
        json_array_foreach(json_object_get(table, "rows"), i, row)
        {
            const char *text = text_at(json_object_get(row, "cells"), c);
            int width = paragraph_width(text);
            out->widths[c] = width > out->widths[c] ? width : out->widths[c];
            out->numbers[c] = out->numbers[c] || is_number(text);
        }
        int lines = lines_of(out->heads[c], out->widths[c]);
        out->head_lines = lines > out->head_lines ? lines : out->head_lines;
    }
}

/* Blanks are kept until words follow, so that no line ends with them. */
static void print_cell(const layout *l, size_t column, const char *text, int length, int *blanks,
                       FILE *out)
{
    int room = l->widths[column] - length;
    if (length > 0) {
        fprintf(out, "%*s%s", *blanks + (l->numbers[column] ? room : 0), "", text);
        *blanks = l->numbers[column] ? 0 : room;
    } else {
        *blanks += l->widths[column];
    }
    *blanks += GAP;
}

/* The heads, the last line of each beside the others'. */
static void print_heads(layout *l, FILE *out)
{
    for (int line = l->head_lines; line > 0; line--) {
        int blanks = 0;
        for (size_t c = 0; c < l->n; c++) {
            char text[CELL_BYTES] = "";
            if (lines_of(l->heads[c], l->widths[c]) >= line) {
                const char *begin = l->heads[c];
                snprintf(text, sizeof text, "%.*s", next_line(&l->heads[c], l->widths[c]), begin);
            }
            print_cell(l, c, text, paragraph_width(text), &blanks, out);
        }
        fputc('\n', out);
    }
}

void table_print(const json_t *table, FILE *out)
{
    const json_t *row;
    layout l;
    size_t i;
    lay_out(table, &l);
    fputc('\n', out);
    paragraph_print(out, 0, 0, table_text(json_object_get(table, "title")));
    fputc('\n', out);
    print_heads(&l, out);
    json_array_foreach(json_object_get(table, "rows"), i, row)
    {
        const char *note = json_string_value(json_object_get(row, "note"));
        int blanks = 0;
        for (size_t c = 0; c < l.n; c++) {
            const char *text = text_at(json_object_get(row, "cells"), c);
            print_cell(&l, c, text, paragraph_width(text), &blanks, out);
        }
        fputc('\n', out);
        if (note != NULL) {
            fprintf(out, "%*s", NOTE_INDENT, "");
            paragraph_print(out, NOTE_INDENT, NOTE_INDENT, note);
        }
    }
}

enum { LINE_BYTES = 1024, INDENT = 2 };

static const char *const PARTS[] = {
    [REPORT_SUMMARY] = "summary", [REPORT_NOTES] = "notes", [REPORT_LIMITS] = "limits"};

static json_t *describe_machine(void)
{
    machine m;
    json_t *object = json_object();
    machine_read(&m);
    json_object_set_new(object, "processor", json_value_text(m.processor));
    json_object_set_new(object, "cores", json_integer(m.cores));
    json_object_set_new(object, "memory", json_value_text(machine_size(m.memory_bytes).text));
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

enum { DOCUMENT_BYTES = 64 << 20, DIGITS = 17 };

/* Nothing from elsewhere is loaded, whatever stands in the data. */
static const char HEAD[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
    "<link rel=\"icon\" href=\"data:,\">\n<title>";

/* What HTML would take for markup is spelled out, and control characters are replaced. */
static void write_text(FILE *out, const char *text)
{
    static const char replacement[] = "\uFFFD"; /* HTML may not hold a control character */
    for (; text != NULL && *text != '\0'; text++) {
        bool controls =
            (*text > 0 && *text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f;
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : controls     ? replacement
                                            : NULL;
        if (entity != NULL)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

/* The letters that are escaped stand in JSON's strings only, and mean the same there. */
static void write_json(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        if (strchr("<>&\x7f", *text) != NULL)
            fprintf(out, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, out);
}

static status print_page(FILE *out, const json_t *data, const char *text)
{
    const char *title = json_string_value(json_object_get(data, "title"));
    char *json = NULL;
    TRY(json_text_print(data, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(DIGITS),
                        &json));
    fputs(HEAD, out);
    write_text(out, title);
    fputs("</title>\n<style>\n", out);
    fwrite(report_css, 1, report_css_bytes, out);
    fputs("</style>\n</head>\n<body>\n<h1>", out);
    write_text(out, title);
    fputs("</h1>\n<noscript><pre>\n", out);
    write_text(out, text);
    fputs("</pre></noscript>\n<main></main>\n<script type=\"application/json\" id=\"data\">", out);
    write_json(out, json);
    fputs("</script>\n<script>\n", out);
    fwrite(draw_js, 1, draw_js_bytes, out);
    fwrite(runs_js, 1, runs_js_bytes, out);
    fwrite(trace_js, 1, trace_js_bytes, out);
    fwrite(demo_js, 1, demo_js_bytes, out);
    fwrite(main_js, 1, main_js_bytes, out);
    fputs("</script>\n</body>\n</html>\n", out);
    free(json);
    return STATUS_OK;
}

static status print_text(const json_t *data, page_text_fn *print, char **text)
{
    text_stream stream;
    if (data == NULL)
        return FAIL(STATUS_NO_MEMORY, "the data of a page");
    TRY(text_stream_open(&stream));
    print(data, stream.file);
    return text_stream_close(&stream, text, NULL);
}

status page_write(const char *path, const json_t *data, page_text_fn *print)
{
    text_stream stream;
    char *text = NULL;
    TRY(print_text(data, print, &text));
    status st = text_stream_open(&stream);
    if (st == STATUS_OK)
        st = text_stream_save(&stream, print_page(stream.file, data, text), path);
    free(text);
    return st;
}

static status add_file(json_t *documents, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    json_t *document = NULL;
    TRY(file_join(folder, name, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(json_text_read(path, DOCUMENT_BYTES, &document));
    if (!json_is_object(json_object_get(document, "report"))) {
        json_decref(document);
        return FAIL(STATUS_INVALID, "%s: there is no \"report\" in it", path);
    }
    return json_array_append_new(documents, document) == 0 ? STATUS_OK
                                                           : FAIL(STATUS_NO_MEMORY, "%s", path);
}

static void print_documents(const json_t *data, FILE *out)
{
    const json_t *document;
    size_t i;
    json_array_foreach(json_object_get(data, "documents"), i, document)
    {
        fputs(i > 0 ? "\n" : "", out);
        report_print(document, out);
    }
}

status documents_page_write(const char *folder, const char *title, const char *const *documents)
{
    char path[FILE_PATH_BYTES];
    json_t *list = json_array();
    status st = file_join(folder, RUN_FILE_REPORT, path);
    for (; *documents != NULL && st == STATUS_OK; documents++)
        st = add_file(list, folder, *documents);
    json_t *data =
        json_pack("{s:s, s:s, s:o}", "kind", "documents", "title", title, "documents", list);
    if (st == STATUS_OK)
        st = page_write(path, data, print_documents);
    json_decref(data);
    return st;
}
