#include "app/bench/bench_report.h"

#include "base/file.h"
#include "base/json_text.h"
#include "base/text_stream.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENT_BYTES = 64 << 20, PLOT_BYTES = 16 << 20 };

/* In the order of the page. */
static const char *const DOCUMENTS[] = {"dp-vs-ddp.json", "scaling.json"};
enum { N_DOCUMENTS = sizeof DOCUMENTS / sizeof DOCUMENTS[0] };

static const char HEAD[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>mnist_ddp: benchmarks</title>\n"
    "<link rel=\"icon\" href=\"data:,\">\n<style>\n"
    "body{font:16px/1.5 sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222}\n"
    "h1,h2,h3{line-height:1.2}\n"
    "code{background:#f2f2f2;padding:.1em .3em;overflow-wrap:anywhere}\n"
    ".wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:.85rem;margin:1rem 0}\n"
    "th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap}\n"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "tr.why td{color:#555;white-space:normal;padding-bottom:.6rem}\n"
    "tr.said td{border-bottom:none}\n"
    "figure{margin:1.5rem 0}\nfigure svg{max-width:100%;height:auto}\n"
    "figcaption{font-size:.85rem;color:#555}\n"
    "dt{float:left;clear:left;width:9rem;color:#555}\ndd{margin-left:9rem}\n"
    "</style>\n</head>\n<body>\n<h1>mnist_ddp: benchmarks</h1>\n";

/* Text with what HTML would take for markup spelled out. */
static void put(FILE *out, const char *text)
{
    for (; text != NULL && *text != '\0'; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity != NULL)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

static void put_tagged(FILE *out, const char *tag, const char *text)
{
    fprintf(out, "<%s>", tag);
    put(out, text);
    fprintf(out, "</%s>\n", tag);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static void put_lines(FILE *out, const char *title, const json_t *list)
{
    const json_t *line;
    size_t i;
    if (json_array_size(list) == 0)
        return;
    put_tagged(out, "h3", title);
    fputs("<ul>\n", out);
    json_array_foreach(list, i, line) put_tagged(out, "li", json_string_value(line));
    fputs("</ul>\n", out);
}

static void put_machine(FILE *out, const json_t *document)
{
    const json_t *value;
    const char *key;
    json_t *machine = json_object_get(document, "machine");
    fputs("<dl>\n<dt>command</dt><dd><code>", out);
    put(out, text_of(document, "command"));
    fputs("</code></dd>\n<dt>started</dt><dd>", out);
    put(out, text_of(document, "started"));
    fputs("</dd>\n<dt>version</dt><dd>", out);
    put(out, text_of(document, "version"));
    fputs("</dd>\n", out);
    json_object_foreach(machine, key, value)
    {
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        fputs("<dt>", out);
        put(out, key);
        fputs("</dt><dd>", out);
        put(out, json_is_string(value) ? json_string_value(value) : number);
        fputs("</dd>\n", out);
    }
    fputs("</dl>\n", out);
}

static void put_row(FILE *out, const json_t *row)
{
    const json_t *cells = json_object_get(row, "cells"), *cell;
    const char *note = text_of(row, "note");
    size_t i;
    fprintf(out, "<tr%s>", note[0] != '\0' ? " class=\"said\"" : "");
    json_array_foreach(cells, i, cell)
    {
        const char *text = json_string_value(cell);
        bool number = text != NULL && (isdigit((unsigned char)text[0]) || text[0] == '-');
        fprintf(out, "<td%s>", number ? " class=\"n\"" : "");
        put(out, text);
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
    if (note[0] == '\0')
        return;
    fprintf(out, "<tr class=\"why\"><td colspan=\"%zu\">", json_array_size(cells));
    put(out, note);
    fputs("</td></tr>\n", out);
}

static void put_table(FILE *out, const json_t *table)
{
    const json_t *columns = json_object_get(table, "columns"), *column;
    const json_t *rows = json_object_get(table, "rows"), *row;
    size_t i;
    put_tagged(out, "h3", text_of(table, "title"));
    fputs("<div class=\"wide\"><table>\n<thead><tr>", out);
    json_array_foreach(columns, i, column) put_tagged(out, "th", json_string_value(column));
    fputs("</tr></thead>\n<tbody>\n", out);
    json_array_foreach(rows, i, row) put_row(out, row);
    fputs("</tbody>\n</table></div>\n", out);
}

/* Bytes of what comes before a name in SVG, where `text` begins so; else 0. */
static size_t before_name(const char *text)
{
    static const char *const places[] = {" id='", " id=\"", "'#", "url(#"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (strncmp(text, places[i], strlen(places[i])) == 0)
            return strlen(places[i]);
    return 0;
}

/* The picture without its XML head. Several stand on one page, and gnuplot gives their marks the
 * same names, so each gets the picture's own in front. Colours are no names. */
static void put_svg(FILE *out, const char *svg, const char *name)
{
    const char *at = strstr(svg, "<svg");
    while (at != NULL && *at != '\0') {
        size_t length = before_name(at);
        if (length == 0) {
            fputc(*at++, out);
            continue;
        }
        bool colour = strncmp(at, "'#", 2) == 0 && isxdigit((unsigned char)at[2]) &&
                      strcspn(at + 2, "'") == 6 && strspn(at + 2, "0123456789abcdefABCDEF") == 6;
        fprintf(out, "%.*s%s%s", (int)length, at, colour ? "" : name, colour ? "" : "-");
        at += length;
    }
}

/* A name that stays in the folder. */
static bool is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '.' &&
           name[strspn(
               name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] == '\0';
}

static status put_plot(FILE *out, const char *folder, const json_t *plot)
{
    char file[256], path[FILE_PATH_BYTES], *svg = NULL;
    const char *name = text_of(plot, "name");
    size_t length = 0;
    if (!is_plain(name))
        return FAIL(STATUS_INVALID, "a plot named '%.80s'", name);
    snprintf(file, sizeof file, "%.200s.svg", name);
    TRY(file_join(folder, file, path));
    TRY(file_read(path, PLOT_BYTES, &svg, &length));
    fprintf(out, "<figure id=\"%s\">\n", name);
    put_svg(out, svg, name);
    put_tagged(out, "figcaption", text_of(plot, "caption"));
    fputs("</figure>\n", out);
    free(svg);
    return STATUS_OK;
}

static status put_document(FILE *out, const char *folder, const json_t *document)
{
    const json_t *report = json_object_get(document, "report"), *table, *plot;
    const json_t *tables = json_object_get(report, "tables");
    const json_t *plots = json_object_get(report, "plots");
    size_t i;
    fputs("<section>\n", out);
    put_tagged(out, "h2", text_of(report, "title"));
    put_machine(out, document);
    put_lines(out, "Found", json_object_get(report, "summary"));
    json_array_foreach(plots, i, plot) TRY(put_plot(out, folder, plot));
    json_array_foreach(tables, i, table) put_table(out, table);
    put_lines(out, "Notes", json_object_get(report, "notes"));
    put_lines(out, "What the figures do not say", json_object_get(report, "limits"));
    fputs("</section>\n", out);
    return STATUS_OK;
}

static status put_file(FILE *out, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t length = 0;
    json_error_t error;
    TRY(file_join(folder, name, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(file_read(path, DOCUMENT_BYTES, &text, &length));
    json_t *document = json_text_parse(text, strlen(text), 0, &error);
    free(text);
    if (document == NULL)
        return FAIL(STATUS_INVALID, "%s:%d: %s", path, error.line, error.text);
    status st = json_is_object(json_object_get(document, "report"))
                    ? put_document(out, folder, document)
                    : FAIL(STATUS_INVALID, "%s: no \"report\" in it: not a benchmark's", path);
    json_decref(document);
    return st;
}

status bench_report_write(const char *folder)
{
    char path[FILE_PATH_BYTES], *page = NULL;
    size_t bytes = 0;
    status st = STATUS_OK;
    TRY(file_join(folder, "report.html", path));
    text_stream html;
    TRY(text_stream_open(&html));
    fputs(HEAD, html.file);
    for (int i = 0; i < N_DOCUMENTS && st == STATUS_OK; i++)
        st = put_file(html.file, folder, DOCUMENTS[i]);
    fputs("</body>\n</html>\n", html.file);
    status whole = text_stream_close(&html, &page, &bytes);
    if (st == STATUS_OK)
        st = whole;
    const file_part part = {page, bytes};
    if (st == STATUS_OK)
        st = file_replace(path, &part, 1);
    free(page);
    return st;
}
