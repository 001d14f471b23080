#include "app/common/json_value.h"

#include "base/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the UTF-8 letter that begins here; 0: it is none. Overlong forms and surrogates are
 * caught by jansson, which then gets question marks for the whole text. */
static size_t letter_bytes(const unsigned char *at)
{
    size_t n = at[0] < 0x80                    ? 1
               : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
               : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
               : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                               : 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

json_t *json_value_text(const char *text)
{
    size_t size_bytes = strlen(text) + 1;
    json_malloc_t allocate; /* jansson's: base/json_text.h notes if it fails */
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    char *copy = allocate(size_bytes);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, size_bytes);
    for (unsigned char *at = (unsigned char *)copy; *at != '\0';) {
        size_t n = letter_bytes(at);
        if (n == 0)
            *at = '?';
        at += n > 0 ? n : 1;
    }
    json_t *value = json_string(copy);
    for (char *at = copy; value == NULL && *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    if (value == NULL)
        value = json_string(copy);
    release(copy);
    return value;
}

status json_value_print(json_t *value)
{
    char *line = NULL;
    status st = json_text_print(value, JSON_COMPACT | JSON_REAL_PRECISION(10), &line);
    json_decref(value);
    if (st == STATUS_OK)
        puts(line);
    free(line);
    return st;
}

status json_value_integer(const json_t *object, const char *key, int low, int high, int *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return FAIL(STATUS_PEER, "another launcher's \"%s\" is no number from %d to %d", key, low,
                    high);
    *out = (int)json_integer_value(value);
    return STATUS_OK;
}

status json_value_copy(const json_t *object, const char *key, char *out, size_t size_bytes)
{
    const json_t *value = json_object_get(object, key);
    out[0] = '\0';
    if (value == NULL)
        return STATUS_OK;
    if (!json_is_string(value))
        return FAIL(STATUS_PEER, "another launcher's \"%s\" is no text", key);
    snprintf(out, size_bytes, "%s", json_string_value(value));
    return STATUS_OK;
}

json_t *json_value_rounded(double value, int decimals)
{
    double unit = pow(10, decimals);
    return isfinite(value) ? json_real(round(value * unit) / unit) : json_null();
}

static const char DIGITS[] = "0123456789abcdef";

json_t *json_value_hex(const uint8_t *bytes, int n)
{
    char text[2 * JSON_VALUE_HEX_BYTES];
    ASSERT(n <= JSON_VALUE_HEX_BYTES);
    for (int i = 0; i < n; i++) {
        text[2 * i] = DIGITS[bytes[i] >> 4];
        text[2 * i + 1] = DIGITS[bytes[i] & 15];
    }
    return json_stringn(text, 2 * (size_t)n);
}
