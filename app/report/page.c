#include "app/report/page.h"

#include "app/common/page_files.h"
#include "app/common/run_files.h"
#include "app/report/report.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

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

static status write_page(FILE *out, const json_t *data, const char *text)
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

status page_save(const char *path, const json_t *data, page_text_fn *print)
{
    text_stream stream;
    char *text = NULL;
    TRY(print_text(data, print, &text));
    status st = text_stream_open(&stream);
    if (st == STATUS_OK)
        st = text_stream_save(&stream, write_page(stream.file, data, text), path);
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

status page_write(const char *folder, const char *title, const char *const *documents)
{
    char path[FILE_PATH_BYTES];
    json_t *list = json_array();
    status st = file_join(folder, RUN_FILE_REPORT, path);
    for (; *documents != NULL && st == STATUS_OK; documents++)
        st = add_file(list, folder, *documents);
    json_t *data =
        json_pack("{s:s, s:s, s:o}", "kind", "documents", "title", title, "documents", list);
    if (st == STATUS_OK)
        st = page_save(path, data, print_documents);
    json_decref(data);
    return st;
}
