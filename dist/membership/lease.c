#include "dist/membership/lease.h"

#include "base/clock.h"
#include "dist/membership/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void lease_init(lease *l, const char *prefix, const char *noun, const char *who)
{
    *l = (lease){.member = -1, .prefix = prefix, .noun = noun};
    snprintf(l->holder, sizeof l->holder, "%.*s#%x.%llx.%llx", LEASE_WHO_BYTES - 1, who,
             (unsigned)getpid(), (unsigned long long)clock_now_ns(),
             (unsigned long long)(uintptr_t)l);
}

/* The text of a key; "" if it is not there. */
static status text_of(store *s, keys_text key, char *out, size_t size_bytes)
{
    char *text = NULL;
    TRY(store_try_get(s, key.text, &text));
    snprintf(out, size_bytes, "%s", text != NULL ? text : "");
    free(text);
    return STATUS_OK;
}

/* The words before the token. */
static void who_of(const char *holder, char who[LEASE_WHO_BYTES])
{
    snprintf(who, LEASE_WHO_BYTES, "%.*s", (int)strcspn(holder, "#"), holder);
}

status lease_holder(store *s, const char *prefix, int member, char who[LEASE_WHO_BYTES])
{
    char holder[LEASE_BYTES];
    TRY(text_of(s, keys_make(prefix, KEYS_LEASE, member), holder, sizeof holder));
    who_of(holder, who);
    return STATUS_OK;
}

status lease_look(store *s, const char *prefix, int member, last_heartbeat *seen, bool *changed)
{
    char now[sizeof seen->value];
    TRY(text_of(s, keys_make(prefix, KEYS_HEARTBEAT, member), now, sizeof now));
    *changed = strcmp(now, seen->value) != 0;
    if (*changed || seen->changed_ns == 0)
        seen->changed_ns = clock_now_ns();
    memcpy(seen->value, now, sizeof now);
    return STATUS_OK;
}

/* Holds the member from now on, if `from` ("": nobody) held it until now. */
static status take_from(lease *l, store *s, int member, const char *from, bool *taken,
                        char who[LEASE_WHO_BYTES])
{
    void *holder = NULL;
    size_t size_bytes;
    TRY(store_compare_set(s, keys_make(l->prefix, KEYS_LEASE, member).text, from, l->holder,
                          &holder, &size_bytes));
    *taken = strcmp(holder, l->holder) == 0;
    who_of(holder, who);
    free(holder);
    if (*taken)
        l->member = member;
    return STATUS_OK;
}

status lease_take(lease *l, store *s, int member, bool *taken, char who[LEASE_WHO_BYTES])
{
    return take_from(l, s, member, "", taken, who);
}

/* It is held: takes it once it is released, or its holder is silent. */
static status wait_for(lease *l, store *s, const lease_wish *wish, bool *taken)
{
    char holder[LEASE_BYTES], who[LEASE_WHO_BYTES];
    last_heartbeat seen = {0};
    int64_t deadline_ns = clock_deadline_ns(LEASE_SILENT_MS);
    for (bool first = true; !*taken; first = false) {
        bool is_over = false, changed = false, late = clock_passed(deadline_ns);
        TRY(wish->over(wish->ctx, &is_over));
        if (is_over)
            return STATUS_OK;
        TRY(lease_look(s, l->prefix, wish->member, &seen, &changed));
        TRY(text_of(s, keys_make(l->prefix, KEYS_LEASE, wish->member), holder, sizeof holder));
        if (changed && !first)
            return STATUS_OK; /* it lives */
        if (late || holder[0] == '\0')
            TRY(take_from(l, s, wish->member, holder, taken, who));
        if (late)
            return STATUS_OK;
        if (!*taken)
            clock_sleep_ms(LEASE_RENEW_MS);
    }
    return STATUS_OK;
}

status lease_take_over(lease *l, store *s, const lease_wish *wish, bool *taken)
{
    char who[LEASE_WHO_BYTES];
    TRY(lease_take(l, s, wish->member, taken, who));
    if (!*taken)
        TRY(wait_for(l, s, wish, taken));
    return *taken ? lease_renew(l, s) : STATUS_OK;
}

/* Whether this process holds its member still; else `who` does. */
static status holds(const lease *l, store *s, bool *out, char who[LEASE_WHO_BYTES])
{
    char holder[LEASE_BYTES];
    TRY(text_of(s, keys_make(l->prefix, KEYS_LEASE, l->member), holder, sizeof holder));
    *out = strcmp(holder, l->holder) == 0;
    who_of(holder, who);
    return STATUS_OK;
}

status lease_renew(lease *l, store *s)
{
    char text[64], who[LEASE_WHO_BYTES];
    bool own = false;
    TRY(holds(l, s, &own, who));
    if (!own)
        return FAIL(
            STATUS_INVALID,
            "this process was silent for too long, and %s %d is now held by another one (%s)",
            l->noun, l->member, who[0] != '\0' ? who : "?");
    int length =
        snprintf(text, sizeof text, "%lld of %d", (long long)++l->heartbeats, (int)getpid());
    return store_set(s, keys_make(l->prefix, KEYS_HEARTBEAT, l->member).text, text, (size_t)length);
}

void lease_release(const lease *l, store *s)
{
    char who[LEASE_WHO_BYTES];
    bool own = false, deleted = false;
    if (l->member < 0 || holds(l, s, &own, who) != STATUS_OK || !own)
        return;
    if (store_delete(s, keys_make(l->prefix, KEYS_LEASE, l->member).text, &deleted) != STATUS_OK)
        return; /* the store is gone: nobody will ask */
}
