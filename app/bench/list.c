#include "app/bench/list.h"

#include "app/train/strategy.h"
#include "base/comma_list.h"
#include "base/number.h"
#include "model/model_kind.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 32 };

/* The next entry of a list, cut to fit; false at its end. */
static bool next_word(const char **at, char out[WORD_BYTES])
{
    size_t length;
    const char *word = comma_list_next(at, &length);
    if (word == NULL)
        return false;
    snprintf(out, WORD_BYTES, "%.*s", (int)(length < WORD_BYTES ? length : WORD_BYTES - 1), word);
    return true;
}

static status check(const bench_list *list, const char *flag)
{
    return list->n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s: the list is empty", flag);
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
        int value;
        if (!number_parse(word, 1, most, &value))
            return FAIL(STATUS_INVALID, "%s: '%s' is not a whole number from 1 to %d (in '%.80s')",
                        flag, word, most, text);
        TRY(add(out, value, flag));
    }
    return check(out, flag);
}

/* Reads words; their places in `words`, which has n. */
static status read_words(const char *flag, const char *text, const char *const *words, int n,
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
    return check(out, flag);
}

status bench_list_modes(const char *text, bench_list *out)
{
    const char *names[STRATEGY_COUNT];
    for (int kind = 0; kind < STRATEGY_COUNT; kind++)
        names[kind] = strategy_about((strategy_kind)kind)->name;
    return read_words("--modes", text, names, STRATEGY_COUNT, out);
}

status bench_list_models(const char *text, bench_list *out)
{
    return read_words("--models", text, model_kind_names, MODEL_COUNT, out);
}
