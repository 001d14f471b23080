#include "base/paragraph.h"

#include "base/words.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { FEWEST_COLUMNS = 20, COLUMNS = 80, MOST_COLUMNS = 10000 };

static int width_of(const char *text, size_t size_bytes)
{
    int width = 0;
    for (size_t i = 0; i < size_bytes; i++)
        width += ((unsigned char)text[i] & 0xc0) != 0x80; /* those that continue one in UTF-8 */
    return width;
}

int paragraph_width(const char *text)
{
    return width_of(text, strlen(text));
}

int paragraph_terminal_columns(int fd)
{
    struct winsize size = {0};
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const char *text = getenv("COLUMNS");
    int columns = COLUMNS;
    if (text != NULL)
        (void)number_parse(text, 1, MOST_COLUMNS, &columns);
    return columns;
}

int paragraph_columns(FILE *out)
{
    int columns = paragraph_terminal_columns(fileno(out));
    columns = columns < COLUMNS ? columns : COLUMNS;
    return columns > FEWEST_COLUMNS ? columns : FEWEST_COLUMNS;
}

static void print(FILE *out, int columns, int column, int indent, const char *text)
{
    bool begins = true;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        while (text[length] == ' ' && text[length + 1] == '%') /* "5 %" is one word */
            length += 1 + strcspn(text + length + 1, " ");
        int width = width_of(text, length);
        if (!begins && column + 1 + width > columns) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!begins) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)length, text);
        begins = false;
        column += width;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void paragraph_print(FILE *out, int column, int indent, const char *text)
{
    print(out, paragraph_columns(out), column, indent, text);
}

void paragraph_print_line(FILE *out, int column, int indent, const char *text)
{
    print(out, isatty(fileno(out)) == 1 ? paragraph_columns(out) : INT_MAX, column, indent, text);
}
