#include "app/options/save_every.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 1000000000

status save_every_parse(const char *text, save_every *out)
{
    char *unit = NULL;
    errno = 0;
    long long count = strtoll(text, &unit, 10);
    bool starts_well = text[0] >= '0' && text[0] <= '9' && errno == 0;
    bool epochs =
        strcmp(unit, "") == 0 || strcmp(unit, "epoch") == 0 || strcmp(unit, "epochs") == 0;
    bool steps = strcmp(unit, "step") == 0 || strcmp(unit, "steps") == 0;
    if (!starts_well || (!epochs && !steps) || count < 1 || count > MAX_COUNT)
        return FAIL(STATUS_INVALID,
                    "--save-every: '%.40s' is not a number of epochs or steps from 1 to %d: give "
                    "--save-every=2epochs (or 2), or --save-every=100steps",
                    text, MAX_COUNT);
    *out = (save_every){.count = count, .in_steps = steps};
    return STATUS_OK;
}
