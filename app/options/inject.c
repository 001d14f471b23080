#include "app/options/inject.h"

#include "app/options/command_table.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 40, MAX_VALUE = 1000000000 };

/* What a kind needs (capital letters) and takes: r rank, s step, m ms, g gen (the attempt). */
static const struct {
    const char *name, *fields;
    inject_kind kind;
} KINDS[] = {
    {"kill", "RSg", INJECT_KILL},         {"stop", "RSg", INJECT_STOP},
    {"delay", "RsMg", INJECT_DELAY},      {"drop-conn", "RSg", INJECT_DROP_CONN},
    {"uneven", "Rg", INJECT_UNEVEN},      {"forget-set-epoch", "g", INJECT_FORGET_SET_EPOCH},
    {"port-busy", "g", INJECT_PORT_BUSY},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

static const struct {
    const char *name;
    char letter;
    size_t offset;
    int64_t low;
} FIELDS[] = {
    {"rank", 'r', offsetof(inject, rank), 0},
    {"step", 's', offsetof(inject, step), 1},
    {"ms", 'm', offsetof(inject, ms), 1},
    {"gen", 'g', offsetof(inject, attempt), 0},
};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

static status unknown_kind(const char *word)
{
    nearest search;
    nearest_init(&search, word);
    for (int i = 0; i < N_KINDS; i++)
        nearest_offer(&search, KINDS[i].name);
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "--inject: '%s' is no fault; did you mean '%s'?", word,
                    search.best);
    return FAIL(STATUS_INVALID,
                "--inject: '%s' is no fault; there are kill, stop, delay, "
                "drop-conn, port-busy, uneven and forget-set-epoch",
                word);
}

/* "step=50" */
static status parse_field(const char *kind, const char *fields, const char *text, inject *out)
{
    char name[WORD_BYTES], *end = NULL;
    size_t length = strcspn(text, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    for (int i = 0; i < N_FIELDS; i++) {
        char letter = FIELDS[i].letter, needed = (char)(letter - 'a' + 'A');
        if (strcmp(name, FIELDS[i].name) != 0 ||
            (strchr(fields, letter) == NULL && strchr(fields, needed) == NULL))
            continue;
        const char *digits = text[length] == '=' ? text + length + 1 : "";
        long long value = strtoll(digits, &end, 10);
        if (end == digits || *end != '\0' || value < FIELDS[i].low || value > MAX_VALUE)
            return FAIL(STATUS_INVALID, "--inject=%s: '%.40s': %s is a number from %lld", kind,
                        text, name, (long long)FIELDS[i].low);
        int64_t number = value;
        memcpy((char *)out + FIELDS[i].offset, &number, sizeof number);
        return STATUS_OK;
    }
    return FAIL(STATUS_INVALID, "--inject=%s: it has no '%s'", kind, name);
}

static status check_needed(const char *kind, const char *fields, const inject *what)
{
    const char *missing = strchr(fields, 'R') != NULL && what->rank < 0   ? "rank=R"
                          : strchr(fields, 'S') != NULL && what->step < 1 ? "step=S"
                          : strchr(fields, 'M') != NULL && what->ms < 1   ? "ms=M"
                                                                          : NULL;
    if (missing != NULL)
        return FAIL(STATUS_INVALID, "--inject=%s: %s is missing, as in --inject=%s:%s%s%s", kind,
                    missing, kind, "rank=1", strchr(fields, 'S') != NULL ? ",step=50" : "",
                    strchr(fields, 'M') != NULL ? ",ms=2000" : "");
    return STATUS_OK;
}

status inject_parse(const char *text, inject *out)
{
    inject what = {.rank = -1};
    char copy[4 * WORD_BYTES], *next = NULL;
    *out = what;
    if (text == NULL)
        return STATUS_OK;
    if (strlen(text) >= sizeof copy)
        return FAIL(STATUS_INVALID, "--inject: '%.40s...' is too long", text);
    strcpy(copy, text);
    size_t length = strcspn(copy, ":");
    bool has_fields = copy[length] == ':';
    copy[length] = '\0';
    int i = 0;
    while (i < N_KINDS && strcmp(copy, KINDS[i].name) != 0)
        i++;
    if (i == N_KINDS)
        return unknown_kind(copy);
    what.kind = KINDS[i].kind;
    for (char *field = has_fields ? strtok_r(copy + length + 1, ",", &next) : NULL; field != NULL;
         field = strtok_r(NULL, ",", &next))
        TRY(parse_field(copy, KINDS[i].fields, field, &what));
    TRY(check_needed(copy, KINDS[i].fields, &what));
    *out = what;
    return STATUS_OK;
}
