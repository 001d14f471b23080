#include "dist/membership/membership.h"

#include "base/clock.h"
#include "base/text.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 3000, /* until the first line about waiting */
    NEXT_LINE_MS = 5000,  /* until each line after it */
    LOOK_MS = 1000,       /* between two looks for members that have gone */
    COMPARE_MS = 1000,    /* for whoever came last at the deadline */
    LINGER_MS = 400,      /* a failure stays readable for the others */
    WHY_BYTES = 1500,
    LEASE_WHO_BYTES = 320,
    LEASE_BYTES = LEASE_WHO_BYTES + 60,
};

/* Who is member m of a group: one process holds the lease on it, for good. */

/* The words before the token. */
static void who_of(const char *holder, char who[LEASE_WHO_BYTES])
{
    snprintf(who, LEASE_WHO_BYTES, "%.*s", (int)strcspn(holder, "#"), holder);
}

/* Who holds a member, as it has said; "" for nobody. */
static status holder_of(const membership *m, int member, char who[LEASE_WHO_BYTES])
{
    char *text = NULL;
    TRY(store_try_get(m->store, keys_make(m->prefix, KEYS_LEASE, member).text, &text));
    who_of(text != NULL ? text : "", who);
    free(text);
    return STATUS_OK;
}

static status set_text(const membership *m, keys_text key, const char *text)
{
    return store_set(m->store, key.text, text, strlen(text));
}

static status get_text(const membership *m, keys_text key, char **out)
{
    void *value = NULL;
    size_t size_bytes;
    TRY(store_get(m->store, key.text, &value, &size_bytes));
    *out = value;
    return STATUS_OK;
}

/* What the key holds once this member has tried to be the first to set it; the caller frees it. */
static status set_first(const membership *m, const char *name, const char *text, char **held)
{
    void *value = NULL;
    size_t size_bytes;
    TRY(store_compare_set(m->store, keys_make(m->prefix, name, -1).text, "", text, &value,
                          &size_bytes));
    *held = value;
    return STATUS_OK;
}

/* Member 0 may serve the store: it stays until all members know why it goes, LINGER_MS at most. */
static void linger(const membership *m)
{
    int64_t deadline_ns = clock_deadline_ns(LINGER_MS), came = 0, heard = 0;
    if (m->member != 0)
        return;
    do {
        if (store_add(m->store, keys_make(m->prefix, KEYS_CAME, -1).text, 0, &came) != STATUS_OK ||
            store_add(m->store, keys_make(m->prefix, KEYS_HEARD, -1).text, 0, &heard) != STATUS_OK)
            return;
        if (came >= m->n && heard >= came)
            return;
        clock_sleep_ms(2);
    } while (!clock_passed(deadline_ns));
}

/* Only these two are failures of the group. Any other is one member's; to the others it is
 * STATUS_PEER.
 */
static bool is_shared(status st)
{
    return st == STATUS_INVALID || st == STATUS_TIMEOUT;
}

/* STATUS_OK and the text after "ok ", or the failure that all members share. has_come: this one is
 * among those that have come, and so among those that hear. */
static status read_outcome(const membership *m, const char *held, bool has_come, char **outcome)
{
    int code = 0, skip = 0;
    int64_t heard;
    if (strncmp(held, "ok ", 3) == 0) {
        if (outcome != NULL && (*outcome = strdup(held + 3)) == NULL)
            return FAIL(STATUS_NO_MEMORY, "an outcome of %zu bytes", strlen(held));
        return STATUS_OK;
    }
    if (sscanf(held, "no %d %n", &code, &skip) != 1 || skip == 0)
        return FAIL(STATUS_PEER, "the %ss' outcome makes no sense: '%.100s'", m->noun, held);
    status st = FAIL(is_shared((status)code) ? (status)code : STATUS_PEER, "%s", held + skip);
    status_kept kept;
    status_keep(&kept);
    (void)store_add(m->store, keys_make(m->prefix, KEYS_HEARD, -1).text, has_come, &heard);
    linger(m);
    status_restore(&kept);
    return st;
}

/* Sets "no ..." with this thread's message, unless an outcome stands; *held is what stands now. */
static status refuse(const membership *m, status st, bool names_member, char **held)
{
    char text[WHY_BYTES + 64], name[64] = "";
    if (names_member)
        snprintf(name, sizeof name, "%s %d: ", m->noun, m->member);
    snprintf(text, sizeof text, "no %d %s%.*s", (int)st, name, WHY_BYTES, status_text());
    return set_first(m, KEYS_OUTCOME, text, held);
}

/* A failure of the meeting becomes that of all, unless an outcome came before it: that one stands.
 */
static status share_failure(const membership *m, status st, bool has_come, char **outcome)
{
    char *held = NULL;
    status_kept kept;
    status_keep(&kept);
    if (refuse(m, st, !is_shared(st), &held) != STATUS_OK) {
        status_restore(&kept);
        return st;
    }
    status shared = read_outcome(m, held, has_come, outcome);
    free(held);
    if (shared == STATUS_OK || is_shared(shared))
        return shared;
    status_restore(&kept);
    return st;
}

status membership_give_up(const membership *m, status st)
{
    char *held = NULL;
    status_kept kept;
    status_keep(&kept);
    if (refuse(m, st, m->member >= 0, &held) == STATUS_OK)
        linger(m);
    free(held);
    status_restore(&kept);
    return st;
}

static status settle(const membership *m, const char *outcome, bool has_come)
{
    char *text = NULL, *held = NULL;
    if (asprintf(&text, "ok %s", outcome) < 0)
        return FAIL(STATUS_NO_MEMORY, "an outcome of %zu bytes", strlen(outcome));
    status st = set_first(m, KEYS_OUTCOME, text, &held);
    free(text);
    if (st == STATUS_OK)
        st = read_outcome(m, held, has_come, NULL);
    free(held);
    return st;
}

status membership_settle(const membership *m, const char *outcome)
{
    return settle(m, outcome, false);
}

status membership_hear(const membership *m, bool *known)
{
    char *held = NULL;
    TRY(store_try_get(m->store, keys_make(m->prefix, KEYS_OUTCOME, -1).text, &held));
    *known = held != NULL;
    if (held == NULL)
        return STATUS_OK;
    status st = read_outcome(m, held, false, NULL);
    free(held);
    return st;
}

status membership_look(const membership *m, bool *there)
{
    for (int i = 0; i < m->n; i++)
        TRY(store_check(m->store, keys_make(m->prefix, KEYS_RECORD, i).text, &there[i]));
    return STATUS_OK;
}

/* All members have the size of the first one to come. */
static status agree_on_size(const membership *m)
{
    char ours[LEASE_BYTES], *held = NULL;
    const char *who = m->who != NULL ? m->who : "";
    snprintf(ours, sizeof ours, "%d %d %s", m->n, m->member, who);
    TRY(set_first(m, KEYS_SIZE, ours, &held));
    int n = 0, member = 0, skip = 0;
    status st = STATUS_OK;
    if (sscanf(held, "%d %d %n", &n, &member, &skip) == 2 && n != m->n)
        st = FAIL(STATUS_INVALID, "the %ss disagree on %s: %s %d%s%s%s has %d, %s %d%s%s%s has %d",
                  m->noun, m->size_name, m->noun, member, held[skip] != '\0' ? " (" : "",
                  held + skip, held[skip] != '\0' ? ")" : "", n, m->noun, m->member,
                  who[0] != '\0' ? " (" : "", who, who[0] != '\0' ? ")" : "", m->n);
    free(held);
    return st;
}

/* The last one to come has all records. */
static status compare_all(const membership *m, const meeting *how, char **outcome)
{
    status st = STATUS_OK;
    char **records = calloc((size_t)m->n, sizeof *records);
    if (records == NULL)
        return FAIL(STATUS_NO_MEMORY, "the records of %d %ss", m->n, m->noun);
    for (int i = 0; i < m->n && st == STATUS_OK; i++)
        st = get_text(m, keys_make(m->prefix, KEYS_RECORD, i), &records[i]);
    if (st == STATUS_OK)
        st = how->compare(how->ctx, records, outcome);
    for (int i = 0; i < m->n; i++)
        free(records[i]);
    free(records);
    return st;
}

/* No other process may be this member: who is the first to set its lease holds it. A token tells it
 * from its namesakes. */
static status take_lease(const membership *m)
{
    char own[LEASE_BYTES], who[LEASE_WHO_BYTES];
    void *holder = NULL;
    size_t size_bytes;
    snprintf(own, sizeof own, "%.*s#%x.%llx.%llx", LEASE_WHO_BYTES - 1, m->who, (unsigned)getpid(),
             (unsigned long long)clock_now_ns(), (unsigned long long)(uintptr_t)own);
    TRY(store_compare_set(m->store, keys_make(m->prefix, KEYS_LEASE, m->member).text, "", own,
                          &holder, &size_bytes));
    bool taken = strcmp(holder, own) == 0;
    who_of(holder, who);
    free(holder);
    if (taken)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s %d is claimed twice, by %s and by %s: %s", m->noun, m->member,
                who, m->who, m->advice);
}

/* *outcome: what the last one to come makes of it; NULL: others are to come. */
static status come(const membership *m, const meeting *how, int64_t *came, char **outcome)
{
    if (m->who != NULL)
        TRY(take_lease(m));
    if (m->size_name != NULL)
        TRY(agree_on_size(m));
    TRY(set_text(m, keys_make(m->prefix, KEYS_RECORD, m->member), how->record));
    TRY(store_add(m->store, keys_make(m->prefix, KEYS_CAME, -1).text, 1, came));
    if (*came < m->n)
        return STATUS_OK;
    if (how->compare != NULL)
        TRY(compare_all(m, how, outcome));
    if (*outcome == NULL && (*outcome = strdup("")) == NULL)
        return FAIL(STATUS_NO_MEMORY, "an outcome");
    return STATUS_OK;
}

status membership_arrive(const membership *m, const meeting *how)
{
    int64_t came = 0;
    char *outcome = NULL;
    status_kept kept;
    status st = come(m, how, &came, &outcome);
    if (st == STATUS_OK) {
        st = outcome != NULL ? settle(m, outcome, true) : STATUS_OK;
        free(outcome);
        return st;
    }
    status_keep(&kept);
    status shared = share_failure(m, st, came > 0, NULL);
    if (shared != STATUS_OK)
        return shared;
    status_restore(&kept); /* the others have met without this one */
    return st;
}

/* The store failed. */
static status say_lost(const membership *m, status st)
{
    if (store_watches(m->store))
        return status_context(st, "%s 0, which serves the store, is gone", m->noun);
    return status_context(st, "the store went away before all %ss had come", m->noun);
}

/* STATUS_OK if all have come after all, or if it is not yet the deadline. */
static status name_missing(const membership *m, const meeting *how, bool is_over)
{
    int first = 0;
    bool *there = calloc((size_t)m->n, sizeof *there);
    if (there == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d %ss", m->n, m->noun);
    status st = membership_look(m, there);
    if (st != STATUS_OK)
        st = say_lost(m, st);
    while (first < m->n && there[first])
        first++;
    if (st == STATUS_OK && first < m->n && how->missing != NULL)
        st = how->missing(how->ctx, there, is_over);
    else if (st == STATUS_OK && first < m->n && is_over)
        st = FAIL(STATUS_TIMEOUT, "%s %d %s", m->noun, first, how->late);
    free(there);
    return st;
}

/* STATUS_PEER if a member has come, and its connection to the store has closed since. */
static status find_gone(const membership *m)
{
    const store_watch_options all = {.prefix = KEYS_ALIVE "/", .after = -1};
    store_watch_answer living = {0};
    char who[LEASE_WHO_BYTES] = "";
    int gone = 0;
    bool *there = calloc((size_t)m->n, sizeof *there);
    if (there == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d %ss", m->n, m->noun);
    status st = membership_look(m, there); /* who comes after it is not missed */
    if (st == STATUS_OK)
        st = store_watch(m->store, &all, &living);
    for (size_t i = 0; i < living.n; i++) {
        int member;
        if (number_parse(living.keys[i].key + strlen(all.prefix), 0, m->n - 1, &member))
            there[member] = false;
    }
    store_watch_free(&living);
    while (gone < m->n && !there[gone])
        gone++;
    if (st == STATUS_OK && gone < m->n && m->who != NULL)
        st = holder_of(m, gone, who);
    if (st == STATUS_OK && gone < m->n)
        st = FAIL(STATUS_PEER, "%s %d%s%s%s is gone: it was stopped, or has died", m->noun, gone,
                  who[0] != '\0' ? " (" : "", who, who[0] != '\0' ? ")" : "");
    free(there);
    return st;
}

/* Until the outcome is known, or the deadline. Member 0 sees meanwhile who goes. */
static status await_outcome(const membership *m, int64_t deadline_ns)
{
    bool looks = m->of_job && m->member == 0 && store_watches(m->store);
    keys_text key = keys_make(m->prefix, KEYS_OUTCOME, -1);
    for (;;) {
        int64_t next_ns = looks ? clock_deadline_ns(LOOK_MS) : deadline_ns;
        bool last = next_ns >= deadline_ns;
        status st =
            store_wait(m->store, key.text, clock_remaining_ms(last ? deadline_ns : next_ns));
        if (st != STATUS_OK && st != STATUS_TIMEOUT)
            return say_lost(m, st);
        if (st == STATUS_OK || last)
            return st;
        st = find_gone(m);
        if (st != STATUS_OK)
            TRY(share_failure(m, st, true, NULL));
    }
}

status membership_wait(const membership *m, const meeting *how, char **outcome)
{
    int64_t line_ns = clock_deadline_ns(FIRST_LINE_MS), end_ns = how->deadline_ns;
    keys_text key = keys_make(m->prefix, KEYS_OUTCOME, -1);
    for (bool is_over = false;;) {
        int64_t next_ns = how->missing != NULL && line_ns < end_ns ? line_ns : end_ns;
        status st = await_outcome(m, next_ns);
        if (st == STATUS_OK) {
            char *held = NULL;
            TRY(get_text(m, key, &held));
            st = read_outcome(m, held, true, outcome);
            free(held);
            return st;
        }
        if (st != STATUS_TIMEOUT)
            return st;
        if (is_over)
            return share_failure(m,
                                 FAIL(STATUS_TIMEOUT,
                                      "all %ss have come, but the one that compares them is late",
                                      m->noun),
                                 true, outcome);
        is_over = clock_passed(how->deadline_ns);
        st = name_missing(m, how, is_over);
        if (st != STATUS_OK)
            return share_failure(m, st, true, outcome);
        line_ns = clock_deadline_ns(NEXT_LINE_MS);
        if (is_over)
            end_ns = clock_deadline_ns(COMPARE_MS);
    }
}

status membership_meet(const membership *m, const meeting *how, char **outcome)
{
    TRY(membership_arrive(m, how));
    return membership_wait(m, how, outcome);
}
