#include "app/options/interval.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 1000000000

status interval_parse(const char *flag, int least, const char *text, interval *out)
{
    char *unit = NULL;
    errno = 0;
    long long count = strtoll(text, &unit, 10);
    bool starts_well = text[0] >= '0' && text[0] <= '9' && errno == 0;
    bool epochs =
        strcmp(unit, "") == 0 || strcmp(unit, "epoch") == 0 || strcmp(unit, "epochs") == 0;
    bool steps = strcmp(unit, "step") == 0 || strcmp(unit, "steps") == 0;
    if (!starts_well || (!epochs && !steps) || count < least || count > MAX_COUNT)
        return FAIL(STATUS_INVALID,
                    "%s: '%.40s' is not a number of epochs or steps from %d to %d: give "
                    "%s=2epochs (or 2), or %s=100steps",
                    flag, text, least, MAX_COUNT, flag, flag);
    *out = (interval){.count = count, .in_steps = steps};
    return STATUS_OK;
}

bool interval_is_due_after_steps(const interval *every, int64_t steps)
{
    return every->in_steps && every->count > 0 && steps % every->count == 0;
}

bool interval_is_due_after_epochs(const interval *every, int64_t epochs)
{
    return !every->in_steps && every->count > 0 && epochs % every->count == 0;
}
