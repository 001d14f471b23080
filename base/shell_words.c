#include "base/shell_words.h"

#include "base/text_stream.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
