#include "app/options/options_table.h"
#include "model/model_kind.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRAIN_EVAL = FOR_TRAIN | FOR_EVAL,
    PREDICTION = FOR_PREDICT | FOR_SERVE, /* what classifies pictures */
    TRAIN_SAMPLER = FOR_TRAIN | FOR_SAMPLER | FOR_DEMO,
    LAUNCHERS = FOR_TRAIN | FOR_RUN,
    COMPARISON = 1 << COMMAND_BENCH | FOR_DP_VS_DDP,
    RANKS_BENCH = 1 << COMMAND_BENCH | FOR_COLLECTIVES, /* which is started as ranks */
    TRAINING_BENCH = COMPARISON | FOR_SCALING,          /* which measure runs of train */
    SET_UP = LAUNCHERS | RANKS_BENCH | FOR_DOCTOR,      /* what doctor looks at before a run */
    TRAIN_BENCH = FOR_TRAIN | TRAINING_BENCH,           /* what bench hands to those runs */
    TRAIN_EVAL_BENCH = TRAIN_EVAL | TRAINING_BENCH,
    REPORTS = FOR_TRAIN | FOR_EVAL | FOR_PREDICT | FOR_SAMPLER | FOR_DATA | FOR_STORE | FOR_BENCH |
              FOR_DEMO | FOR_DOCTOR | FOR_ENV,
};

/* Bounds keep products of two settings far from overflow. */
#define MAX_BATCH 1048576.0
#define MAX_COUNT 1e9
#define MAX_SEED 9007199254740992.0 /* 2^53: exact in every number type that may carry it */
#define MAX_RANKS 65536.0
#define WEEK_S 604800.0

/* Of MODEL_KINDS: all names, each after a bar, from [1] on "mlp|cnn". */
#define AFTER_BAR(KIND, name) "|" name

#define ROW(row_kind, field, spelling, of, takers, whose, ...) \
    {.name = spelling, \
     .kind = OPTION_##row_kind, \
     .group = GROUP_##of, \
     .commands = takers, \
     .class = whose, \
     .offset = field, \
     __VA_ARGS__},
#define AT(field) offsetof(options, field)
#define TEXT(field, name, group, commands, class, ...) \
    ROW(TEXT, AT(field), name, group, commands, class, 0, 0, __VA_ARGS__)
#define WORD(field, name, group, commands, class, ...) \
    ROW(WORD, AT(field), name, group, commands, class, 0, 0, __VA_ARGS__)
#define MODE(field, name, group, commands, class, ...) \
    ROW(MODE, AT(field), name, group, commands, class, 0, 0, __VA_ARGS__)
#define INTEGER(field, ...) ROW(INTEGER, AT(field), __VA_ARGS__)
#define REAL(field, ...) ROW(REAL, AT(field), __VA_ARGS__)
#define SWITCH(field, name, group, commands, class, initial, ...) \
    ROW(SWITCH, AT(field), name, group, commands, class, 0, 0, initial, NULL, __VA_ARGS__)
#define NOTHING(kind, name, group, commands, ...) \
    ROW(kind, 0, name, group, commands, PRIVATE, 0, 0, __VA_ARGS__)
#define BEGIN
#define END(group)
#define OF(group) group.

const option_row options_table[] = {
#include "app/options/option_rows.inc"
};

const size_t options_table_count = sizeof options_table / sizeof options_table[0];

_Static_assert(sizeof options_table / sizeof options_table[0] <= sizeof((options *)0)->given,
               "options.given has a place for every row");

const char *setting_why(setting_class class)
{
    static const char *const why[] = {
        [RUN] = "the steps before were computed with the former",
        [RUN_STATE] = "the checkpoint's weights and state are of the former",
        [RUN_ORDER] = "the order and the batches of the epoch are those of the former",
        [RUN_RATE] = "a run follows one schedule",
        [RUN_SPLIT] = "what was trained on would be validated on, or the other way round",
        [RUN_SUMS] = "the steps before were computed with the former",
        [JOB_SPREAD] = "the steps before were computed with the former",
        [JOB_LENGTH] = "its schedule ends with the last of them",
    };
    return why[class];
}

bool options_table_spelling(const option_row *row, int i, char out[OPTION_NAME_BYTES],
                            bool *negated)
{
    *negated = false;
    if (i == 0) {
        snprintf(out, OPTION_NAME_BYTES, "%s", row->name);
        return true;
    }
    int at = 1;
    for (const char *alias = row->aliases; alias != NULL && *alias != '\0'; at++) {
        int length = (int)strcspn(alias, " ");
        if (at == i) {
            snprintf(out, OPTION_NAME_BYTES, "%.*s", length, alias);
            return true;
        }
        alias += length;
        alias += strspn(alias, " ");
    }
    *negated = true;
    snprintf(out, OPTION_NAME_BYTES, "no-%s", row->name);
    bool negatable = row->kind == OPTION_SWITCH || row->kind == OPTION_MODE;
    return at == i && negatable && strncmp(row->name, "no-", 3) != 0;
}

bool options_table_find(const char *name, unsigned commands, option_match *out)
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        if ((row->commands & commands) == 0)
            continue;
        for (int i = 0; options_table_spelling(row, i, spelling, &negated); i++)
            if (strcmp(spelling, name) == 0) {
                *out = (option_match){row, negated};
                return true;
            }
    }
    return false;
}

int options_table_find_prefix(const char *name, unsigned commands, option_match *out,
                              char *candidates, size_t size_bytes)
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    int found = 0;
    size_t length = strlen(name), used = 0;
    candidates[0] = '\0';
    for (size_t r = 0; r < options_table_count; r++) {
        const option_row *row = &options_table[r];
        if ((row->commands & commands) == 0)
            continue;
        bool row_found[2] = {false, false}; /* plain, negated: aliases are one candidate */
        for (int i = 0; options_table_spelling(row, i, spelling, &negated); i++) {
            if (row_found[negated] || strncmp(spelling, name, length) != 0)
                continue;
            row_found[negated] = true;
            if (found++ == 0)
                *out = (option_match){row, negated};
            int n = snprintf(candidates + used, size_bytes - used, "%s--%s", used ? ", " : "",
                             spelling);
            used += n > 0 && (size_t)n < size_bytes - used ? (size_t)n : 0;
        }
    }
    return found;
}

void options_table_nearest(const char *name, unsigned commands, char out[OPTION_NAME_BYTES])
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    nearest search;
    nearest_init(&search, name);
    for (size_t r = 0; r < options_table_count; r++)
        for (int i = 0; (options_table[r].commands & commands) != 0 &&
                        options_table_spelling(&options_table[r], i, spelling, &negated);
             i++)
            nearest_offer(&search, spelling);
    snprintf(out, OPTION_NAME_BYTES, "%s", search.best);
}

enum { ALLOWED_BYTES = 128, SHOWN_BYTES = 80 }; /* what a message shows of values */

const char *options_value_source_name(option_source source)
{
    static const char *const names[] = {[SOURCE_DEFAULT] = "default",
                                        [SOURCE_FILE] = "file",
                                        [SOURCE_ENVIRONMENT] = "environment",
                                        [SOURCE_COMMAND_LINE] = "flag"};
    return names[source];
}

bool options_value_wanted(const option_row *row)
{
    return row->kind == OPTION_TEXT || row->kind == OPTION_WORD || row->kind == OPTION_INTEGER ||
           row->kind == OPTION_REAL || row->kind == OPTION_REFUSED;
}

void options_value_allowed(const option_row *row, char *out, size_t size_bytes)
{
    out[0] = '\0';
    switch (row->kind) {
    case OPTION_INTEGER:
        snprintf(out, size_bytes, "%lld to %lld", (long long)row->low, (long long)row->high);
        break;
    case OPTION_REAL:
        snprintf(out, size_bytes, "%g to %g", row->low, row->high);
        break;
    case OPTION_WORD:
        snprintf(out, size_bytes, "%s", row->value);
        break;
    case OPTION_SWITCH:
        snprintf(out, size_bytes, "true or false");
        break;
    case OPTION_MODE:
        snprintf(out, size_bytes, "true, false or %s", row->value);
        break;
    case OPTION_TEXT:
        snprintf(out, size_bytes, "any text");
        break;
    case OPTION_REFUSED:
        snprintf(out, size_bytes, "%s", row->initial != NULL ? row->initial : "none");
        break;
    case OPTION_HELP:
    case OPTION_VERSION:
        break;
    }
}

static status parse_switch(const char *text, const char *where, bool *out)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int value = 0; value < 2; value++)
            if (strcasecmp(text, words[i][value]) == 0) {
                *out = value != 0;
                return STATUS_OK;
            }
    return FAIL(STATUS_INVALID, "%s: '%.*s' is neither true nor false (nor yes, no, on, off, 1, 0)",
                where, SHOWN_BYTES, text);
}

static status parse_number(const option_row *row, const char *text, const char *where, double *real,
                           int64_t *integer)
{
    char allowed[ALLOWED_BYTES], *end = NULL;
    options_value_allowed(row, allowed, sizeof allowed);
    bool whole = row->kind == OPTION_INTEGER;
    /* strto* skip blanks and take 0x10; a setting has neither. */
    bool plausible =
        text[0] != '\0' && strchr(" \t\n\v\f\r", text[0]) == NULL && strpbrk(text, "xX") == NULL;
    errno = 0;
    if (whole) {
        *integer = strtoll(text, &end, 10);
        *real = (double)*integer;
    } else {
        *real = strtod(text, &end);
    }
    if (!plausible || *end != '\0' || !isfinite(*real))
        return FAIL(STATUS_INVALID, "%s: '%.*s' is not a %snumber (allowed: %s)", where,
                    SHOWN_BYTES, text, whole ? "whole " : "", allowed);
    /* An underflow (ERANGE too) is a fine zero. */
    if ((whole && errno == ERANGE) || *real < row->low || *real > row->high)
        return FAIL(STATUS_INVALID, "%s: %.*s is out of range (allowed: %s)", where, SHOWN_BYTES,
                    text, allowed);
    return STATUS_OK;
}

/* Is `text` one of "a|b|c"? If not, the message names the nearest. */
static status check_word(const option_row *row, const char *text, const char *where)
{
    nearest search;
    nearest_init(&search, text);
    char word[OPTION_NAME_BYTES], list[ALLOWED_BYTES] = "";
    for (const char *at = row->value; *at != '\0'; at += *at == '|') {
        size_t length = strcspn(at, "|");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (strcmp(word, text) == 0)
            return STATUS_OK;
        nearest_offer(&search, word);
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", word);
        at += length;
    }
    snprintf(word, sizeof word, "--%s=%s", row->name, text);
    const char *answer = foreign_words_answer(word, row->commands);
    if (answer != NULL)
        return FAIL(STATUS_INVALID, "%s=%.*s: %s", where, SHOWN_BYTES, text, answer);
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "%s: '%.*s' is not one of %s; did you mean '%s'?", where,
                    SHOWN_BYTES, text, list, search.best);
    return FAIL(STATUS_INVALID, "%s: '%.*s' is not one of %s", where, SHOWN_BYTES, text, list);
}

static status store_text(char **field, const char *text, const char *where)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes", where, strlen(text));
    free(*field);
    *field = copy;
    return STATUS_OK;
}

/* A word of the row; or as a switch, whose true is the first word, and whose false is NULL. */
static status set_mode(option_match match, char **field, const char *text, bool stores,
                       const char *where)
{
    bool on = false;
    char first[OPTION_NAME_BYTES];
    const char *words = match.row->value;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(words, "|"), words);
    if (parse_switch(text, where, &on) == STATUS_OK)
        text = on != match.negated ? first : NULL;
    else if (match.negated || check_word(match.row, text, where) != STATUS_OK)
        return FAIL(
            STATUS_INVALID,
            "%s: '%.*s' is neither true nor false%s%s; to go on with a run: mnist_ddp %s RUN",
            where, SHOWN_BYTES, text, match.negated ? "" : ", nor one of ",
            match.negated ? "" : words, match.row->name);
    if (stores && text != NULL)
        return store_text(field, text, where);
    if (stores) {
        free(*field);
        *field = NULL;
    }
    return STATUS_OK;
}

status options_value_set(options *opts, option_match match, const char *text, option_source source,
                         const char *where)
{
    const option_row *row = match.row;
    uint8_t *given = &opts->given[row - options_table];
    bool stores = (int)source >= (int)*given;
    char *field = (char *)opts + row->offset;
    double real = 0.0;
    int64_t integer = 0;
    bool on = false;
    switch (row->kind) {
    case OPTION_TEXT:
    case OPTION_WORD:
        if (text[0] == '\0')
            return FAIL(STATUS_INVALID, "%s: empty", where);
        if (row->kind == OPTION_WORD)
            TRY(check_word(row, text, where));
        if (stores)
            TRY(store_text((char **)(void *)field, text, where));
        break;
    case OPTION_INTEGER:
        TRY(parse_number(row, text, where, &real, &integer));
        if (stores)
            *(int64_t *)(void *)field = integer;
        break;
    case OPTION_REAL:
        TRY(parse_number(row, text, where, &real, &integer));
        if (stores)
            *(double *)(void *)field = real;
        break;
    case OPTION_SWITCH:
        TRY(parse_switch(text, where, &on));
        if (stores)
            *(bool *)(void *)field = on != match.negated;
        break;
    case OPTION_MODE:
        TRY(set_mode(match, (char **)(void *)field, text, stores, where));
        break;
    case OPTION_REFUSED:
        if (row->initial == NULL || strcmp(text, row->initial) != 0)
            return FAIL(STATUS_INVALID, "%s=%.*s: %s", where, SHOWN_BYTES, text, row->help);
        break;
    case OPTION_HELP:
    case OPTION_VERSION:
        break;
    }
    if (stores)
        *given = (uint8_t)source;
    return STATUS_OK;
}

/* The row with this name, which is there. */
static option_match find(const char *name)
{
    char spelling[OPTION_NAME_BYTES];
    option_match match;
    options_table_normalize(name, spelling);
    bool found = options_table_find(spelling, FOR_ALL, &match);
    ASSERT(found);
    return match;
}

status options_value_set_named(options *opts, const char *name, const char *text,
                               option_source source, const char *where)
{
    return options_value_set(opts, find(name), text, source, where);
}

option_source options_value_source(const options *opts, const char *name)
{
    return (option_source)opts->given[find(name).row - options_table];
}
