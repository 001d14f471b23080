#include "app/report/table.h"

#include "app/common/json_value.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

enum { CELL_BYTES = 256, MAX_COLUMNS = 32, GAP = 2, INDENT = 4 };

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

const char *table_text(const json_t *value)
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
            fprintf(out, "%*s", INDENT, "");
            paragraph_print(out, INDENT, INDENT, note);
        }
    }
}
