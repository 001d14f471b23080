#include "dist/process_group/store_meeting.h"

#include "base/clock.h"
#include "dist/membership/keys.h"
#include "dist/process_group/process_group_state.h"
#include "dist/store/store.h"

#include <inttypes.h>
#include <stdio.h>

/* A meeting under way: a membership's ctx. */
typedef struct held_meeting {
    const store_meeting *what;
    const process_group *group;
} held_meeting;

/* "ranks 1, 3 and 5 have not come to barrier #3" */
static status name_missing(void *ctx, const bool *there, bool is_over)
{
    const held_meeting *held = ctx;
    char list[256] = "";
    size_t length = 0;
    int n = held->group->world_size, missing = 0, named = 0;
    if (!is_over)
        return STATUS_OK;
    for (int rank = 0; rank < n; rank++)
        missing += !there[rank];
    for (int rank = 0; rank < n && length + 24 < sizeof list; rank++) {
        if (there[rank])
            continue;
        const char *before = named == 0 ? "" : named + 1 == missing ? " and " : ", ";
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%d", before, rank);
        named++;
    }
    return FAIL(STATUS_TIMEOUT,
                "rank%s %s%s %s not come to %s within %.1f s: stopped, dead or "
                "busy elsewhere",
                missing > 1 ? "s" : "", list, named < missing ? " ..." : "",
                missing > 1 ? "have" : "has", held->what->of,
                clock_seconds(held->what->timeout_ms * 1000000));
}

static status compare(void *ctx, char *const records[], char **outcome)
{
    const held_meeting *held = ctx;
    return held->what->compare(held->what->ctx, records, outcome);
}

static void make_prefix(const process_group *group, const char *name, uint64_t number, char *out)
{
    snprintf(out, KEYS_BYTES, "%s%s/%" PRIu64 "/", group->prefix, name, number);
}

/* All have come to the meeting after it, so nobody reads its keys. */
static void forget(const process_group *group, const char *name, uint64_t number)
{
    static const char *const shared[] = {KEYS_CAME, KEYS_OUTCOME};
    char prefix[KEYS_BYTES];
    bool deleted;
    store *keys = group->options.store;
    make_prefix(group, name, number, prefix);
    (void)store_delete(keys, keys_make(prefix, KEYS_RECORD, group->rank).text, &deleted);
    for (int i = 0; i < 2 && group->rank == 0; i++)
        (void)store_delete(keys, keys_make(prefix, shared[i], -1).text, &deleted);
}

status store_meeting_hold(process_group *group, const store_meeting *what)
{
    char prefix[KEYS_BYTES];
    held_meeting held = {what, group};
    make_prefix(group, what->name, what->number, prefix);
    membership ranks = {.store = group->options.store,
                        .prefix = prefix,
                        .member = group->rank,
                        .n = group->world_size,
                        .noun = "rank"};
    meeting how = {.record = what->record,
                   .deadline_ns = clock_deadline_ns(what->timeout_ms),
                   .compare = what->compare != NULL ? compare : NULL,
                   .missing = name_missing,
                   .ctx = &held};
    TRY(membership_meet(&ranks, &how, NULL));
    if (what->number > 1)
        forget(group, what->name, what->number - 1);
    return STATUS_OK;
}
