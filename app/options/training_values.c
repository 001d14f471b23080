#include "app/options/training_values.h"

#include "app/options/options_table.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
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

enum { SIDE = 28 }; /* an image's */

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

enum { WORD_BYTES = 40, MAX_VALUE = 1000000000 };

/* What a kind needs (capital letters) and takes: r rank, s step, m ms, g gen (the attempt). */
static const struct {
    const char *name, *fields;
    inject_kind kind;
} KINDS[] = {
    {"kill", "RSg", INJECT_KILL},
    {"stop", "RSg", INJECT_STOP},
    {"delay", "RsMg", INJECT_DELAY},
    {"slow", "rMg", INJECT_SLOW},
    {"drop-conn", "RSg", INJECT_DROP_CONN},
    {"uneven", "Rg", INJECT_UNEVEN},
    {"forget-set-epoch", "g", INJECT_FORGET_SET_EPOCH},
    {"port-busy", "g", INJECT_PORT_BUSY},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

static const struct {
    const char *name;
    char letter;
    size_t offset;
    int64_t low;
} FIELDS[] = {
    {"rank", 'r', offsetof(inject, rank), 0},
    {"step", 's', offsetof(inject, step), 1},
    {"ms", 'm', offsetof(inject, ms), 1},
    {"gen", 'g', offsetof(inject, attempt), 0},
};
enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

/* "step=50" */
static status parse_field(const char *kind, const char *fields, const char *text, inject *out)
{
    char name[WORD_BYTES], *end = NULL;
    size_t length = strcspn(text, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    for (int i = 0; i < N_FIELDS; i++) {
        char letter = FIELDS[i].letter, needed = (char)(letter - 'a' + 'A');
        if (strcmp(name, FIELDS[i].name) != 0 ||
            (strchr(fields, letter) == NULL && strchr(fields, needed) == NULL))
            continue;
        const char *digits = text[length] == '=' ? text + length + 1 : "";
        long long value = strtoll(digits, &end, 10);
        if (end == digits || *end != '\0' || value < FIELDS[i].low || value > MAX_VALUE)
            return FAIL(STATUS_INVALID, "--inject=%s: '%.40s': %s is a number from %lld", kind,
                        text, name, (long long)FIELDS[i].low);
        int64_t number = value;
        memcpy((char *)out + FIELDS[i].offset, &number, sizeof number);
        return STATUS_OK;
    }
    return FAIL(STATUS_INVALID, "--inject=%s: it has no '%s'", kind, name);
}

static status check_needed(const char *kind, const char *fields, const inject *what)
{
    const char *missing = strchr(fields, 'R') != NULL && what->rank < 0   ? "rank=R"
                          : strchr(fields, 'S') != NULL && what->step < 1 ? "step=S"
                          : strchr(fields, 'M') != NULL && what->ms < 1   ? "ms=M"
                                                                          : NULL;
    if (missing != NULL)
        return FAIL(STATUS_INVALID, "--inject=%s: %s is missing, as in --inject=%s:%s%s%s", kind,
                    missing, kind, "rank=1", strchr(fields, 'S') != NULL ? ",step=50" : "",
                    strchr(fields, 'M') != NULL ? ",ms=2000" : "");
    return STATUS_OK;
}

status inject_parse(const char *text, inject *out)
{
    inject what = {.rank = -1};
    char copy[4 * WORD_BYTES], hint[HINT_BYTES], *next = NULL;
    *out = what;
    if (text == NULL)
        return STATUS_OK;
    if (strlen(text) >= sizeof copy)
        return FAIL(STATUS_INVALID, "--inject: '%.40s...' is too long", text);
    strcpy(copy, text);
    size_t length = strcspn(copy, ":");
    bool has_fields = copy[length] == ':';
    copy[length] = '\0';
    int i = names_find(copy, KINDS, N_KINDS, sizeof *KINDS, hint);
    if (i < 0)
        return FAIL(STATUS_INVALID, "--inject: '%s' is no fault; %s", copy, hint);
    what.kind = KINDS[i].kind;
    for (char *field = has_fields ? strtok_r(copy + length + 1, ",", &next) : NULL; field != NULL;
         field = strtok_r(NULL, ",", &next))
        TRY(parse_field(copy, KINDS[i].fields, field, &what));
    TRY(check_needed(copy, KINDS[i].fields, &what));
    *out = what;
    return STATUS_OK;
}
