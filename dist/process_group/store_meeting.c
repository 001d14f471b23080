/* The ranks of a group meet in the store, past the backend: again and again, each time under the
 * next number. For process_group.c, which counts them. */

#include "base/clock.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "dist/process_group/process_group.h"
#include "dist/process_group/process_group_state.h"
#include "dist/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct store_meeting {
    const process_group *group;
    const char *name; /* part of its keys: keys.h */
    uint64_t number;  /* from 1; all ranks count alike */
    const char *record;
    const char *of; /* what they come to: "barrier #3" */
    int64_t timeout_ms;
    status (*compare)(void *ctx, char *const records[], char **outcome); /* as a meeting's */
} store_meeting;

enum { DEATH_GRACE_MS = 100 }; /* a socket closes a little before its process has ended */

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
    const store_meeting *what = ctx;
    char list[256] = "";
    size_t length = 0;
    int n = what->group->world_size, missing = 0, named = 0;
    TRY(find_dead(what->group->watched, there));
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
                missing > 1 ? "have" : "has", what->of, clock_seconds(what->timeout_ms * 1000000));
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

/* Returns once all ranks of the group have come, with compare's verdict. The same failure on all of
 * them; STATUS_TIMEOUT names all that have not come. Deletes the keys of the meeting before. */
static status hold(store_meeting *what)
{
    const process_group *group = what->group;
    char prefix[KEYS_BYTES];
    make_prefix(group, what->name, what->number, prefix);
    membership ranks = {.store = group->options.store,
                        .prefix = prefix,
                        .member = group->rank,
                        .n = group->world_size,
                        .noun = "rank"};
    meeting how = {.record = what->record,
                   .deadline_ns = clock_deadline_ns(what->timeout_ms),
                   .compare = what->compare,
                   .missing = name_missing,
                   .ctx = what};
    status st = membership_meet(&ranks, &how, NULL);
    if (st != STATUS_OK)
        return name_lost(group, prefix, st);
    if (what->number > 1)
        forget(group, what->name, what->number - 1);
    return STATUS_OK;
}

status store_meeting_barrier(const process_group *group, uint64_t number, int64_t timeout_ms)
{
    char of[48];
    snprintf(of, sizeof of, "monitored barrier #%" PRIu64, number);
    store_meeting all = {.group = group,
                         .name = KEYS_BARRIER,
                         .number = number,
                         .record = "",
                         .of = of,
                         .timeout_ms = timeout_ms};
    status st = hold(&all);
    return st == STATUS_OK ? st : status_context(st, "%s on rank %d", of, group->rank);
}

/* Do all ranks call the same? Under PROCESS_GROUP_DEBUG_DETAIL they compare what they are about to
 * do in the store, before the backend hears of it. So a difference is an error that says what
 * differs, and not a hang or another rank's data.
 *
 * A record is one word per field. Those that mean nothing to the operation are alike on all ranks.
 */

enum { N_FIELDS = 6, WORD_BYTES = 32, RECORD_BYTES = N_FIELDS * WORD_BYTES };

static const char *const FIELDS[N_FIELDS] = {"", "op", "dtype", "count", "root", "prescale"};

static void make_record(const collective *c, char out[RECORD_BYTES])
{
    bool reduces = collective_reduces(c->kind), moves = c->kind != COLLECTIVE_BARRIER;
    snprintf(out, RECORD_BYTES, "%s %s %s %zu %d %.9g", collective_kind_name(c->kind),
             reduces ? reduce_op_name(c->op) : "-", moves ? dtype_name(c->type) : "-",
             moves ? c->count : 0, collective_has_root(c->kind) ? c->root : 0,
             reduces ? (double)c->prescale : 1);
}

/* Field `number` of a record. */
static void take_field(const char *record, int number, char out[WORD_BYTES])
{
    for (int i = 0; i < number; i++)
        record += strcspn(record, " ") + (record[strcspn(record, " ")] == ' ');
    snprintf(out, WORD_BYTES, "%.*s", (int)strcspn(record, " "), record);
}

/* What most ranks say; the lowest of several. */
static int find_usual(char *const records[], int n)
{
    int usual = 0, most = 0;
    for (int rank = 0; rank < n; rank++) {
        int alike = 0;
        for (int other = 0; other < n; other++)
            alike += strcmp(records[other], records[rank]) == 0;
        if (alike > most) {
            most = alike;
            usual = rank;
        }
    }
    return usual;
}

static int find_different(char *const records[], int n, const char *usual)
{
    for (int rank = 0; rank < n; rank++)
        if (strcmp(records[rank], usual) != 0)
            return rank;
    return -1;
}

/* A meeting's compare(): names a rank that differs, and the first field. */
static status compare_calls(void *ctx, char *const records[], char **outcome)
{
    const int n = ((const store_meeting *)ctx)->group->world_size;
    char theirs[WORD_BYTES], others[WORD_BYTES], kind[WORD_BYTES];
    (void)outcome;
    if (find_different(records, n, records[0]) < 0)
        return STATUS_OK;
    int usual = find_usual(records, n), rank = find_different(records, n, records[usual]),
        field = 0;
    do {
        take_field(records[rank], field, theirs);
        take_field(records[usual], field, others);
    } while (strcmp(theirs, others) == 0 && ++field < N_FIELDS);
    if (field == 0)
        return FAIL(STATUS_INVALID,
                    "rank %d calls %s, but rank %d calls %s: one of them has left out a "
                    "collective, or they come in another order",
                    rank, theirs, usual, others);
    take_field(records[rank], 0, kind);
    return FAIL(STATUS_INVALID, "rank %d calls %s with %s %s, but rank %d with %s %s", rank, kind,
                FIELDS[field], theirs, usual, FIELDS[field], others);
}

status store_meeting_compare(const process_group *group, uint64_t number, const collective *c)
{
    char record[RECORD_BYTES], of[256];
    make_record(c, record);
    collective_describe(c, of, sizeof of);
    store_meeting all = {.group = group,
                         .name = KEYS_CALL,
                         .number = number,
                         .record = record,
                         .of = of,
                         .timeout_ms = group->patience_ms,
                         .compare = compare_calls};
    status st = hold(&all);
    return st == STATUS_OK
               ? st
               : status_context(st, "%s on rank %d (%s)", of, group->rank, group->ops->name);
}
