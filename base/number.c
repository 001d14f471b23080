#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool number_next(const char **at, int low, int high, int *out)
{
    char *end = NULL;
    if (**at < '0' || **at > '9') /* strtol skips blanks and takes signs */
        return false;
    errno = 0;
    long value = strtol(*at, &end, 10);
    if (errno != 0 || value < low || value > high)
        return false;
    *at = end;
    *out = (int)value;
    return true;
}

bool number_parse(const char *text, int low, int high, int *out)
{
    int value = 0;
    if (!number_next(&text, low, high, &value) || *text != '\0')
        return false;
    *out = value;
    return true;
}

bool number_next_real(const char **at, double *out)
{
    char *end = NULL;
    size_t digits = strspn(*at, "0123456789.");
    if (digits == 0 || (*at)[digits] == 'x' || (*at)[digits] == 'X')
        return false;
    double value = strtod(*at, &end);
    if (end == *at || !isfinite(value))
        return false;
    *at = end;
    *out = value;
    return true;
}
