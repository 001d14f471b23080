#include "base/comma_list.h"

#include <string.h>

const char *comma_list_next(const char **at, size_t *length)
{
    if (**at == '\0')
        return NULL;
    const char *first = *at + strspn(*at, " ");
    const char *end = first + strcspn(first, ",");
    *at = end + (*end == ',');
    while (end > first && end[-1] == ' ')
        end--;
    *length = (size_t)(end - first);
    return first;
}
