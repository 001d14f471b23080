#include "app/bench/list.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 32 };

/* The next entry of a list; false at its end. */
static bool next_word(const char **at, char out[WORD_BYTES])
{
    if (*at == NULL)
        return false;
    const char *end = strchrnul(*at, ',');
    int length = end - *at < WORD_BYTES ? (int)(end - *at) : WORD_BYTES - 1;
    snprintf(out, WORD_BYTES, "%.*s", length, *at);
    *at = *end == ',' ? end + 1 : NULL;
    return true;
}

/* Appends a value if it is not there. */
static status add(bench_list *list, int value, const char *flag)
{
    for (int i = 0; i < list->n; i++)
        if (list->values[i] == value)
            return STATUS_OK;
    if (list->n == BENCH_LIST_MAX)
        return FAIL(STATUS_INVALID, "%s: more than %d entries", flag, BENCH_LIST_MAX);
    list->values[list->n++] = value;
    return STATUS_OK;
}

status bench_list_numbers(const char *flag, const char *text, int most, bench_list *out)
{
    char word[WORD_BYTES];
    const char *at = text;
    *out = (bench_list){.n = 0};
    while (next_word(&at, word)) {
        char *end = NULL;
        errno = 0;
        long value = strtol(word, &end, 10);
        if (end == word || *end != '\0' || errno != 0 || value < 1 || value > most)
            return FAIL(STATUS_INVALID, "%s: '%s' is not a whole number from 1 to %d (in '%.80s')",
                        flag, word, most, text);
        TRY(add(out, (int)value, flag));
    }
    return STATUS_OK;
}

status bench_list_words(const char *flag, const char *text, const char *const *words, int n,
                        bench_list *out)
{
    char word[WORD_BYTES], allowed[128] = "";
    const char *at = text;
    *out = (bench_list){.n = 0};
    for (int i = 0; i < n; i++)
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s",
                 i > 0 ? ", " : "", words[i]);
    while (next_word(&at, word)) {
        int found = 0;
        while (found < n && strcmp(word, words[found]) != 0)
            found++;
        if (found == n)
            return FAIL(STATUS_INVALID, "%s: '%s' is not one of %s", flag, word, allowed);
        TRY(add(out, found, flag));
    }
    return STATUS_OK;
}
