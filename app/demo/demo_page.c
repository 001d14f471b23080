#include "app/demo/demo_page.h"

#include "app/common/page_files.h"
#include "app/demo/frame_text.h"
#include "app/report/html.h"
#include "base/text_stream.h"

#include <string.h>

/* Numbers stand to the right, texts to the left, as those of `like` below them or of the row. */
static void write_row(FILE *out, const char *tag, const json_t *cells, const json_t *like)
{
    size_t i;
    json_t *cell;
    char text[FRAME_TEXT_CELL_BYTES];
    fputs("<tr>", out);
    json_array_foreach(cells, i, cell)
    {
        frame_text_cell(cell, text);
        fprintf(out, "<%s%s>", tag,
                json_is_string(json_array_get(like, i)) ? " class=\"text\"" : "");
        html_text(out, text);
        fprintf(out, "</%s>", tag);
    }
    fputs("</tr>\n", out);
}

static void write_frame(FILE *out, const json_t *frame)
{
    size_t i;
    json_t *entry;
    fputs("<section>\n", out);
    html_tagged(out, "h2", json_string_value(json_object_get(frame, "title")));
    json_array_foreach(json_object_get(frame, "text"), i, entry)
        html_tagged(out, "p", json_string_value(entry));
    json_t *rows = json_object_get(frame, "rows");
    if (json_array_size(rows) > 0) {
        fputs("<table>\n", out);
        write_row(out, "th", json_object_get(frame, "columns"), json_array_get(rows, 0));
        json_array_foreach(rows, i, entry) write_row(out, "td", entry, entry);
        fputs("</table>\n", out);
    }
    json_array_foreach(json_object_get(frame, "arrows"), i, entry)
    {
        fprintf(out, "<p class=\"arrow\" data-member=\"%s\" data-from=\"%d\" data-to=\"%d\">",
                json_string_value(json_object_get(frame, "member")),
                (int)json_integer_value(json_object_get(entry, "from")),
                (int)json_integer_value(json_object_get(entry, "to")));
        html_text(out, json_string_value(json_object_get(entry, "label")));
        fputs("</p>\n", out);
    }
    fputs("</section>\n", out);
}

static void write_page(FILE *out, const json_t *document)
{
    size_t i;
    json_t *frame;
    char style[8192], title[128];
    snprintf(style, sizeof style, "%.*s", (int)demo_css_bytes, demo_css);
    snprintf(title, sizeof title, "mnist_ddp demo %s",
             json_string_value(json_object_get(document, "demo")));
    html_begin(out, title, (const char *const[]){style, NULL});
    fprintf(out, "<main data-ranks=\"%d\">\n",
            (int)json_integer_value(json_object_get(document, "world_size")));
    json_array_foreach(json_object_get(document, "frames"), i, frame) write_frame(out, frame);
    fputs("</main>\n<script>\n", out);
    fwrite(demo_js, 1, demo_js_bytes, out);
    fputs("</script>\n", out);
    html_end(out);
}

status demo_page_write(const char *path, const json_t *document)
{
    text_stream stream;
    TRY(text_stream_open(&stream));
    write_page(stream.file, document);
    return text_stream_save(&stream, STATUS_OK, path);
}
