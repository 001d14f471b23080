#include "app/launch/launch_join.h"

#include "app/common/local_network.h"
#include "app/launch/launch_agreement.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/membership/keys.h"
#include "dist/membership/lease.h"
#include "dist/membership/membership.h"
#include "dist/net/socket.h"
#include "dist/net/socket_route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 1000, /* the first line about waiting, */
    NEXT_LINE_MS = 5000,  /* and those after it */
    SLICE_MS = 500,       /* one attempt to connect */
    JOB_MS = 5000,        /* what is not a launcher of ours after this is a stranger */
    LINGER_MS = 400,      /* a refusal stays readable for the others */
    LIST_BYTES = 400,
};

/* All nodes of the job; this one has no number yet. */
static membership nodes_of(const launch_joining *joining, store *client)
{
    return (membership){.store = client,
                        .prefix = joining->prefix,
                        .member = -1,
                        .n = joining->spec->nnodes,
                        .noun = "node"};
}

/* What a failed attempt to reach the store means, and what to look at. */
static void explain(const worker_spec *spec, status st, char *out, size_t size_bytes)
{
    bool refused = st == STATUS_REFUSED;
    const char *hint = "is that machine on, and does a firewall let the port through?";
    if (st == STATUS_IO)
        hint = "stop that program, or give all nodes another --master-port";
    else if (st == STATUS_UNKNOWN_HOST)
        hint = "the name must resolve here (/etc/hosts, DNS), or give the address itself";
    else if (refused && local_network_owns(spec->master_addr) && !spec->store_on_loopback)
        hint = "this is one of this machine's own addresses, but the store is on node 0: give all "
               "nodes node 0's address";
    else if (refused && spec->by_arrival)
        hint = "the launcher on that host serves the store: has it been started there? If this is "
               "that host, by another name: --rdzv-conf=is_host=1";
    else if (refused)
        hint = "that machine is there, but nobody listens: has node 0 been started, with this "
               "port?";
    snprintf(out, size_bytes, "%.255s; %s", status_text(), hint);
}

static void say_unreached(const worker_spec *spec, status st, int64_t waited_ns)
{
    char why[700], node[32], way[SOCKET_ROUTE_BYTES];
    explain(spec, st, why, sizeof why);
    snprintf(node, sizeof node, spec->node_rank < 0 ? "this node" : "node %d", spec->node_rank);
    socket_route_describe(spec->master_addr, way);
    LOG_I("%s%s%s%s waits for node 0, %.0f s of %.0f s: %s", node, way[0] != '\0' ? " (by " : "",
          way, way[0] != '\0' ? ")" : "", clock_seconds(waited_ns), (double)spec->join_ms * 1e-3,
          why);
}

static status not_ours(const launch_joining *joining)
{
    return FAIL(STATUS_IO,
                "something that is not mnist_ddp listens at %s:%d, or it is stuck, or short of "
                "descriptors as its own output says",
                joining->spec->master_addr, joining->port);
}

/* Reaching the port first tells refused, filtered (STATUS_TIMEOUT) and unknown hosts apart. */
status launch_join_reach(const launch_joining *joining, store **out)
{
    const worker_spec *spec = joining->spec;
    /* Who serves it reaches it here; the address that others use need not lead back. */
    const char *host = joining->host != NULL ? joining->host : spec->master_addr;
    int fd = -1;
    TRY(socket_connect(host, joining->port, clock_deadline_ns(SLICE_MS), &fd));
    close(fd);
    store_options how = {.host = host,
                         .port = joining->port,
                         .prefix = LAUNCH_KEYS,
                         .timeout_ms = spec->keep_alive_ms * spec->keep_alive_misses,
                         .connect_timeout_ms = SLICE_MS,
                         .describe = ""};
    status st = store_create(&how, out);
    if (st == STATUS_OK || st == STATUS_NO_MEMORY)
        return st;
    return not_ours(joining);
}

status launch_join_connect(const launch_joining *joining, store **out)
{
    const worker_spec *spec = joining->spec;
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(spec->join_ms);
    int64_t line_ns = start_ns + (int64_t)FIRST_LINE_MS * 1000000, stranger_ns = 0;
    for (int64_t pause_ms = 10;; pause_ms = pause_ms < SLICE_MS / 2 ? pause_ms * 2 : pause_ms) {
        status st = launch_join_reach(joining, out);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY)
            return st;
        int64_t now = clock_now_ns();
        if (atomic_load(joining->quit))
            return FAIL(STATUS_PEER, "told to stop");
        if (st == STATUS_IO && stranger_ns == 0)
            stranger_ns = now;
        if (st == STATUS_UNKNOWN_HOST || st == STATUS_REFUSED || st == STATUS_PEER)
            stranger_ns = 0;
        if (stranger_ns != 0) /* also if its queue is full meanwhile, and nobody answers */
            st = not_ours(joining);
        bool stranger = stranger_ns != 0 && now - stranger_ns > JOB_MS * 1000000ll;
        if (stranger || now >= deadline_ns) {
            char why[700];
            explain(spec, st, why, sizeof why);
            return FAIL(stranger ? STATUS_INVALID : STATUS_TIMEOUT,
                        "node 0 was not reached within %.3g s: %s", clock_seconds(now - start_ns),
                        why);
        }
        if (now >= line_ns) {
            say_unreached(spec, st, now - start_ns);
            line_ns = now + (int64_t)NEXT_LINE_MS * 1000000;
        }
        clock_sleep_ms(pause_ms);
    }
}

static status get_text(store *client, const char *key, char **out)
{
    void *value = NULL;
    size_t size_bytes;
    TRY(store_get(client, key, &value, &size_bytes));
    *out = value;
    return STATUS_OK;
}

/* Is this our job's store? Node 0 says which one it serves before anything else. */
static status check_job(const launch_joining *joining, store *client)
{
    const worker_spec *spec = joining->spec;
    char *job = NULL;
    if (joining->serves)
        return store_set(client, KEYS_JOB, spec->run_id, strlen(spec->run_id));
    status st = store_wait(client, KEYS_JOB, JOB_MS);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_INVALID,
                    "what serves %s:%d is not mnist_ddp's launcher (torchrun's, or a rank 0 "
                    "without one?): start all nodes with mnist_ddp, or take another --master-port",
                    spec->master_addr, joining->port);
    TRY(st);
    TRY(get_text(client, KEYS_JOB, &job));
    if (strcmp(job, spec->run_id) != 0)
        st = FAIL(STATUS_INVALID,
                  "%s:%d belongs to the job '%.100s', and this node to '%.100s': give all nodes "
                  "the same --rdzv-id, or every job a port of its own",
                  spec->master_addr, joining->port, job, spec->run_id);
    free(job);
    return st;
}

/* What is wrong with one node is wrong for all that still wait: they are told. */
static status agree(const launch_joining *joining, store *client)
{
    char why[AGREEMENT_TEXT_BYTES], *text = NULL;
    bool same = true;
    keys_text key = keys_make(joining->prefix, KEYS_SETTINGS, -1);
    membership nodes = nodes_of(joining, client);
    if (joining->serves) {
        TRY(launch_agreement_write(joining->spec, &text));
        status st = store_set(client, key.text, text, strlen(text));
        free(text);
        return st;
    }
    TRY(get_text(client, key.text, &text));
    status st = launch_agreement_compare(joining->spec, text, &same, why);
    free(text);
    TRY(st);
    return same ? STATUS_OK : membership_give_up(&nodes, FAIL(STATUS_INVALID, "%s", why));
}

/* One node's wait for all others. */
typedef struct waiting {
    lease own;            /* on its number */
    bool *there;          /* nnodes of them */
    last_heartbeat *seen; /* likewise */
    int64_t start_ns, line_ns, deadline_ns;
    int64_t complete_ns; /* since when all are there; 0: they are not */
} waiting;

/* "node 1 (ranks 8-15), node 3 (ranks 24-31)" of those that are not there; returns how many. */
static int list_missing(const worker_spec *spec, const bool *there, char *out)
{
    int missing = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int n = 0; n < spec->nnodes; n++) {
        if (there[n])
            continue;
        if (missing++ > 0 && used < LIST_BYTES - 80)
            used += (size_t)snprintf(out + used, LIST_BYTES - used, ", ");
        if (used < LIST_BYTES - 80)
            used +=
                (size_t)snprintf(out + used, LIST_BYTES - used,
                                 spec->nproc > 1 ? "node %d (ranks %d-%d)" : "node %d (rank %d)", n,
                                 n * spec->nproc, (n + 1) * spec->nproc - 1);
        else if (out[used - 1] != '.')
            used += (size_t)snprintf(out + used, LIST_BYTES - used, "...");
    }
    return missing;
}

/* What all look at while they wait: why the job cannot start, or whether it has. */
static status look_for_start(const launch_joining *joining, store *client, bool *started)
{
    membership nodes = nodes_of(joining, client);
    status st = membership_hear(&nodes, started);
    return st == STATUS_INVALID ? status_context(st, "the job cannot start") : st;
}

/* Who is there: holds its number, and beats. *all: everybody, and each has beaten since all were
 * there for the first time, so that nobody has gone who was there when the last one came. */
static status look_for_all(const launch_joining *joining, store *client, waiting *w, bool *all)
{
    const worker_spec *spec = joining->spec;
    char person[LEASE_WHO_BYTES];
    bool complete = true;
    int64_t oldest_ns = INT64_MAX;
    for (int n = 0; n < spec->nnodes; n++) {
        bool changed;
        TRY(lease_look(client, joining->prefix, n, &w->seen[n], &changed));
        TRY(lease_holder(client, joining->prefix, n, person));
        int64_t silent_ns = clock_now_ns() - w->seen[n].changed_ns;
        w->there[n] =
            person[0] != '\0' && (n == w->own.member || silent_ns < LEASE_SILENT_MS * 1000000ll);
        complete = complete && w->there[n];
        if (n != w->own.member && w->seen[n].changed_ns < oldest_ns)
            oldest_ns = w->seen[n].changed_ns;
    }
    if (!complete || w->complete_ns == 0)
        w->complete_ns = complete ? clock_now_ns() : 0;
    *all = complete && oldest_ns > w->complete_ns;
    return STATUS_OK;
}

static void say_missing(const launch_joining *joining, const bool *there, int64_t waited_ns)
{
    const worker_spec *spec = joining->spec;
    char list[LIST_BYTES], own[400] = "";
    int missing = list_missing(spec, there, list);
    if (missing == 0)
        return; /* just now */
    if (joining->serves && !spec->store_on_loopback)
        local_network_describe(own, sizeof own);
    LOG_I("%d of %d nodes have joined at %s:%d%s%s%s, %.0f s of %.0f s; missing: %s",
          spec->nnodes - missing, spec->nnodes, spec->master_addr, joining->port,
          own[0] != '\0' ? " (this machine: " : "", own, own[0] != '\0' ? ")" : "",
          clock_seconds(waited_ns), (double)spec->join_ms * 1e-3, list);
}

static status say_who_did_not_come(const launch_joining *joining, const bool *there)
{
    const worker_spec *spec = joining->spec;
    char list[LIST_BYTES];
    int missing = list_missing(spec, there, list);
    return FAIL(STATUS_TIMEOUT,
                "%d of %d nodes did not come to %s:%d within %.3g s: %s; see whether they were "
                "started and can reach that address (mnist_ddp doctor)",
                missing, spec->nnodes, spec->master_addr, joining->port,
                (double)spec->join_ms * 1e-3, list);
}

/* Node 0 looks who is there, and all go on at its word; the others look only if they have to
 * say who is missing. */
static status wait_for_all(const launch_joining *joining, store *client, waiting *w)
{
    membership nodes = nodes_of(joining, client);
    bool started = false;
    for (int64_t pause_ms = 1;;) {
        bool all = false;
        TRY(lease_renew(&w->own, client));
        TRY(look_for_start(joining, client, &started));
        if (started)
            return STATUS_OK;
        if (atomic_load(joining->quit))
            return FAIL(STATUS_PEER, "told to stop");
        int64_t now = clock_now_ns();
        if (joining->serves || now >= w->deadline_ns || now >= w->line_ns)
            TRY(look_for_all(joining, client, w, &all));
        if (joining->serves && all)
            return membership_settle(&nodes, "");
        if (now >= w->deadline_ns)
            return say_who_did_not_come(joining, w->there);
        if (now >= w->line_ns) {
            say_missing(joining, w->there, now - w->start_ns);
            w->line_ns = now + (int64_t)NEXT_LINE_MS * 1000000;
        }
        clock_sleep_ms(pause_ms);
        pause_ms = pause_ms < LEASE_RENEW_MS / 2 ? pause_ms * 2 : LEASE_RENEW_MS;
    }
}

/* A store and who wants a number from it. */
typedef struct wanting {
    const launch_joining *joining;
    store *client;
} wanting;

/* A lease_wish's over(): from the start on node 0 looks who lives. */
static status look_whether_over(void *ctx, bool *is_over)
{
    const wanting *w = ctx;
    if (atomic_load(w->joining->quit))
        return FAIL(STATUS_PEER, "told to stop");
    return look_for_start(w->joining, w->client, is_over);
}

/* The numbers that this node may have: its own, or any but node 0's if nodes are numbered as they
 * come. Then not all try the same one first. */
static status choose(const launch_joining *joining, store *client, lease_wish *wish)
{
    const worker_spec *spec = joining->spec;
    int64_t number = 0;
    wish->from = spec->by_arrival && joining->serves ? 0 : spec->node_rank;
    wish->n = 1;
    if (wish->from >= 0)
        return STATUS_OK;
    TRY(store_add(client, keys_make(joining->prefix, KEYS_ARRIVED, -1).text, 1, &number));
    wish->from = 1;
    wish->n = spec->nnodes - 1;
    wish->first = (int)((number > 0 ? number - 1 : 0) % wish->n);
    return STATUS_OK;
}

/* Takes a number; a node that cannot have its own is a mistake that all should hear of. */
static status take_number(const launch_joining *joining, store *client, lease *own)
{
    const worker_spec *spec = joining->spec;
    char person[AGREEMENT_PERSON_BYTES], other[LEASE_WHO_BYTES];
    bool taken = false;
    wanting w = {joining, client};
    lease_wish wish = {.over = look_whether_over, .ctx = &w};
    membership nodes = nodes_of(joining, client);
    launch_agreement_person(spec, person);
    lease_init(own, joining->prefix, "node", person);
    TRY(choose(joining, client, &wish));
    TRY(lease_take_any(own, client, &wish, &taken));
    if (taken)
        return STATUS_OK;
    if (spec->by_arrival)
        return FAIL(STATUS_INVALID,
                    "the job at %s:%d has its %d nodes already; to run another one give it an "
                    "--rdzv-endpoint of its own",
                    spec->master_addr, joining->port, spec->nnodes);
    TRY(lease_holder(client, joining->prefix, wish.from, other));
    return membership_give_up(&nodes, FAIL(STATUS_INVALID,
                                           "node %d is claimed twice, by one launcher (%s) and "
                                           "another (%s): give every node its own --node-rank",
                                           wish.from, other, person));
}

status launch_join_meet(const launch_joining *joining, store *client, int *node)
{
    const worker_spec *spec = joining->spec;
    waiting w = {.start_ns = clock_now_ns(), .deadline_ns = clock_deadline_ns(spec->join_ms)};
    w.line_ns = w.start_ns + (int64_t)FIRST_LINE_MS * 1000000;
    TRY(check_job(joining, client));
    TRY(agree(joining, client));
    TRY(take_number(joining, client, &w.own));
    w.there = calloc((size_t)spec->nnodes, sizeof *w.there);
    w.seen = calloc((size_t)spec->nnodes, sizeof *w.seen);
    status st = w.there != NULL && w.seen != NULL
                    ? wait_for_all(joining, client, &w)
                    : FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
    free(w.there);
    free(w.seen);
    if (st != STATUS_OK) {
        status_kept kept;
        status_keep(&kept);
        lease_release(&w.own, client);
        if (joining->serves && !atomic_load(joining->quit))
            clock_sleep_ms(LINGER_MS);
        status_restore(&kept);
        return st;
    }
    *node = w.own.member;
    return STATUS_OK;
}
