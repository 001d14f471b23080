#include "tests/support/facts.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* True if `fact` stands within [start, end), as a word of its own at each end that is one. */
static bool stands_in(const char *start, const char *end, const char *fact)
{
    size_t length = strlen(fact);
    for (const char *at = start; length > 0 && at + length <= end; at++) {
        if (memcmp(at, fact, length) != 0)
            continue;
        bool joined_before = at > start && is_word(at[-1]) && is_word(fact[0]);
        bool joined_after = at + length < end && is_word(at[length]) && is_word(fact[length - 1]);
        if (!joined_before && !joined_after)
            return true;
    }
    return false;
}

static bool all_in(const char *start, const char *end, const char *first, va_list facts)
{
    for (const char *fact = first; fact != NULL; fact = va_arg(facts, const char *))
        if (!stands_in(start, end, fact))
            return false;
    return true;
}

bool facts_in_a_line(const char *text, const char *first, ...)
{
    bool found = false;
    for (const char *line = text; !found && *line != '\0';) {
        const char *end = line + strcspn(line, "\n");
        va_list facts;
        va_start(facts, first);
        found = all_in(line, end, first, facts);
        va_end(facts);
        line = *end == '\n' ? end + 1 : end;
    }
    return found;
}

bool facts_in(const char *text, const char *first, ...)
{
    va_list facts;
    va_start(facts, first);
    bool found = all_in(text, text + strlen(text), first, facts);
    va_end(facts);
    return found;
}
