#include "app/report/table.h"

#include "app/common/json_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

enum { CELL_BYTES = 256, MAX_COLUMNS = 32 };

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

void table_digits(double value, char out[TABLE_DIGITS_BYTES])
{
    double size = fabs(value);
    int decimals = size >= 100 || value == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    out[0] = '\0';
    if (isfinite(value))
        snprintf(out, TABLE_DIGITS_BYTES, "%.*f", decimals, value);
}

void table_number(json_t *table, double value)
{
    char text[TABLE_DIGITS_BYTES];
    table_digits(value, text);
    table_cell(table, "%s", text);
}

void table_note(json_t *table, const char *note)
{
    json_object_set_new(last_row(table), "note", json_value_text(note));
}

/* Columns on a terminal: letters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static const char *text_at(const json_t *cells, size_t column)
{
    const char *text = json_string_value(json_array_get(cells, column));
    return text != NULL ? text : "";
}

static void widen(int widths[MAX_COLUMNS], const json_t *cells)
{
    for (size_t c = 0; c < MAX_COLUMNS; c++) {
        int width = width_of(text_at(cells, c));
        widths[c] = width > widths[c] ? width : widths[c];
    }
}

static void print_cells(const json_t *cells, const int widths[MAX_COLUMNS], FILE *out)
{
    size_t n = json_array_size(cells);
    for (size_t c = 0; c < n && c < MAX_COLUMNS; c++) {
        const char *text = text_at(cells, c);
        bool number = strchr("0123456789-+.", text[0]) != NULL;
        int room = widths[c] - width_of(text);
        fprintf(out, "%s%*s%s%*s", c > 0 ? "  " : "", number ? room : 0, "", text,
                number || c + 1 == n ? 0 : room, "");
    }
    fputc('\n', out);
}

void table_print(const json_t *table, FILE *out)
{
    const json_t *columns = json_object_get(table, "columns"), *row;
    const json_t *rows = json_object_get(table, "rows");
    int widths[MAX_COLUMNS] = {0};
    size_t i;
    fprintf(out, "\n%s\n\n", json_string_value(json_object_get(table, "title")));
    widen(widths, columns);
    json_array_foreach(rows, i, row) widen(widths, json_object_get(row, "cells"));
    print_cells(columns, widths, out);
    json_array_foreach(rows, i, row)
    {
        const char *note = json_string_value(json_object_get(row, "note"));
        print_cells(json_object_get(row, "cells"), widths, out);
        if (note != NULL)
            fprintf(out, "    %s\n", note);
    }
}
