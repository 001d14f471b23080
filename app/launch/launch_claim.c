#include "app/launch/launch_claim.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text of a key; "" where it is not there. */
static status text_of(const launch_joining *joining, store *client, const char *name, int node,
                      char *out, size_t size_bytes)
{
    char key[LAUNCH_KEY_BYTES];
    bool there = false;
    void *text = NULL;
    size_t text_bytes;
    launch_join_key(joining, name, node, key);
    TRY(store_check(client, key, &there));
    if (there)
        TRY(store_get(client, key, &text, &text_bytes));
    snprintf(out, size_bytes, "%s", text != NULL ? (const char *)text : "");
    free(text);
    return STATUS_OK;
}

status launch_claim_holder(const launch_joining *joining, store *client, int node,
                           char person[LAUNCH_CLAIM_BYTES])
{
    TRY(text_of(joining, client, "claim", node, person, LAUNCH_CLAIM_BYTES));
    person[strcspn(person, "#")] = '\0';
    return STATUS_OK;
}

status launch_claim_look(const launch_joining *joining, store *client, int node,
                         launch_sighting *sighting, bool *changed)
{
    char now[sizeof sighting->beat];
    TRY(text_of(joining, client, "beat", node, now, sizeof now));
    *changed = strcmp(now, sighting->beat) != 0;
    if (*changed || sighting->changed_ns == 0)
        sighting->changed_ns = clock_now_ns();
    memcpy(sighting->beat, now, sizeof now);
    return STATUS_OK;
}

/* Holds the node from now on, if `from` ("": nobody) did until now. */
static status try_to_take(const launch_joining *joining, store *client, int node, const char *from,
                          launch_claim *claim, bool *taken)
{
    char key[LAUNCH_KEY_BYTES];
    void *holder = NULL;
    size_t size_bytes;
    launch_join_key(joining, "claim", node, key);
    TRY(store_compare_set(client, key, from, claim->holder, &holder, &size_bytes));
    *taken = strcmp(holder, claim->holder) == 0;
    free(holder);
    if (!*taken)
        return STATUS_OK;
    claim->node = node;
    return launch_claim_keep(claim, joining, client);
}

/* The numbers that this node may have: `n` of them, and the first to try. */
typedef struct choice {
    int from, n, first;
} choice;

static status choose(const launch_joining *joining, store *client, choice *out)
{
    const launch_plan *plan = &joining->spec->plan;
    char key[LAUNCH_KEY_BYTES];
    int64_t number = 0;
    *out = (choice){.from = plan->by_arrival && joining->serves ? 0 : plan->node_rank, .n = 1};
    if (out->from >= 0)
        return STATUS_OK;
    launch_join_key(joining, "arrived", -1, key);
    TRY(store_add(client, key, 1, &number)); /* so that not all try the same one first */
    *out = (choice){.from = 1, .n = plan->nnodes - 1};
    out->first = (int)((number > 0 ? number - 1 : 0) % out->n);
    return STATUS_OK;
}

static status take_free(const launch_joining *joining, store *client, const choice *c,
                        launch_claim *claim, bool *taken)
{
    for (int i = 0; i < c->n && !*taken; i++)
        TRY(try_to_take(joining, client, c->from + (c->first + i) % c->n, "", claim, taken));
    return STATUS_OK;
}

/* All are held: takes one that falls free or silent. */
static status take_over(const launch_joining *joining, store *client, const choice *c,
                        launch_claim *claim, bool *taken)
{
    char key[LAUNCH_KEY_BYTES], holder[LAUNCH_CLAIM_BYTES];
    bool started = false, changed;
    int living = 0;
    launch_sighting *seen = calloc((size_t)c->n, sizeof *seen);
    bool *lives = calloc((size_t)c->n, sizeof *lives);
    status st =
        seen != NULL && lives != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%d nodes", c->n);
    int64_t deadline_ns = clock_deadline_ns(LAUNCH_CLAIM_SILENT_MS);
    launch_join_key(joining, "started", -1, key);
    for (bool first = true; st == STATUS_OK && living < c->n && !*taken; first = false) {
        bool late = clock_passed(deadline_ns);
        st = atomic_load(joining->quit) ? FAIL(STATUS_PEER, "told to stop")
                                        : store_check(client, key, &started);
        if (started)
            break; /* from then on node 0 looks who lives */
        for (int i = 0; i < c->n && st == STATUS_OK && !*taken; i++) {
            if (lives[i])
                continue;
            st = launch_claim_look(joining, client, c->from + i, &seen[i], &changed);
            if (st == STATUS_OK)
                st = text_of(joining, client, "claim", c->from + i, holder, sizeof holder);
            lives[i] = !first && changed;
            living += lives[i];
            if (st == STATUS_OK && !lives[i] && (late || holder[0] == '\0'))
                st = try_to_take(joining, client, c->from + i, holder, claim, taken);
        }
        if (late)
            break;
        clock_sleep_ms(LAUNCH_CLAIM_LOOK_MS);
    }
    free(seen);
    free(lives);
    return st;
}

status launch_claim_take(const launch_joining *joining, store *client, bool *full,
                         launch_claim *out)
{
    const launch_plan *plan = &joining->spec->plan;
    char person[LAUNCH_CLAIM_BYTES];
    launch_claim claim = {.node = -1};
    choice c;
    bool taken = false;
    launch_agreement_person(plan, person);
    snprintf(claim.holder, sizeof claim.holder, "%.*s#%llx", AGREEMENT_PERSON_BYTES, person,
             (unsigned long long)clock_now_ns());
    *full = false;
    TRY(choose(joining, client, &c));
    TRY(take_free(joining, client, &c, &claim, &taken));
    if (!taken)
        TRY(take_over(joining, client, &c, &claim, &taken));
    if (taken) {
        *out = claim;
        return STATUS_OK;
    }
    *full = plan->by_arrival;
    if (*full)
        return FAIL(STATUS_INVALID,
                    "the job at %s:%d has its %d nodes already; to run another one give it an "
                    "--rdzv-endpoint of its own",
                    plan->master_addr, joining->port, plan->nnodes);
    char other[LAUNCH_CLAIM_BYTES];
    TRY(launch_claim_holder(joining, client, c.from, other));
    return FAIL(STATUS_INVALID,
                "node %d is claimed twice, by one launcher (%s) and another (%s): give every node "
                "its own --node-rank",
                c.from, other, person);
}

status launch_claim_keep(launch_claim *claim, const launch_joining *joining, store *client)
{
    char key[LAUNCH_KEY_BYTES], beat[64], holder[LAUNCH_CLAIM_BYTES];
    TRY(text_of(joining, client, "claim", claim->node, holder, sizeof holder));
    if (strcmp(holder, claim->holder) != 0) {
        holder[strcspn(holder, "#")] = '\0';
        return FAIL(STATUS_INVALID,
                    "this launcher was silent for too long, and node %d is now another one (%s)",
                    claim->node, holder[0] != '\0' ? holder : "?");
    }
    launch_join_key(joining, "beat", claim->node, key);
    int length =
        snprintf(beat, sizeof beat, "%lld of %d", (long long)++claim->beats, (int)getpid());
    return store_set(client, key, beat, (size_t)length);
}

void launch_claim_release(const launch_claim *claim, const launch_joining *joining, store *client)
{
    char key[LAUNCH_KEY_BYTES], holder[LAUNCH_CLAIM_BYTES];
    bool deleted = false;
    if (text_of(joining, client, "claim", claim->node, holder, sizeof holder) != STATUS_OK ||
        strcmp(holder, claim->holder) != 0)
        return;
    launch_join_key(joining, "claim", claim->node, key);
    if (store_delete(client, key, &deleted) != STATUS_OK)
        return; /* node 0 is gone, and nobody asks */
}
