#include "app/demo/frame_text.h"

#include "base/text.h"

#include <stdbool.h>
#include <string.h>

enum { CELL_BYTES = 80, COLUMNS_MAX = 24, INDENT = 2, DEEPER = 6 };

/* A text as it is, a number with seven digits. */
static void cell_text(const json_t *cell, char out[CELL_BYTES])
{
    if (json_is_string(cell))
        snprintf(out, CELL_BYTES, "%s", json_string_value(cell));
    else if (json_is_integer(cell))
        snprintf(out, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(cell));
    else if (json_is_real(cell))
        snprintf(out, CELL_BYTES, "%.7g", json_real_value(cell));
    else
        out[0] = '\0';
}

static void widen(const json_t *cells, int widths[COLUMNS_MAX])
{
    size_t i;
    json_t *cell;
    char text[CELL_BYTES];
    json_array_foreach(cells, i, cell)
    {
        cell_text(cell, text);
        if (i < COLUMNS_MAX && paragraph_width(text) > widths[i])
            widths[i] = paragraph_width(text);
    }
}

/* Numbers stand to the right, texts to the left. A row is broken between cells. */
static void print_row(const json_t *cells, const json_t *like, const int widths[COLUMNS_MAX],
                      FILE *out)
{
    size_t i;
    json_t *cell;
    char text[CELL_BYTES];
    int columns = paragraph_columns(out), column = 0, gap = INDENT; /* gap: before the next cell */
    json_array_foreach(cells, i, cell)
    {
        if (i == COLUMNS_MAX)
            break;
        cell_text(cell, text);
        int room = widths[i] - paragraph_width(text);
        bool is_number = json_is_number(json_array_get(like, i));
        if (i > 0 && column + gap + widths[i] > columns) {
            fputc('\n', out);
            column = 0;
            gap = DEEPER;
        }
        if (i + 1 == json_array_size(cells) && gap + widths[i] > columns) {
            gap += (int)strspn(text, " ");
            paragraph_print(out, fprintf(out, "%*s", gap, ""), gap + INDENT,
                            text + strspn(text, " "));
            return;
        }
        fprintf(out, "%*s%s", gap + (is_number ? room : 0), "", text);
        column += gap + widths[i];
        gap = INDENT + (is_number ? 0 : room);
        column -= is_number ? 0 : room;
    }
    fputc('\n', out);
}

static void print_table(const json_t *columns, const json_t *rows, FILE *out)
{
    int widths[COLUMNS_MAX] = {0};
    size_t i;
    json_t *row;
    if (json_array_size(rows) == 0)
        return;
    widen(columns, widths);
    json_array_foreach(rows, i, row) widen(row, widths);
    fputc('\n', out);
    if (json_array_size(columns) > 0)
        print_row(columns, json_array_get(rows, 0), widths, out);
    json_array_foreach(rows, i, row) print_row(row, row, widths, out);
}

static void print_arrows(const json_t *arrows, const char *member, FILE *out)
{
    size_t i;
    json_t *arrow;
    if (json_array_size(arrows) > 0)
        fputc('\n', out);
    json_array_foreach(arrows, i, arrow)
    {
        int from = (int)json_integer_value(json_object_get(arrow, "from"));
        int to = (int)json_integer_value(json_object_get(arrow, "to"));
        int column = fprintf(out, "  %s %d -> %s %d   ", member, from, member, to);
        paragraph_print(out, column, DEEPER, json_string_value(json_object_get(arrow, "label")));
    }
}

void frame_text_print(const json_t *frame, FILE *out)
{
    size_t i;
    json_t *paragraph;
    const char *title = json_string_value(json_object_get(frame, "title"));
    fputc('\n', out);
    paragraph_print(out, 0, 0, title);
    for (int n = 0; n < paragraph_width(title) && n < paragraph_columns(out); n++)
        fputc('-', out);
    fputc('\n', out);
    json_array_foreach(json_object_get(frame, "text"), i, paragraph)
        paragraph_print(out, 0, 0, json_string_value(paragraph));
    print_arrows(json_object_get(frame, "arrows"),
                 json_string_value(json_object_get(frame, "member")), out);
    print_table(json_object_get(frame, "columns"), json_object_get(frame, "rows"), out);
}
