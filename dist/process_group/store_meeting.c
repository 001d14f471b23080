#include "dist/process_group/store_meeting.h"

#include "base/clock.h"
#include "dist/membership/keys.h"
#include "dist/process_group/process_group_state.h"
#include "dist/store/store.h"

#include <inttypes.h>
#include <stdio.h>

enum { DEATH_GRACE_MS = 100 }; /* a socket closes a little before its process has ended */

/* A meeting under way: a membership's ctx. */
typedef struct held_meeting {
    const store_meeting *what;
    const process_group *group;
} held_meeting;

/* A rank that is not there and has ended. */
static status find_dead(const peers *watched, const bool *there)
{
    char who[PEERS_NAME_BYTES];
    int dead = watched != NULL ? peers_find_ended(watched, 0, 0) : -1;
    while (dead >= 0 && there[dead])
        dead = peers_find_ended(watched, dead + 1, 0);
    if (dead < 0)
        return STATUS_OK;
    peers_name(watched, dead, who);
    return FAIL(STATUS_PEER, "%s is gone", who);
}

/* A failure of the store's, or a timeout: who has ended or is stopped, as far as can be seen here.
 * The store may have gone with its rank. */
static status name_lost(const process_group *group, const char *prefix, status st)
{
    char who[PEERS_NAME_BYTES];
    const keys_text key = keys_make(prefix, KEYS_OUTCOME, -1);
    bool there, gone = false;
    int lost = -1;
    status_kept kept;
    if (group->watched == NULL || (st != STATUS_PEER && st != STATUS_TIMEOUT))
        return st;
    status_keep(&kept);
    if (st == STATUS_TIMEOUT || store_check(group->options.store, key.text, &there) != STATUS_OK) {
        if (st == STATUS_PEER)
            lost = peers_find_ended(group->watched, 0, DEATH_GRACE_MS);
        gone = lost >= 0;
        if (!gone)
            lost = peers_find_stopped(group->watched, 0);
    }
    status_restore(&kept);
    if (lost < 0)
        return st;
    peers_name(group->watched, lost, who);
    return status_context(gone ? STATUS_PEER : STATUS_TIMEOUT, "%s is %s", who,
                          gone ? "gone" : "stopped");
}

/* "ranks 1, 3 and 5 have not come to barrier #3" */
static status name_missing(void *ctx, const bool *there, bool is_over)
{
    const held_meeting *held = ctx;
    char list[256] = "";
    size_t length = 0;
    int n = held->group->world_size, missing = 0, named = 0;
    TRY(find_dead(held->group->watched, there));
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
    status st = membership_meet(&ranks, &how, NULL);
    if (st != STATUS_OK)
        return name_lost(group, prefix, st);
    if (what->number > 1)
        forget(group, what->name, what->number - 1);
    return STATUS_OK;
}
