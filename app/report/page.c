#include "app/report/page.h"

#include "app/common/run_files.h"
#include "app/report/html.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"

#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENT_BYTES = 64 << 20 };

static const char STYLE[] =
    "body{font:16px/1.5 sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222}\n"
    "h1,h2,h3{line-height:1.2}\n"
    "code{background:#f2f2f2;padding:.1em .3em;overflow-wrap:anywhere}\n"
    ".wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:.85rem;margin:1rem 0}\n"
    "th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap}\n"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "tr.note td{color:#555;white-space:normal;padding-bottom:.6rem}\n"
    "tr.noted td{border-bottom:none}\n"
    "figure{margin:1.5rem 0}\n"
    "figcaption{font-size:.85rem;color:#555}\n"
    "dt{float:left;clear:left;width:9rem;color:#555}\ndd{margin-left:9rem}\n";

/* The page while it is written. */
typedef struct page {
    FILE *out;
    const char *folder;
} page;

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
    html_tagged(out, "h3", title);
    fputs("<ul>\n", out);
    json_array_foreach(list, i, line) html_tagged(out, "li", json_string_value(line));
    fputs("</ul>\n", out);
}

static void put_fact(FILE *out, const char *name, const json_t *value)
{
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    html_tagged(out, "dt", name);
    html_tagged(out, "dd", json_is_string(value) ? json_string_value(value) : number);
}

static void put_facts(FILE *out, const json_t *document)
{
    const json_t *value;
    const char *key;
    fputs("<dl>\n<dt>command</dt><dd><code>", out);
    html_text(out, text_of(document, "command"));
    fputs("</code></dd>\n", out);
    put_fact(out, "started", json_object_get(document, "started"));
    put_fact(out, "version", json_object_get(document, "version"));
    json_object_foreach(json_object_get(document, "machine"), key, value) put_fact(out, key, value);
    fputs("</dl>\n", out);
}

static void put_row(FILE *out, const json_t *row, size_t columns)
{
    const json_t *cells = json_object_get(row, "cells");
    const char *note = text_of(row, "note");
    fprintf(out, "<tr%s>", note[0] != '\0' ? " class=\"noted\"" : "");
    for (size_t i = 0; i < columns; i++) {
        const char *text = json_string_value(json_array_get(cells, i));
        bool number = text != NULL && (isdigit((unsigned char)text[0]) || text[0] == '-');
        fprintf(out, "<td%s>", number ? " class=\"n\"" : "");
        html_text(out, text);
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
    if (note[0] == '\0')
        return;
    fprintf(out, "<tr class=\"note\"><td colspan=\"%zu\">", columns);
    html_text(out, note);
    fputs("</td></tr>\n", out);
}

static void put_table(FILE *out, const json_t *table)
{
    const json_t *columns = json_object_get(table, "columns"), *column, *row;
    size_t i;
    html_tagged(out, "h3", text_of(table, "title"));
    fputs("<div class=\"wide\"><table>\n<thead><tr>", out);
    json_array_foreach(columns, i, column) html_tagged(out, "th", json_string_value(column));
    fputs("</tr></thead>\n<tbody>\n", out);
    json_array_foreach(json_object_get(table, "rows"), i, row)
        put_row(out, row, json_array_size(columns));
    fputs("</tbody>\n</table></div>\n", out);
}

/* A name that stays in the folder. */
static bool is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '.' &&
           name[strspn(
               name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] == '\0';
}

static status put_plot(page *p, const json_t *plot)
{
    char file[256], path[FILE_PATH_BYTES];
    const char *name = text_of(plot, "name"), *caption = text_of(plot, "caption");
    if (!is_plain(name))
        return FAIL(STATUS_INVALID, "a plot named '%.80s'", name);
    snprintf(file, sizeof file, "%.200s.svg", name);
    TRY(file_join(p->folder, file, path));
    fprintf(p->out, "<figure id=\"%s\">\n", name);
    TRY(image_write_svg(p->out, path, "max-width:100%", caption));
    html_tagged(p->out, "figcaption", caption);
    fputs("</figure>\n", p->out);
    return STATUS_OK;
}

static status put_document(page *p, const json_t *document)
{
    const json_t *report = json_object_get(document, "report"), *table, *plot;
    size_t i;
    fputs("<section>\n", p->out);
    html_tagged(p->out, "h2", text_of(report, "title"));
    put_facts(p->out, document);
    put_lines(p->out, "Found", json_object_get(report, "summary"));
    json_array_foreach(json_object_get(report, "plots"), i, plot) TRY(put_plot(p, plot));
    json_array_foreach(json_object_get(report, "tables"), i, table) put_table(p->out, table);
    put_lines(p->out, "Notes", json_object_get(report, "notes"));
    put_lines(p->out, "What the figures do not say", json_object_get(report, "limits"));
    fputs("</section>\n", p->out);
    return STATUS_OK;
}

static status put_file(page *p, const char *name)
{
    char path[FILE_PATH_BYTES];
    json_t *document = NULL;
    TRY(file_join(p->folder, name, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(json_text_read(path, DOCUMENT_BYTES, &document));
    status st = json_is_object(json_object_get(document, "report"))
                    ? put_document(p, document)
                    : FAIL(STATUS_INVALID, "%s: there is no \"report\" in it", path);
    json_decref(document);
    return st;
}

status page_write(const char *folder, const char *title, const char *const *documents)
{
    char path[FILE_PATH_BYTES];
    status st = STATUS_OK;
    text_stream stream;
    TRY(file_join(folder, RUN_FILE_REPORT, path));
    TRY(text_stream_open(&stream));
    page p = {.out = stream.file, .folder = folder};
    html_begin(p.out, title, (const char *const[]){STYLE, NULL});
    for (; *documents != NULL && st == STATUS_OK; documents++)
        st = put_file(&p, *documents);
    html_end(p.out);
    return text_stream_save(&stream, st, path);
}
