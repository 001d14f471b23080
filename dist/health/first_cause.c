/* The word in shared memory: 1 + who wrote it; << 16 1 + whom that rank had lost; and LATE if that
 * one is not dead, but did not come in time. */
#include "dist/health/first_cause.h"

#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VALUE_BYTES = 640,
    PREFIX_BYTES = 64,
    MOST_NAMED = 4,
    NOBODY = -1,
    DEATH_GRACE_MS = 100,  /* what a dead rank has sent may still be on its way; and a socket closes
                              a little before its process has ended */
    LEAVE_GRACE_MS = 1000, /* the same for one that left without a failure */
    LEAVE_LOOK_MS = 1000,
};

static const first_cause_word LATE = 1u << 31;

struct first_cause {
    store *keys; /* borrowed */
    bool has_left_store;
    first_cause_word *word; /* NULL: the record is in the store */
    peers *peers;
    char prefix[PREFIX_BYTES];
    int rank, world_size;
    int given_up;      /* the rank that this one no longer waits for; NOBODY */
    int64_t *ended_ns; /* (world_size): when a death was noticed; 0: not */
    int64_t looked_ns; /* for ranks that have departed */
};

cause_priority first_cause_priority(status st)
{
    return st == STATUS_PEER ? CAUSE_LOST : st == STATUS_TIMEOUT ? CAUSE_WAITED : CAUSE_OWN;
}

status first_cause_create(const group_setup *setup, first_cause_word *shared, int64_t deadline_ns,
                          first_cause **out)
{
    const process_group_options *o = setup->options;
    first_cause *c = calloc(1, sizeof *c);
    int64_t *ended_ns = calloc((size_t)o->world_size, sizeof *ended_ns);
    status st = STATUS_OK;
    if (c == NULL || ended_ns == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "a watch on %d ranks", o->world_size);
        goto out;
    }
    *c = (first_cause){.keys = o->store,
                       .word = shared,
                       .rank = o->rank,
                       .world_size = o->world_size,
                       .given_up = NOBODY,
                       .ended_ns = ended_ns};
    ended_ns = NULL; /* handed over */
    snprintf(c->prefix, sizeof c->prefix, "%s", setup->prefix);
    st = peers_create(setup, deadline_ns, &c->peers);
    if (st != STATUS_OK)
        goto out;
    *out = c;
    c = NULL; /* handed over */
out:
    free(ended_ns);
    first_cause_destroy(c);
    return st;
}

void first_cause_destroy(first_cause *c)
{
    if (c == NULL)
        return;
    peers_destroy(c->peers);
    free(c->ended_ns);
    free(c);
}

const peers *first_cause_peers(const first_cause *c)
{
    return c->peers;
}

void first_cause_leave_store(first_cause *c)
{
    __atomic_store_n(&c->has_left_store, true, __ATOMIC_RELEASE);
}

/* A failure is ignored: the others then learn less. */
static void tell(const first_cause *c, const char *name, int rank, const char *text)
{
    (void)store_set(c->keys, keys_make(c->prefix, name, rank).text, text, strlen(text));
}

/* STATUS_OK with "" if the key is not there. */
static status ask(const first_cause *c, const char *name, int rank, char *text)
{
    char *value = NULL;
    text[0] = '\0';
    TRY(store_try_get(c->keys, keys_make(c->prefix, name, rank).text, &value));
    snprintf(text, VALUE_BYTES, "%s", value != NULL ? value : "");
    free(value);
    return STATUS_OK;
}

/* false: there is a record already, and it stays. */
static bool record_in_word(first_cause *c, int lost, first_cause_word late)
{
    first_cause_word nothing = 0;
    first_cause_word own =
        (first_cause_word)(c->rank + 1) | (first_cause_word)(lost + 1) << 16 | late;
    return __atomic_compare_exchange_n(c->word, &nothing, own, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

/* The first dead rank that any rank has seen; `dead` is the one that this rank has seen. Without
 * the store each blames its own. */
static int agree_on_lost(const first_cause *c, int dead)
{
    char mine[32];
    void *value = NULL;
    size_t size_bytes = 0;
    if (__atomic_load_n(&c->has_left_store, __ATOMIC_ACQUIRE))
        return dead;
    snprintf(mine, sizeof mine, "%d", dead);
    if (store_compare_set(c->keys, keys_make(c->prefix, KEYS_LOST, -1).text, "", mine, &value,
                          &size_bytes) != STATUS_OK)
        return dead;
    int lost = atoi(value);
    free(value);
    return lost >= 0 && lost < c->world_size && lost != c->rank ? lost : dead;
}

status first_cause_death(first_cause *c, int dead)
{
    char who[PEERS_NAME_BYTES];
    if (c->word != NULL && !record_in_word(c, dead, 0))
        return first_cause_known(c);
    peers_name(c->peers, c->word != NULL ? dead : agree_on_lost(c, dead), who);
    return FAIL(STATUS_PEER, "%s is gone", who);
}

bool first_cause_blame(first_cause *c)
{
    char who[PEERS_NAME_BYTES];
    status_kept theirs;
    int dead = peers_find_ended(c->peers, 0, DEATH_GRACE_MS);
    if (dead < 0)
        return false;
    status_keep(&theirs);
    peers_name(c->peers, agree_on_lost(c, dead), who);
    status_restore(&theirs);
    status_context(STATUS_PEER, "%s is gone", who);
    return true;
}

status first_cause_closed(const peers *p, int rank)
{
    char who[PEERS_NAME_BYTES];
    if (p == NULL)
        return FAIL(STATUS_PEER, "rank %d has closed its process group", rank);
    peers_name(p, rank, who);
    return FAIL(STATUS_PEER, "%s has closed its process group", who);
}

bool first_cause_is_known(const first_cause *c)
{
    return __atomic_load_n(c->word, __ATOMIC_SEQ_CST) != 0;
}

status first_cause_known(const first_cause *c)
{
    char who[PEERS_NAME_BYTES], teller[PEERS_NAME_BYTES];
    first_cause_word word = __atomic_load_n(c->word, __ATOMIC_SEQ_CST);
    int by = (int)(word & 0xffff) - 1, lost = (int)((word & ~LATE) >> 16) - 1;
    if (by < 0 || by >= c->world_size || lost >= c->world_size)
        return FAIL(STATUS_PEER, "a rank scribbled over the shared memory");
    if (lost == NOBODY)
        return first_cause_closed(c->peers, by);
    peers_name(c->peers, lost, who);
    peers_name(c->peers, by, teller);
    if ((word & LATE) != 0)
        return FAIL(STATUS_TIMEOUT, "%s has waited in vain for %s", teller, who);
    return FAIL(STATUS_PEER, "%s is lost, as %s has found", who, teller);
}

bool first_cause_is_loss(const first_cause *c)
{
    first_cause_word word = __atomic_load_n(c->word, __ATOMIC_SEQ_CST);
    return word != 0 && (int)((word & ~LATE) >> 16) - 1 != NOBODY;
}

void first_cause_give_up_on(first_cause *c, int rank)
{
    c->given_up = rank;
}

void first_cause_depart(first_cause *c, const departure *how)
{
    char text[VALUE_BYTES], me[32];
    if (c->word != NULL) {
        (void)record_in_word(c, c->given_up, c->given_up != NOBODY ? LATE : 0);
        return;
    }
    snprintf(text, sizeof text, "%" PRIu64 " %d %s", how->number, (int)how->why, how->words);
    tell(c, KEYS_DEPARTED, c->rank, text);
    snprintf(me, sizeof me, "%d", c->rank);
    tell(c, KEYS_DEPARTED, NOBODY, me);
}

static bool has_departed(const first_cause *c, int rank, departure *how)
{
    char text[VALUE_BYTES];
    int code = 0, words_at = 0;
    if (ask(c, KEYS_DEPARTED, rank, text) != STATUS_OK ||
        sscanf(text, "%" SCNu64 " %d %n", &how->number, &code, &words_at) < 2)
        return false;
    how->why = code > STATUS_OK && code <= STATUS_DEVICE ? (status)code : STATUS_OK;
    snprintf(how->words, sizeof how->words, "%.500s", text + words_at);
    return true;
}

void first_cause_rename(const int *ranks, int n)
{
    static const char word[] = "rank ";
    status_kept message;
    status_keep(&message);
    char text[sizeof message.text];
    size_t used = 0;
    for (const char *at = message.text; *at != '\0' && used + 32 < sizeof text;) {
        char *end = NULL;
        long number = -1;
        if (strncmp(at, word, sizeof word - 1) == 0)
            number = strtol(at + sizeof word - 1, &end, 10);
        if (number >= 0 && number < n && end != at + sizeof word - 1) {
            used += (size_t)snprintf(text + used, sizeof text - used, "rank %d", ranks[number]);
            at = end;
        } else {
            text[used++] = *at++;
        }
    }
    text[used] = '\0';
    memcpy(message.text, text, used + 1);
    status_restore(&message);
}

/* The latest rank to depart; NOBODY. */
static int latest_departed(const first_cause *c)
{
    char text[VALUE_BYTES];
    if (ask(c, KEYS_DEPARTED, NOBODY, text) != STATUS_OK || text[0] == '\0')
        return NOBODY;
    int rank = atoi(text);
    return rank >= 0 && rank < c->world_size && rank != c->rank ? rank : NOBODY;
}

static bool is_needed(const awaited *what, int rank)
{
    return what->only == 0 || (what->only & first_cause_bit(rank)) != 0;
}

/* A rank that has closed its group: does the collective still need it? Of several that are needed,
 * one that left without a failure may have done its part. */
static status check_departed(const awaited *what, int rank, const departure *how, int64_t now_ns)
{
    bool has_come = how->number >= what->number;
    bool is_one = (what->only & (what->only - 1)) == 0 && what->only != first_cause_bit(63);
    if (what->only == 0 && has_come)
        return STATUS_OK;
    if (how->why != STATUS_OK)
        return FAIL(how->why, "rank %d has closed its process group: %s", rank, how->words);
    if (!is_one && has_come)
        return STATUS_OK;
    if (now_ns - what->since_ns < LEAVE_GRACE_MS * INT64_C(1000000))
        return STATUS_OK;
    return first_cause_closed(NULL, rank);
}

static status check_ended(first_cause *c, const awaited *what, int rank, int64_t now_ns)
{
    int64_t ended_ns = c->ended_ns[rank];
    int64_t from_ns = what->since_ns > ended_ns ? what->since_ns : ended_ns;
    if (ended_ns == 0 || now_ns - from_ns < DEATH_GRACE_MS * INT64_C(1000000))
        return STATUS_OK;
    departure how;
    return has_departed(c, rank, &how) ? check_departed(what, rank, &how, now_ns)
                                       : first_cause_death(c, rank);
}

/* Ranks that closed their group and live on, or were on another host. */
static status check_living(first_cause *c, const awaited *what, int64_t now_ns)
{
    const int64_t every_ns = LEAVE_LOOK_MS * INT64_C(1000000);
    departure how;
    if (now_ns - what->since_ns < every_ns || now_ns - c->looked_ns < every_ns)
        return STATUS_OK;
    c->looked_ns = now_ns;
    int rank = latest_departed(c);
    if (rank < 0 || !is_needed(what, rank))
        return STATUS_OK;
    return has_departed(c, rank, &how) ? check_departed(what, rank, &how, now_ns) : STATUS_OK;
}

void first_cause_look(first_cause *c, int64_t now_ns)
{
    int rank = peers_find_ended(c->peers, 0, 0);
    for (; rank >= 0; rank = peers_find_ended(c->peers, rank + 1, 0))
        if (c->ended_ns[rank] == 0)
            c->ended_ns[rank] = now_ns;
}

status first_cause_check(first_cause *c, const awaited *what, int64_t now_ns)
{
    for (int rank = 0; rank < c->world_size; rank++)
        if (rank != c->rank && is_needed(what, rank))
            TRY(check_ended(c, what, rank, now_ns));
    return check_living(c, what, now_ns);
}

void first_cause_tell_waiting(const first_cause *c, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, number);
    tell(c, KEYS_WAITS, c->rank, text);
}

void first_cause_name_late(const first_cause *c, uint64_t number, char *out, size_t size_bytes)
{
    char text[VALUE_BYTES], who[PEERS_NAME_BYTES];
    int named = 0, stopped = peers_find_stopped(c->peers, 0);
    size_t used = 0;
    out[0] = '\0';
    if (stopped >= 0) {
        peers_name(c->peers, stopped, who);
        snprintf(out, size_bytes, ": %s is stopped", who);
        return;
    }
    for (int rank = 0; rank < c->world_size && named < MOST_NAMED && used < size_bytes; rank++) {
        if (rank == c->rank)
            continue;
        if (ask(c, KEYS_WAITS, rank, text) != STATUS_OK)
            return;
        if (text[0] != '\0' && strtoull(text, NULL, 10) >= number)
            continue;
        used += (size_t)snprintf(out + used, size_bytes - used,
                                 named == 0 ? ": rank %d has not come" : ", nor rank %d", rank);
        named++;
    }
}
