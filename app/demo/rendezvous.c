/* How ranks find each other: what each is told, and what they write into the store when they meet.
 * They meet once more for it, at a store of its own, and one after the other. */
#include "dist/rendezvous.h"

#include "app/common/json_value.h"
#include "app/demo/demo.h"
#include "base/clock.h"
#include "base/host.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP_MS = 250,
    TIMEOUT_MS = 30000,
    NUMBER_BYTES = 16,
    FOUND_BYTES = 128,
    VALUE_COLUMNS = 40
};
#define RUN_ID "demo"
#define LOOKED "demo/rendezvous/looked"  /* in the job's own store */
#define PREFIX "mnist_ddp/" RUN_ID "/0/" /* what rendezvous_join puts before its keys */

static status show_variables(demo *d)
{
    static const char *const names[] = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR",
                                        "MASTER_PORT"};
    demo_begin(d, "What a rank is told");
    demo_say(d,
             "A process cannot guess that it is rank 1 of %d. Who starts it says so, by "
             "environment variables: the launcher, torchrun, or you by hand. Here they are:",
             d->world_size);
    demo_columns(d, "%s", "");
    json_t *cells = json_pack("[o]", json_sprintf("rank %d", d->rank));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = environment_text(names[i]);
        demo_columns(d, "%s", names[i]);
        json_array_append_new(cells, json_string(value != NULL ? value : "not set"));
    }
    demo_cells(d, cells);
    TRY(demo_show(d));
    demo_begin(d, "MASTER_ADDR and MASTER_PORT");
    demo_say(d, "They are the same for all ranks, on all machines: the address of the one store "
                "at which they meet. The launcher of node 0 serves it, else rank 0. The "
                "address is not that of the rank itself.");
    demo_say(d, "All else the ranks tell each other there: init_process_group ends on no rank "
                "before all have come. mnist_ddp demo store shows what a store can do.");
    return demo_show(d);
}

/* As a client of the store at which they meet; `once`: does not try again. */
static status connect_to(const rendezvous_place *place, bool once, store **out)
{
    return store_create(&(store_options){.host = place->master_addr,
                                         .port = place->master_port,
                                         .prefix = PREFIX,
                                         .timeout_ms = TIMEOUT_MS,
                                         .connect_timeout_ms = TIMEOUT_MS,
                                         .once = once},
                        out);
}

/* What a rank sees that comes now: "a store, with ranks 0, 2", or that nobody serves one. */
static status look(const rendezvous_place *place, char found[FOUND_BYTES])
{
    store *client = NULL;
    status st = connect_to(place, true, &client);
    if (st == STATUS_REFUSED) {
        snprintf(found, FOUND_BYTES, "connection refused");
        return STATUS_OK;
    }
    char ranks[FOUND_BYTES / 2] = "";
    int n = 0;
    for (int rank = 0; rank < place->world_size && st == STATUS_OK; rank++) {
        bool there = false;
        st = store_check(client, keys_make("join/", KEYS_RECORD, rank).text, &there);
        if (there)
            snprintf(ranks + strlen(ranks), sizeof ranks - strlen(ranks), "%s %d",
                     n++ > 0 ? "," : "", rank);
    }
    snprintf(found, FOUND_BYTES, "a store, with %s%s", n > 1 ? "ranks" : "rank",
             n > 0 ? ranks : "s: none");
    store_destroy(client);
    return st;
}

/* The last rank is the first to come, then rank 0, then the others. */
static int turn_of(const demo *d, int rank)
{
    return rank == d->world_size - 1 ? 0 : rank + 1;
}

/* This rank comes at its time, and after those before it, which may be late on a busy machine:
 * rank 0 after the first one has looked, the others after their records are there. */
static status await_turn(const demo *d, const rendezvous_place *place)
{
    int turn = turn_of(d, d->rank);
    status st = STATUS_OK;
    store *client = NULL;
    clock_sleep_ms((int64_t)STEP_MS * turn);
    if (turn == 1)
        return store_wait(rendezvous_store(d->rendezvous), LOOKED, TIMEOUT_MS);
    if (turn == 0)
        return STATUS_OK;
    TRY(connect_to(place, false, &client));
    for (int rank = 0; rank < d->world_size && st == STATUS_OK; rank++)
        if (turn_of(d, rank) < turn)
            st = store_wait(client, keys_make("join/", KEYS_RECORD, rank).text, TIMEOUT_MS);
    store_destroy(client);
    return st;
}

static status show_meeting(demo *d, const rendezvous_place *place, rendezvous **out)
{
    char found[FOUND_BYTES];
    int64_t start_ns;
    TRY(demo_begin_together(d, &start_ns));
    TRY(await_turn(d, place));
    double came_ms = demo_since_ms(start_ns);
    TRY(look(place, found));
    if (turn_of(d, d->rank) == 0)
        TRY(store_set(rendezvous_store(d->rendezvous), LOOKED, "", 0));
    TRY(rendezvous_join(place, TIMEOUT_MS, TIMEOUT_MS, out));
    double left_ms = demo_since_ms(start_ns);
    demo_begin(d, "The ranks meet at %s:%d", place->master_addr, place->master_port);
    demo_say(d,
             "Now they do it again, slowly: one comes every %d ms. Rank %d is the first, and "
             "nobody serves the store yet. So it tries to connect, again and again. Rank 0 "
             "serves the store, and joins, too.",
             STEP_MS, d->world_size - 1);
    demo_say(d, "All leave at the same moment, after the last one has come. Who was early has "
                "waited. That is why a job stands still if one rank was never started.");
    demo_columns(d, "|came at|left at|found");
    demo_row(d, "rank %d|%.0f ms|%.0f ms|%s", d->rank, came_ms, left_ms, found);
    return demo_show(d);
}

/* A row for a key that is there. */
static status tell_key(demo *d, store *client, keys_text key, int *keys)
{
    char name[KEYS_BYTES + sizeof PREFIX], cut[VALUE_COLUMNS + 4], *value = NULL;
    TRY(store_try_get(client, key.text, &value));
    if (value == NULL)
        return STATUS_OK;
    snprintf(name, sizeof name, "/%s%s", PREFIX, key.text);
    snprintf(cut, sizeof cut, "%.*s%s", VALUE_COLUMNS, value,
             strlen(value) > VALUE_COLUMNS ? "..." : "");
    demo_cells(d, json_pack("[s, o]", name, json_value_text(cut)));
    free(value);
    ++*keys;
    return STATUS_OK;
}

static status tell_keys(demo *d, store *client)
{
    static const char *const once[] = {KEYS_SIZE, KEYS_CAME, KEYS_OUTCOME};
    static const char *const each[] = {KEYS_LEASE, KEYS_RECORD};
    int keys = 0;
    int64_t all;
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        TRY(tell_key(d, client, keys_make("join/", once[i], -1), &keys));
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++)
        for (int rank = 0; rank < d->world_size; rank++)
            TRY(tell_key(d, client, keys_make("join/", each[i], rank), &keys));
    TRY(store_num_keys(client, &all));
    demo_fact(d, "keys_shown", json_integer(keys));
    demo_fact(d, "keys_in_store", json_integer((json_int_t)all));
    return STATUS_OK;
}

static status show_keys(demo *d, const rendezvous_place *place)
{
    store *client = NULL;
    status st = STATUS_OK;
    demo_begin(d, "What is in the store now");
    demo_say(d, "size: how many ranks there are, and who said so first. record/R: what rank R "
                "says of itself, and lease/R: who has that number, so that two processes with one "
                "RANK are found. came counts the ranks. The last one to come sets outcome, for "
                "which all others wait.");
    demo_say(d,
             "/mnist_ddp/%s/0/ stands before all of them: the id of the job, and how often it "
             "was started again. So two jobs cannot take each other's keys.",
             RUN_ID);
    if (d->rank == 0) {
        st = connect_to(place, true, &client);
        if (st == STATUS_OK)
            st = tell_keys(d, client);
        store_destroy(client);
    }
    TRY(st);
    return demo_show(d);
}

/* Rank 0 alone starts one rank of two. */
static status show_missing(demo *d)
{
    demo_begin(d, "And if one does not come?");
    demo_say(d, "A wait has a deadline: --join-timeout, else 600 s. Here rank 0 of 2 is started, "
                "and rank 1 is not. It waits for one second:");
    if (d->rank == 0) {
        TRY(demo_child_run(d,
                           "train --init-method=tcp://127.0.0.1:%d --world-size=2 --rank=0 "
                           "--join-timeout=1",
                           socket_address_free_port()));
        demo_say(d, "%s", d->child.line);
        demo_child_quote(d, d->child.err, NULL);
        demo_fact(d, "missing_exit_code", json_integer(d->child.exit_code));
    }
    return demo_show(d);
}

static status meet_and_show(demo *d, const rendezvous_place *place)
{
    rendezvous *again = NULL;
    status_kept cause;
    status st = show_meeting(d, place, &again);
    if (st == STATUS_OK)
        st = show_keys(d, place);
    if (st == STATUS_OK)
        rendezvous_leave(again);
    status_keep(&cause);
    rendezvous_destroy(again);
    status_restore(&cause);
    return st;
}

status rendezvous_demo(demo *d)
{
    rendezvous_place place = d->place;
    char port[NUMBER_BYTES];
    TRY(show_variables(d));
    snprintf(port, sizeof port, "%d", d->rank == 0 ? socket_address_free_port() : 0);
    TRY(demo_share(d, "demo/rendezvous/port", port, sizeof port));
    place.master_port = atoi(port);
    place.init_file[0] = '\0';
    place.agent_store = false;
    place.restart_count = 0;
    place.round = 0;
    snprintf(place.run_id, sizeof place.run_id, "%s", RUN_ID);
    TRY(meet_and_show(d, &place));
    return show_missing(d);
}
