#include "dist/rendezvous.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"
#include "dist/net/socket_address.h"
#include "dist/net/socket_route.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 3000,     /* the first line about waiting, */
    NEXT_LINE_MS = 5000,      /* and those after it */
    SLICE_MS = 200,           /* one wait for one rank, before the others are looked at */
    CLAIM_MS = 2000,          /* who claimed a rank says so by then */
    LINGER_MS = 2 * SLICE_MS, /* a failed join stays readable for the others */
    GOODBYE_MS = 5000,
    PERSON_BYTES = 200,
    KEY_BYTES = 64,
    LIST_BYTES = 160,
    LIST_ITEM_BYTES = 48, /* one of a list, and its end */
};

/* Keys of a join, all under the prefix:
 *
 *   claim/<rank>  how many processes claimed the rank; the second one is an error
 *   world         "<world size> <person>" of whoever came first; all others must agree
 *   join/<rank>   "<person>": the rank is there. A person is "host pid local_rank".
 *   failed        "<status> <text>": the join has failed; whoever waits stops with the same
 *   bye           how many ranks have said goodbye; bye/<rank> and bye/all say it of each and all
 */
struct rendezvous {
    rendezvous_place place;
    store_server *server; /* NULL where somebody else serves, or nobody needs to */
    store *store;         /* NULL for a world of one without an agent */
    int64_t timeout_ms;
    bool told; /* the join's failure came from another rank */
    char where[SOCKET_ADDRESS_BYTES];
    char person[PERSON_BYTES];
};

static const char *rank_key(const char *name, int rank, char *out)
{
    snprintf(out, KEY_BYTES, "%s/%d", name, rank);
    return out;
}

/* Who this is, for the others' messages. */
static void introduce(rendezvous *rdzv)
{
    char host[128] = "?";
    if (gethostname(host, sizeof host) != 0)
        memcpy(host, "?", 2);
    host[sizeof host - 1] = '\0';
    snprintf(rdzv->person, sizeof rdzv->person, "%s %d %d", host, (int)getpid(),
             rdzv->place.local_rank);
}

/* "host pid local_rank", as others wrote it, in words. */
static void describe_person(const char *person, char *out)
{
    char host[128];
    int pid, local_rank;
    if (sscanf(person, "%127s %d %d", host, &pid, &local_rank) == 3)
        snprintf(out, PERSON_BYTES, "pid %d on %s", pid, host);
    else
        snprintf(out, PERSON_BYTES, "a process that did not say which");
}

static status set_text(rendezvous *rdzv, const char *key, const char *text)
{
    return store_set(rdzv->store, key, text, strlen(text));
}

/* Lets the others know why the join fails, so that they need not wait for the timeout. */
static status spread(rendezvous *rdzv, status st)
{
    char text[1100];
    status_kept kept;
    status_keep(&kept);
    snprintf(text, sizeof text, "%d rank %d: %.1023s", (int)st, rdzv->place.rank, kept.text);
    bool known = rdzv->told || set_text(rdzv, "failed", text) == STATUS_OK;
    if (known && rdzv->server != NULL)
        clock_sleep_ms(LINGER_MS);
    status_restore(&kept);
    return st;
}

/* What another rank's spread() said, if it did. */
static status check_failed(rendezvous *rdzv)
{
    bool there = false;
    TRY(store_check(rdzv->store, "failed", &there));
    if (!there)
        return STATUS_OK;
    void *text = NULL;
    size_t size;
    TRY(store_get(rdzv->store, "failed", &text, &size));
    int code = STATUS_PEER, skip = 0;
    if (sscanf(text, "%d %n", &code, &skip) != 1 ||
        (code != STATUS_INVALID && code != STATUS_TIMEOUT))
        code = STATUS_PEER;
    rdzv->told = true;
    status st = FAIL((status)code, "the job cannot start: %.1000s", (const char *)text + skip);
    free(text);
    return st;
}

/* Two processes with one rank. */
static status claim_rank(rendezvous *rdzv)
{
    char claim[KEY_BYTES], join[KEY_BYTES];
    int rank = rdzv->place.rank;
    rank_key("join", rank, join);
    int64_t claims = 0;
    TRY(store_add(rdzv->store, rank_key("claim", rank, claim), 1, &claims));
    if (claims == 1)
        return STATUS_OK;
    char theirs[PERSON_BYTES] = "a process that did not say which", ours[PERSON_BYTES];
    void *person = NULL;
    size_t size;
    if (store_wait(rdzv->store, join, CLAIM_MS) == STATUS_OK &&
        store_get(rdzv->store, join, &person, &size) == STATUS_OK)
        describe_person(person, theirs);
    free(person);
    describe_person(rdzv->person, ours);
    return FAIL(STATUS_INVALID,
                "rank %d is claimed twice at %s, by %s and by %s: give every process its own RANK, "
                "or every job its own MASTER_PORT",
                rank, rdzv->where, theirs, ours);
}

static status agree_on_world(rendezvous *rdzv)
{
    char ours[PERSON_BYTES + 64], theirs[PERSON_BYTES], us[PERSON_BYTES];
    snprintf(ours, sizeof ours, "%d %d %s", rdzv->place.world_size, rdzv->place.rank, rdzv->person);
    void *held = NULL;
    size_t size;
    TRY(store_compare_set(rdzv->store, "world", "", ours, &held, &size));
    int world_size = 0, rank = 0, skip = 0;
    bool clear = sscanf(held, "%d %d %n", &world_size, &rank, &skip) == 2;
    /* Somebody came first: the answer to "nothing expected" is then what is held, or nothing. */
    status st = STATUS_OK;
    if (clear && world_size != rdzv->place.world_size) {
        describe_person((const char *)held + skip, theirs);
        describe_person(rdzv->person, us);
        st = FAIL(STATUS_INVALID,
                  "the ranks disagree on WORLD_SIZE: rank %d (%s) has %d, rank %d (%s) has %d",
                  rank, theirs, world_size, rdzv->place.rank, us, rdzv->place.world_size);
    }
    free(held);
    return st;
}

/* Whose node a rank is on: nodes have equally many. */
static int node_of(const rendezvous_place *place, int rank)
{
    return rank / place->local_world_size;
}

/* The last rank of those from `first` on that are missing and of one node. */
static int end_of_run(const rendezvous_place *place, const bool *there, int first)
{
    int last = first;
    while (last + 1 < place->world_size && !there[last + 1] &&
           node_of(place, last + 1) == node_of(place, first))
        last++;
    return last;
}

/* "1, 3, 8-15 (node 1), ..." of the ranks that are not there, at most as many as fit; returns how
 * many. Nodes are named where there are several. */
static int list_missing(const rendezvous_place *place, const bool *there, char *out)
{
    int missing = 0;
    size_t length = 0;
    bool nodes = place->local_world_size < place->world_size &&
                 place->world_size % place->local_world_size == 0;
    out[0] = '\0';
    for (int first = 0, last; first < place->world_size; first = last + 1) {
        last = first;
        if (there[first])
            continue;
        last = end_of_run(place, there, first);
        const char *comma = missing > 0 ? ", " : "";
        missing += last - first + 1;
        if (length > LIST_BYTES - LIST_ITEM_BYTES)
            continue;
        length += (size_t)snprintf(out + length, LIST_BYTES - length, "%s%d", comma, first);
        if (last > first)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, "-%d", last);
        if (nodes)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, " (node %d)",
                                       node_of(place, first));
        if (length > LIST_BYTES - LIST_ITEM_BYTES)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, ", ...");
    }
    return missing;
}

static status look_for_all(rendezvous *rdzv, bool *joined)
{
    char key[KEY_BYTES];
    for (int r = 0; r < rdzv->place.world_size; r++) {
        if (!joined[r])
            TRY(store_check(rdzv->store, rank_key("join", r, key), &joined[r]));
    }
    return STATUS_OK;
}

/* One rank of each node speaks: the lowest that is there. */
static bool speaks(const rendezvous *rdzv, const bool *joined)
{
    const rendezvous_place *place = &rdzv->place;
    int first = node_of(place, place->rank) * place->local_world_size;
    while (first < place->rank && !joined[first])
        first++;
    return first == place->rank;
}

/* Who is missing, at the deadline or in between. */
static status name_missing(rendezvous *rdzv, bool *joined, int64_t waited_ns, bool is_over,
                           bool *nobody)
{
    char list[LIST_BYTES], way[SOCKET_ROUTE_BYTES];
    int world_size = rdzv->place.world_size;
    double total_s = (double)rdzv->timeout_ms * 1e-3;
    TRY(look_for_all(rdzv, joined));
    int missing = list_missing(&rdzv->place, joined, list);
    *nobody = missing == 0;
    if (missing == 0 || (!is_over && !speaks(rdzv, joined)))
        return STATUS_OK;
    socket_route_describe(rdzv->place.master_addr, way);
    const char *from = way[0] != '\0' ? ", seen from " : "";
    if (is_over)
        return FAIL(STATUS_TIMEOUT,
                    "%d of %d ranks (%s) did not join at %s%s%s within %.3g s: see whether they "
                    "were started, and whether they can reach that address",
                    missing, world_size, list, rdzv->where, from, way, total_s);
    LOG_I("waiting for %d of %d ranks (%s) at %s%s%s, %.0f s of %.0f s", missing, world_size, list,
          rdzv->where, from, way, clock_seconds(waited_ns), total_s);
    return STATUS_OK;
}

/* Waits for the ranks one after the other: all have to come, so the order costs nothing. */
static status wait_for_all(rendezvous *rdzv, int64_t start_ns, bool *joined)
{
    int64_t deadline_ns = start_ns + rdzv->timeout_ms * 1000000;
    int64_t line_ns = start_ns + (int64_t)FIRST_LINE_MS * 1000000;
    char key[KEY_BYTES];
    bool all = false;
    for (int r = 0; r < rdzv->place.world_size;) {
        int left_ms = clock_remaining_ms(deadline_ns);
        status st = store_wait(rdzv->store, rank_key("join", r, key),
                               left_ms < SLICE_MS ? left_ms : SLICE_MS);
        if (st == STATUS_OK) {
            joined[r++] = true;
            continue;
        }
        if (st != STATUS_TIMEOUT)
            return status_context(st, "the store went away before all ranks had joined");
        TRY(check_failed(rdzv));
        int64_t now = clock_now_ns();
        if (now < line_ns && now < deadline_ns)
            continue;
        line_ns = now + (int64_t)NEXT_LINE_MS * 1000000;
        TRY(name_missing(rdzv, joined, now - start_ns, now >= deadline_ns, &all));
        if (all)
            return STATUS_OK;
    }
    return STATUS_OK;
}

/* Rank 0 without an agent. Other hosts can connect unless the address says that there are none. */
static status serve(rendezvous *rdzv)
{
    const rendezvous_place *place = &rdzv->place;
    char own[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    const char *host = place->master_addr;
    if (!socket_address_is_loopback(host))
        host = socket_address_home(host, own, why) ? own : NULL;
    status st = store_server_create(host, place->master_port, &rdzv->server);
    return st == STATUS_OK
               ? st
               : status_context(st, "rank 0 cannot serve the store (does another job, or another "
                                    "rank 0, run here?)");
}

static status connect_store(rendezvous *rdzv, int64_t store_timeout_ms)
{
    const rendezvous_place *place = &rdzv->place;
    char prefix[sizeof place->run_id + 64], describe[32];
    snprintf(prefix, sizeof prefix, "mnist_ddp/%s/%d/", place->run_id, place->restart_count);
    snprintf(describe, sizeof describe, "rank %d", place->rank);
    store_options options = {.host = place->master_addr,
                             .port = place->master_port,
                             .prefix = prefix,
                             .timeout_ms = store_timeout_ms,
                             .connect_timeout_ms = rdzv->timeout_ms,
                             .describe = describe};
    return store_create(&options, &rdzv->store);
}

static status meet(rendezvous *rdzv, int64_t start_ns)
{
    char key[KEY_BYTES];
    bool *joined = calloc((size_t)rdzv->place.world_size, sizeof *joined);
    if (joined == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d ranks", rdzv->place.world_size);
    status st = claim_rank(rdzv);
    if (st == STATUS_OK)
        st = agree_on_world(rdzv);
    if (st == STATUS_OK)
        st = set_text(rdzv, rank_key("join", rdzv->place.rank, key), rdzv->person);
    if (st == STATUS_OK)
        st = wait_for_all(rdzv, start_ns, joined);
    free(joined);
    return st == STATUS_INVALID || st == STATUS_TIMEOUT || rdzv->told ? spread(rdzv, st) : st;
}

status rendezvous_join(const rendezvous_place *place, int64_t timeout_ms, int64_t store_timeout_ms,
                       rendezvous **out)
{
    status st = STATUS_OK;
    int64_t start_ns = clock_now_ns();
    rendezvous *rdzv = calloc(1, sizeof *rdzv);
    if (rdzv == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    rdzv->place = *place;
    rdzv->timeout_ms = timeout_ms;
    if (place->world_size > 1) /* a connection to each of the others, and as rank 0 the store */
        (void)file_limit_raise();
    if (place->world_size > 1 || place->agent_store) {
        socket_address_name(place->master_addr, place->master_port, rdzv->where);
        introduce(rdzv);
        if (place->rank == 0 && !place->agent_store)
            st = serve(rdzv);
        if (st == STATUS_OK)
            st = connect_store(rdzv, store_timeout_ms);
        if (st == STATUS_OK)
            st = meet(rdzv, start_ns);
        if (st != STATUS_OK)
            goto out;
    }
    *out = rdzv;
    rdzv = NULL; /* handed over */

out:
    rendezvous_destroy(rdzv);
    return st;
}

store *rendezvous_store(rendezvous *rdzv)
{
    return rdzv->store;
}

/* The ranks that have not said goodbye, for the log. */
static void name_silent(rendezvous *rdzv)
{
    int world_size = rdzv->place.world_size;
    char key[KEY_BYTES], list[LIST_BYTES];
    bool *said = calloc((size_t)world_size, sizeof *said);
    if (said == NULL)
        return;
    status st = STATUS_OK;
    for (int r = 0; r < world_size && st == STATUS_OK; r++)
        st = store_check(rdzv->store, rank_key("bye", r, key), &said[r]);
    int missing = list_missing(&rdzv->place, said, list);
    if (st == STATUS_OK && missing > 0)
        LOG_W("%d of %d ranks (%s) did not say goodbye within %d s; closing the store", missing,
              world_size, list, GOODBYE_MS / 1000);
    free(said);
}

static status say_goodbye(rendezvous *rdzv)
{
    char key[KEY_BYTES];
    int64_t said = 0;
    TRY(set_text(rdzv, rank_key("bye", rdzv->place.rank, key), "1"));
    TRY(store_add(rdzv->store, "bye", 1, &said));
    if (said >= rdzv->place.world_size)
        return set_text(rdzv, "bye/all", "1");
    if (rdzv->server == NULL)
        return STATUS_OK;
    status st = store_wait(rdzv->store, "bye/all", GOODBYE_MS);
    if (st != STATUS_TIMEOUT)
        return st;
    name_silent(rdzv);
    return STATUS_OK;
}

void rendezvous_leave(rendezvous *rdzv)
{
    if (rdzv->store != NULL && say_goodbye(rdzv) != STATUS_OK)
        LOG_W("no goodbye to the other ranks: %s", status_text());
}

void rendezvous_destroy(rendezvous *rdzv)
{
    if (rdzv == NULL)
        return;
    store_destroy(rdzv->store);
    store_server_destroy(rdzv->server);
    free(rdzv);
}
