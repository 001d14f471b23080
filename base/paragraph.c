#include "base/paragraph.h"

#include <stdbool.h>
#include <string.h>

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

void paragraph_print(FILE *out, int column, int indent, const char *text)
{
    bool begins = true;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        while (text[length] == ' ' && text[length + 1] == '%') /* "5 %" is one word */
            length += 1 + strcspn(text + length + 1, " ");
        int width = width_of(text, length);
        if (!begins && column + 1 + width > PARAGRAPH_COLUMNS) {
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
