#include "app/options/augment.h"

#include "base/comma_list.h"
#include "base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { SIDE = 28 }; /* of an image */

static const struct {
    const char *name;
    size_t offset;
    double most;
} BOUNDS[] = {
    {"shift=", offsetof(augment, shift), SIDE},
    {"rotate=", offsetof(augment, rotate), 180},
    {"scale=", offsetof(augment, scale), 0.9},
};
enum { N_BOUNDS = sizeof BOUNDS / sizeof BOUNDS[0] };

/* "shift=2"; not if `given` has it. */
static bool set_bound(const char *word, size_t length, bool given[N_BOUNDS], augment *out)
{
    for (int i = 0; i < N_BOUNDS; i++) {
        size_t before = strlen(BOUNDS[i].name);
        if (length <= before || strncmp(word, BOUNDS[i].name, before) != 0)
            continue;
        const char *at = word + before;
        double value = 0;
        if (given[i] || !number_next_real(&at, &value) || at != word + length ||
            value > BOUNDS[i].most)
            return false;
        given[i] = true;
        memcpy((char *)out + BOUNDS[i].offset, &value, sizeof value);
        return true;
    }
    return false;
}

status augment_parse(const char *text, augment *out)
{
    augment what = {0};
    size_t length = 0;
    bool given[N_BOUNDS] = {false};
    bool ok = text == NULL || text[0] != '\0';
    for (const char *at = text != NULL ? text : "", *word;
         ok && (word = comma_list_next(&at, &length)) != NULL;)
        ok = set_bound(word, length, given, &what);
    if (!ok)
        return FAIL(STATUS_INVALID,
                    "--augment: '%.60s' is not a list of shift=PIXELS (to %d), rotate=DEGREES (to "
                    "180) and scale=SHARE (to 0.9), each once: give --augment=shift=2,rotate=10",
                    text, SIDE);
    *out = what;
    return STATUS_OK;
}
