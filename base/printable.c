#include "base/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The bytes of the character at `at`, of `left`; 0 if it is none, or a control character. */
static size_t character_bytes(const unsigned char *at, size_t left)
{
    if (*at < 0x80)
        return *at >= ' ' && *at != 0x7f ? 1 : 0;
    size_t n = *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : 2;
    if (*at < 0xc2 || *at > 0xf4 || n > left)
        return 0;
    uint32_t code = *at & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000}; /* below 0xa0: control again */
    bool is_surrogate = code >= 0xd800 && code < 0xe000;
    /* Characters that turn the direction of others make a line read as another one. */
    bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    bool breaks = code == 0x2028 || code == 0x2029;
    return code < least[n] || code > 0x10ffff || is_surrogate || turns || breaks ? 0 : n;
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
