#include "base/text.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <unistd.h>

/* What comes from outside. */

size_t utf8_bytes(const char *text, size_t left, uint32_t *out)
{
    const unsigned char *at = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = *at < 0x80 ? 1 : *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : 2;
    if ((*at >= 0x80 && *at < 0xc2) || *at > 0xf4 || n > left)
        return 0;
    uint32_t code = n == 1 ? *at : *at & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    bool is_surrogate = code >= 0xd800 && code < 0xe000;
    *out = code;
    return code < least[n] || code > 0x10ffff || is_surrogate ? 0 : n;
}

/* The same; 0 also of a control character. */
static size_t character_bytes(const unsigned char *at, size_t left)
{
    uint32_t code = 0;
    size_t n = utf8_bytes((const char *)at, left, &code);
    bool controls = code < ' ' || (code >= 0x7f && code < 0xa0);
    /* Characters that turn the direction of others make a line read as another one. */
    bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    bool breaks = code == 0x2028 || code == 0x2029;
    return controls || turns || breaks ? 0 : n;
}

static void copy(printable_kind kind, const unsigned char *at, size_t left, char *out,
                 size_t size_bytes)
{
    size_t used = 0;
    while (left > 0) {
        char escaped[8];
        const char *piece = (const char *)at;
        size_t n = character_bytes(at, left), taken = n;
        bool ends_line = *at == '\n' && kind == PRINTABLE_LINES && (left == 1 || at[1] == ' ');
        if (n == 0 && ends_line) {
            n = taken = 1;
        } else if (n == 0) {
            n = (size_t)snprintf(escaped, sizeof escaped, *at == '\n' ? "\\n" : "\\x%02x", *at);
            piece = escaped;
            taken = 1;
        }
        if (used + n >= size_bytes)
            break;
        memcpy(out + used, piece, n);
        used += n;
        at += taken;
        left -= taken;
    }
    out[used] = '\0';
}

void printable_copy(printable_kind kind, const char *text, char *out, size_t size_bytes)
{
    copy(kind, (const unsigned char *)text, strlen(text), out, size_bytes);
}

void printable_bytes(const void *bytes, size_t n, char *out, size_t size_bytes)
{
    copy(PRINTABLE_LINE, bytes, n, out, size_bytes);
}

/* Text in memory that grows. */

enum { FIRST_BYTES = 512 };

static bool make_room(text_stream *stream, size_t needed_bytes)
{
    size_t room_bytes = stream->room_bytes > 0 ? stream->room_bytes : FIRST_BYTES;
    while (room_bytes < needed_bytes)
        room_bytes *= 2;
    char *larger =
        room_bytes > stream->room_bytes ? realloc(stream->text, room_bytes) : stream->text;
    if (larger == NULL)
        return false;
    stream->text = larger;
    stream->room_bytes = room_bytes;
    return true;
}

static ssize_t append(void *self, const char *text, size_t size_bytes)
{
    text_stream *stream = self;
    if (stream->failed || !make_room(stream, stream->size_bytes + size_bytes + 1)) {
        stream->failed = true;
        errno = ENOMEM;
        return 0; /* stdio's sign of an error */
    }
    memcpy(stream->text + stream->size_bytes, text, size_bytes);
    stream->size_bytes += size_bytes;
    return (ssize_t)size_bytes;
}

status text_stream_open(text_stream *out)
{
    *out = (text_stream){.file = NULL};
    out->file = fopencookie(out, "w", (cookie_io_functions_t){.write = append});
    return out->file != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a text to be written");
}

status text_stream_close(text_stream *stream, char **text, size_t *size_bytes)
{
    bool failed = ferror(stream->file) != 0;
    failed = fclose(stream->file) != 0 || failed || stream->failed || !make_room(stream, 1);
    if (failed)
        free(stream->text);
    else
        stream->text[stream->size_bytes] = '\0';
    *text = failed ? NULL : stream->text;
    if (size_bytes != NULL)
        *size_bytes = failed ? 0 : stream->size_bytes;
    size_t written = stream->size_bytes;
    *stream = (text_stream){.file = NULL};
    return failed ? FAIL(STATUS_NO_MEMORY, "a text of over %zu bytes", written) : STATUS_OK;
}

status text_stream_save(text_stream *stream, status st, const char *path)
{
    char *text = NULL;
    size_t size_bytes = 0;
    status whole = text_stream_close(stream, &text, &size_bytes);
    st = st == STATUS_OK ? whole : st;
    if (st == STATUS_OK)
        st = file_replace(path, &(file_part){text, size_bytes}, 1);
    free(text);
    return st;
}

/* Words that people type. */

const char *comma_list_next(const char **at, size_t *length)
{
    if (**at == '\0')
        return NULL;
    const char *first = *at + strspn(*at, " ");
    const char *end = first + strcspn(first, ",");
    *at = end + (*end == ',');
    while (end > first && end[-1] == ' ')
        end--;
    *length = (size_t)(end - first);
    return first;
}

bool number_next(const char **at, int low, int high, int *out)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') /* strtol skips blanks and takes signs */
        return false;
    errno = 0;
    long value = strtol(*at, &end, 10);
    if (errno != 0 || value < low || value > high)
        return false;
    *at = end;
    *out = (int)value;
    return true;
}

bool number_parse(const char *text, int low, int high, int *out)
{
    int value = 0;
    if (!number_next(&text, low, high, &value) || *text != '\0')
        return false;
    *out = value;
    return true;
}

bool number_next_real(const char **at, double *out)
{
    char *end = NULL;
    size_t digits = strspn(*at, "0123456789.");
    if (digits == 0 || (*at)[digits] == 'x' || (*at)[digits] == 'X')
        return false;
    double value = strtod(*at, &end);
    if (end == *at || !isfinite(value))
        return false;
    *at = end;
    *out = value;
    return true;
}

/* A word that no shell would take apart. */
static bool is_plain(const char *word)
{
    return word[0] != '\0' && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                           "0123456789_-+=./:,@%^") == strlen(word);
}

char *shell_words_line(char *const *words)
{
    char *text = NULL;
    text_stream line;
    if (text_stream_open(&line) != STATUS_OK)
        return NULL;
    FILE *file = line.file;
    for (int i = 0; words[i] != NULL; i++) {
        if (i > 0)
            fputc(' ', file);
        if (is_plain(words[i])) {
            fputs(words[i], file);
            continue;
        }
        fputc('\'', file);
        for (const char *c = words[i]; *c != '\0'; c++)
            fputs(*c == '\'' ? "'\\''" : (char[]){*c, '\0'}, file);
        fputc('\'', file);
    }
    (void)text_stream_close(&line, &text, NULL);
    return text;
}

/* Sentences in columns. */

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
