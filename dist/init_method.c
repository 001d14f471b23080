#include "dist/init_method.h"

#include "base/text.h"
#include "dist/net/socket_address.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

enum { SHOWN_BYTES = 200, WORD_BYTES = 64 };

/* Are the first `length` bytes of `text` this word? */
static bool is_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

/* Copies [from, to) and ends it. false if it does not fit. */
static bool copy(const char *from, const char *to, char *out, size_t size_bytes)
{
    size_t length = (size_t)(to - from);
    if (length >= size_bytes)
        return false;
    memcpy(out, from, length);
    out[length] = '\0';
    return true;
}

/* "rank=0" or "world_size=2". */
static status take_pair(const char *pair, init_method *method)
{
    const char *equals = strchr(pair, '=');
    size_t length = equals != NULL ? (size_t)(equals - pair) : strlen(pair);
    int *field = NULL, low = 0;
    if (is_word(pair, length, "rank"))
        field = &method->rank;
    if (is_word(pair, length, "world_size")) {
        field = &method->world_size;
        low = 1;
    }
    if (field == NULL)
        return FAIL(STATUS_INVALID, "'%s' is neither rank=R nor world_size=N", pair);
    if (*field >= 0)
        return FAIL(STATUS_INVALID, "'%s' is the second of its name: give it once", pair);
    if (equals == NULL || !number_parse(equals + 1, low, INT_MAX, field))
        return FAIL(STATUS_INVALID, "'%s' is not a whole number from %d on", pair, low);
    return STATUS_OK;
}

/* "rank=0&world_size=2", after the question mark. */
static status take_query(const char *query, init_method *method)
{
    for (const char *at = query; *at != '\0';) {
        char pair[WORD_BYTES];
        const char *end = at + strcspn(at, "&");
        if (!copy(at, end, pair, sizeof pair))
            return FAIL(STATUS_INVALID, "'%.*s...' is neither rank=R nor world_size=N", WORD_BYTES,
                        at);
        TRY(take_pair(pair, method));
        at = end + (*end == '&');
    }
    return STATUS_OK;
}

static status take_tcp(const char *place, init_method *method)
{
    enum { NO_PORT = -1 };
    TRY(socket_address_parse(place, NO_PORT, method->host, sizeof method->host, &method->port));
    if (method->port == NO_PORT)
        return FAIL(STATUS_INVALID, "the port is missing: tcp://HOST:PORT, the same for all ranks");
    if (method->port == 0)
        return FAIL(STATUS_INVALID, "port 0 is no port that the other ranks could know");
    return STATUS_OK;
}

static status take_file(const char *place, init_method *method)
{
    if (place[0] != '/' || place[1] == '\0')
        return FAIL(STATUS_INVALID, "the path is absolute, and begins with a third slash: "
                                    "file:///PATH");
    if (!copy(place, place + strlen(place), method->path, sizeof method->path))
        return FAIL(STATUS_INVALID, "a path of %zu bytes: at most %d are allowed", strlen(place),
                    INIT_METHOD_PATH_BYTES - 1);
    return STATUS_OK;
}

static status parse(const char *text, init_method *method)
{
    char place[INIT_METHOD_PATH_BYTES + WORD_BYTES];
    size_t scheme = strcspn(text, ":");
    if (strncmp(text + scheme, "://", strlen("://")) != 0)
        return FAIL(STATUS_INVALID, "expected is env://, tcp://HOST:PORT or file:///PATH");
    const char *from = text + scheme + strlen("://"), *end = from + strcspn(from, "?");
    if (!copy(from, end, place, sizeof place))
        return FAIL(STATUS_INVALID, "%zu bytes are too many", strlen(text));
    if (*end == '?')
        TRY(take_query(end + 1, method));
    if (is_word(text, scheme, "tcp")) {
        method->kind = INIT_METHOD_TCP;
        return take_tcp(place, method);
    }
    if (is_word(text, scheme, "file")) {
        method->kind = INIT_METHOD_FILE;
        return take_file(place, method);
    }
    if (!is_word(text, scheme, "env"))
        return FAIL(STATUS_INVALID, "no such method: there are env://, tcp://HOST:PORT and "
                                    "file:///PATH");
    if (place[0] != '\0')
        return FAIL(STATUS_INVALID, "nothing but ?rank=R&world_size=N may follow env://");
    return STATUS_OK;
}

status init_method_parse(const char *text, init_method *out)
{
    init_method method = {.rank = -1, .world_size = -1};
    TRY(status_context(parse(text, &method), "--init-method=%.*s", SHOWN_BYTES, text));
    *out = method;
    return STATUS_OK;
}
