#include "app/common/json_value.h"

#include "base/json_text.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *json_value_text(const char *text)
{
    size_t left = strlen(text);
    uint32_t code;
    json_malloc_t allocate; /* jansson's: base/json_text.h notes if it fails */
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    char *copy = allocate(left + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, left + 1);
    for (char *at = copy; left > 0;) {
        size_t n = utf8_bytes(at, left, &code);
        if (n == 0)
            *at = '?';
        at += n > 0 ? n : 1;
        left -= n > 0 ? n : 1;
    }
    json_t *value = json_string(copy);
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
