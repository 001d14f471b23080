/* Do all ranks call the same? Under PROCESS_GROUP_DEBUG_DETAIL they compare what they are about to
 * do in the store, before the backend hears of it. So a difference is an error that says what
 * differs, and not a hang or another rank's data.
 *
 * A record is one word per field. Those that mean nothing to the operation are alike on all ranks.
 */
#include "dist/membership/keys.h"
#include "dist/process_group/process_group_state.h"
#include "dist/process_group/store_meeting.h"

#include <stdio.h>
#include <string.h>

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
static status compare(void *ctx, char *const records[], char **outcome)
{
    const int n = *(const int *)ctx;
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

status process_group_check_call(process_group *group, const collective *c)
{
    char record[RECORD_BYTES], of[256];
    collective numbered = *c;
    if (group->options.debug < PROCESS_GROUP_DEBUG_DETAIL || group->ops == NULL ||
        group->options.store == NULL || collective_is_send_or_recv(c->kind))
        return STATUS_OK;
    pthread_mutex_lock(&group->lock);
    status st = process_group_may_begin(group, c);
    numbered.seq = group->seq + 1;
    uint64_t number = ++group->checked;
    pthread_mutex_unlock(&group->lock);
    if (st != STATUS_OK)
        return st;
    make_record(c, record);
    collective_describe(&numbered, of, sizeof of);
    store_meeting all = {.name = KEYS_CALL,
                         .number = number,
                         .record = record,
                         .of = of,
                         .timeout_ms = group->patience_ms,
                         .compare = compare,
                         .ctx = &group->world_size};
    st = store_meeting_hold(group, &all);
    if (st == STATUS_OK)
        return STATUS_OK;
    status_context(st, "%s on rank %d (%s)", of, group->rank, group->ops->name);
    pthread_mutex_lock(&group->lock);
    process_group_break(group, st);
    pthread_mutex_unlock(&group->lock);
    return st;
}
