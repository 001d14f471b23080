#include "tests/support/facts.h"

#include "base/status.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FACTS = 15 };

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Where `fact` stands within [start, end), as a word of its own at each end that is one; or NULL.
 */
static const char *find(const char *start, const char *end, const char *fact)
{
    size_t length = strlen(fact);
    for (const char *at = start; length > 0 && at + length <= end; at++) {
        if (memcmp(at, fact, length) != 0)
            continue;
        bool joined_before = at > start && is_word(at[-1]) && is_word(fact[0]);
        bool joined_after = at + length < end && is_word(at[length]) && is_word(fact[length - 1]);
        if (!joined_before && !joined_after)
            return at;
    }
    return NULL;
}

static bool all_in(const char *start, const char *end, const char *const *facts)
{
    for (; *facts != NULL; facts++)
        if (find(start, end, *facts) == NULL)
            return false;
    return true;
}

bool facts_listed_in_a_line(const char *text, const char *const *facts)
{
    for (const char *line = text; *line != '\0';) {
        const char *end = line + strcspn(line, "\n");
        if (all_in(line, end, facts))
            return true;
        line = *end == '\n' ? end + 1 : end;
    }
    return false;
}

/* The facts as a list: `first`, and what follows up to the NULL. */
static void collect(const char **list, const char *first, va_list more)
{
    int n = 0;
    for (const char *fact = first; fact != NULL; fact = va_arg(more, const char *)) {
        ASSERT(n < MAX_FACTS); /* ck_assert works in a test only, and others ask too */
        list[n++] = fact;
    }
    list[n] = NULL;
}

bool facts_in_a_line(const char *text, const char *first, ...)
{
    const char *list[MAX_FACTS + 1];
    va_list more;
    va_start(more, first);
    collect(list, first, more);
    va_end(more);
    return facts_listed_in_a_line(text, list);
}

void facts_assert_listed(const char *text, const char *const *facts, const char *file, int line)
{
    char words[512] = "";
    size_t used = 0;
    for (size_t i = 0; facts[i] != NULL && used < sizeof words; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, " '%s'", facts[i]);
    if (!facts_listed_in_a_line(text, facts))
        ck_abort_msg("%s:%d: no line with%s in:\n%s", file, line, words, text);
}

int facts_number(const char *text, const char *fact, const char *name)
{
    for (const char *line = text; *line != '\0';) {
        const char *end = line + strcspn(line, "\n");
        const char *at = find(line, end, name);
        if (at != NULL && find(line, end, fact) != NULL) {
            at += strlen(name);
            at += strspn(at, " :=");
            return isdigit((unsigned char)*at) ? atoi(at) : -1;
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return -1;
}

int facts_count(const char *text, const char *words)
{
    int n = 0;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words))
        n++;
    return n;
}
