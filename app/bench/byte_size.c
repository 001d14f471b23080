#include "app/bench/byte_size.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST 1099511627776.0 /* 2^40 */

/* 0: no such unit. */
static double unit(const char *text)
{
    static const char letters[] = "KMG";
    const char *found = *text != '\0' ? strchr(letters, toupper((unsigned char)*text)) : NULL;
    double factor = 1;
    if (found != NULL) {
        for (const char *letter = letters; letter <= found; letter++)
            factor *= 1024;
        text++;
    }
    bool known = *text == '\0' || strcasecmp(text, "B") == 0;
    return known || (found != NULL && strcasecmp(text, "iB") == 0) ? factor : 0;
}

status byte_size_parse(const char *where, const char *text, size_t *out)
{
    char *end = NULL;
    errno = 0;
    bool starts = isdigit((unsigned char)text[0]) != 0;
    unsigned long long number = starts ? strtoull(text, &end, 10) : 0;
    double factor = starts && errno == 0 ? unit(end) : 0;
    if (factor <= 0 || number == 0)
        return FAIL(STATUS_INVALID, "%s: '%.40s' is no size: give bytes, or 64K, 16M, 1G", where,
                    text);
    double size = (double)number * factor;
    if (size > MOST)
        return FAIL(STATUS_INVALID, "%s: %.40s is more than 1024G", where, text);
    *out = (size_t)size;
    return STATUS_OK;
}
