#include "app/launch/slurm_list.h"

#include "base/text.h"

#include <string.h>

enum { MAX_TASKS = 1 << 20 };

/* The first number of the brackets at *at, which moves after them: "08" of "[08-11,20]". NULL if
 * they are not closed or hold none. */
static const char *first_of_brackets(const char **at, size_t *length)
{
    const char *first = *at + 1, *end = strchr(first, ']');
    *length = strspn(first, "0123456789");
    if (end == NULL || *length == 0 || strcspn(first, ",-]") != *length)
        return NULL;
    *at = end + 1;
    return first;
}

bool slurm_list_first_host(const char *list, char *out, size_t size_bytes)
{
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ',';) {
        const char *piece = at;
        size_t length = strcspn(at, "[,");
        if (length > 0)
            at += length;
        else if ((piece = first_of_brackets(&at, &length)) == NULL)
            return false;
        if (used + length >= size_bytes)
            return false;
        memcpy(out + used, piece, length);
        used += length;
    }
    out[used] = '\0';
    return used > 0;
}

bool slurm_list_tasks(const char *list, int node, int *tasks, int *all)
{
    int nodes = 0, sum = 0, found = -1;
    for (const char *at = list;; at++) {
        int each = 0, times = 1;
        if (!number_next(&at, 1, MAX_TASKS, &each))
            return false;
        if (strncmp(at, "(x", 2) == 0) {
            at += 2;
            if (!number_next(&at, 1, MAX_TASKS, &times) || *at++ != ')')
                return false;
        }
        if (node >= nodes && node < nodes + times)
            found = each;
        if (each > (MAX_TASKS - sum) / times)
            return false;
        nodes += times;
        sum += each * times;
        if (*at == '\0')
            break;
        if (*at != ',')
            return false;
    }
    if (found < 0)
        return false;
    *tasks = found;
    *all = sum;
    return true;
}
