#include "app/options/training_values.h"

#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* PyTorch also takes a second beta of 0, which nobody needs: here 0 means that there is none
 * (kernels/step.h). */
status adam_betas_parse(const char *text, adam_betas *out)
{
    const char *at = text;
    adam_betas betas = {0};
    bool ok = number_next_real(&at, &betas.first) && *at++ == ',' &&
              number_next_real(&at, &betas.second) && *at == '\0';
    /* As the optimizer sees them: float32. */
    ok =
        ok && (float)betas.first < 1.0f && (float)betas.second > 0.0f && (float)betas.second < 1.0f;
    if (!ok)
        return FAIL(STATUS_INVALID,
                    "--adam-betas: '%.40s' is not two numbers from 0 to below 1, the second above "
                    "0: give --adam-betas=0.9,0.999",
                    text);
    *out = betas;
    return STATUS_OK;
}

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

status val_split_check(double split)
{
    if (split >= 1 && split > floor(split))
        return FAIL(STATUS_INVALID,
                    "--val-split=%g: give a whole number of images, or a share of them below 1",
                    split);
    return STATUS_OK;
}

status val_split_images(double split, uint32_t images, uint32_t *out)
{
    double held = split < 1 ? floor(images * split) : split;
    TRY(val_split_check(split));
    if (split > 0 && held < 1)
        return FAIL(STATUS_INVALID, "--val-split=%g: less than one of %u training images", split,
                    images);
    if (held >= images)
        return FAIL(
            STATUS_INVALID,
            "--val-split=%.0f: there are %u training images, and at least one of them is to "
            "be trained on",
            held, images);
    *out = (uint32_t)held;
    return STATUS_OK;
}
