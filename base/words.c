#include "base/words.h"

#include "base/text_stream.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
