#include "app/launch/agent_rendezvous.h"

#include "app/common/local_network.h"
#include "app/launch/node_count.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "dist/net/socket.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 1000, /* the first line about waiting, */
    NEXT_LINE_MS = 5000,  /* and those after it */
    CONNECT_MS = 500,     /* one attempt to connect */
    GONE_MS = 500,        /* elastic: nobody listens where node 0 has listened */
    STRANGER_MS = 5000,   /* what does not speak as our agent after this is something else */
    LINGER_MS = 400,      /* a failure stays readable for the others */
    LIST_BYTES = 400,
    WHY_BYTES = 700,
    SETTINGS_BYTES = 256 + AGREEMENT_BYTES,
};

void agent_rendezvous_who(const worker_spec *spec, char out[LEASE_WHO_BYTES])
{
    char host[128] = "?", way[SOCKET_ROUTE_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    if (spec->local_addr[0] == '\0')
        socket_route_describe(spec->master_addr, way);
    const char *address = spec->local_addr[0] != '\0' ? spec->local_addr : way;
    snprintf(out, LEASE_WHO_BYTES, "%.60s%s%.90s, pid %d", host, address[0] != '\0' ? " at " : "",
             address, (int)getpid());
}

static status check_quit(const agent_rendezvous *rdzv)
{
    return atomic_load(rdzv->quit) ? FAIL(STATUS_PEER, "told to stop") : STATUS_OK;
}

static status not_ours(const agent_rendezvous *rdzv)
{
    return FAIL(STATUS_IO,
                "something that is not mnist_ddp listens at %s:%d, or it is stuck, or short of "
                "descriptors as its own output says",
                rdzv->spec->master_addr, rdzv->spec->master_port);
}

/* Reaching the port first tells refused, filtered (STATUS_TIMEOUT) and unknown hosts apart. */
status agent_rendezvous_reach(const agent_rendezvous *rdzv, store **out)
{
    const worker_spec *spec = rdzv->spec;
    /* Node 0 reaches its own store here; the address that others use need not lead back. */
    const char *host = rdzv->server != NULL ? store_server_host(rdzv->server) : spec->master_addr;
    int fd = -1;
    TRY(socket_connect(host, rdzv->spec->master_port, clock_deadline_ns(CONNECT_MS), &fd));
    close(fd);
    store_options how = {.host = host,
                         .port = rdzv->spec->master_port,
                         .prefix = AGENT_KEYS,
                         .timeout_ms = spec->keep_alive_ms * spec->keep_alive_misses,
                         .connect_timeout_ms = CONNECT_MS,
                         .describe = ""};
    status st = store_create(&how, out);
    return st == STATUS_OK || st == STATUS_NO_MEMORY ? st : not_ours(rdzv);
}

/* What a failed attempt to reach the store means, and what to look at. */
static void explain(const worker_spec *spec, status st, char out[WHY_BYTES])
{
    bool refused = st == STATUS_REFUSED;
    const char *hint = "is that machine on, and does a firewall let the port through?";
    if (st == STATUS_IO && worker_spec_is_elastic(spec))
        hint = "node 0 may be stopped, or cut off";
    else if (st == STATUS_IO)
        hint = "stop that program, or give all nodes another --master-port";
    else if (st == STATUS_UNKNOWN_HOST)
        hint = "the name must resolve here (/etc/hosts, DNS), or give the address itself";
    else if (refused && worker_spec_is_elastic(spec))
        hint = socket_address_says_loopback(spec->master_addr)
                   ? "if node 0 is on another machine give each node its --local-addr"
                   : "node 0's launcher has ended, or a firewall refuses that port";
    else if (refused && local_network_owns(spec->master_addr) && !spec->store_on_loopback)
        hint = "this is one of this machine's own addresses, but the store is on node 0: give all "
               "nodes node 0's address";
    else if (refused)
        hint = "that machine is there, but nobody listens: has node 0 been started, with this "
               "port?";
    snprintf(out, WHY_BYTES, "%.255s; %s", status_text(), hint);
}

static void say_unreached(const worker_spec *spec, status st, int64_t waited_ns)
{
    char why[WHY_BYTES], node[32], way[SOCKET_ROUTE_BYTES];
    explain(spec, st, why);
    snprintf(node, sizeof node, spec->node_rank < 0 ? "this node" : "node %d", spec->node_rank);
    socket_route_describe(spec->master_addr, way);
    LOG_I("%s%s%s%s waits for node 0, %.0f s of %.0f s: %s", node, way[0] != '\0' ? " (by " : "",
          way, way[0] != '\0' ? ")" : "", clock_seconds(waited_ns), (double)spec->join_ms * 1e-3,
          why);
}

/* Tries until it is connected. */
static status connect_to_store(const agent_rendezvous *rdzv, store **out)
{
    const worker_spec *spec = rdzv->spec;
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(spec->join_ms);
    int64_t line_ns = start_ns + FIRST_LINE_MS * 1000000ll, stranger_ns = 0;
    for (int64_t pause_ms = 10;; pause_ms = pause_ms < CONNECT_MS / 2 ? pause_ms * 2 : pause_ms) {
        status st = agent_rendezvous_reach(rdzv, out);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY)
            return st;
        int64_t now = clock_now_ns();
        TRY(check_quit(rdzv));
        if (st == STATUS_IO && stranger_ns == 0)
            stranger_ns = now;
        if (st == STATUS_UNKNOWN_HOST || st == STATUS_REFUSED || st == STATUS_PEER)
            stranger_ns = 0;
        if (stranger_ns != 0) /* also if its queue is full meanwhile, and nobody answers */
            st = not_ours(rdzv);
        bool stranger = stranger_ns != 0 && now - stranger_ns > STRANGER_MS * 1000000ll &&
                        !worker_spec_is_elastic(spec);
        bool gone = worker_spec_is_elastic(spec) && st == STATUS_REFUSED &&
                    now - start_ns > GONE_MS * 1000000ll;
        if (stranger || gone || now >= deadline_ns) {
            char why[WHY_BYTES];
            explain(spec, st, why);
            return FAIL(stranger ? STATUS_INVALID
                        : gone   ? STATUS_REFUSED
                                 : STATUS_TIMEOUT,
                        "node 0 was not reached within %.3g s: %s", clock_seconds(now - start_ns),
                        why);
        }
        if (now >= line_ns) {
            say_unreached(spec, st, now - start_ns);
            line_ns = now + NEXT_LINE_MS * 1000000ll;
        }
        clock_sleep_ms(pause_ms);
    }
}

/* A node that joins: from its connection to the start of all. */
typedef struct joiner {
    const agent_rendezvous *rdzv;
    const worker_spec *spec;
    store *client;
    membership nodes;     /* all of the job; this one has no number yet */
    lease own;            /* on its number */
    bool *there;          /* spec->nnodes of them */
    last_heartbeat *seen; /* likewise */
    int64_t start_ns, line_ns, deadline_ns;
    node_count count;
    int64_t complete_ns; /* since when all are there; 0: they are not */
} joiner;

/* Is this our job's store? Node 0 says which one it serves before anything else. */
static status check_job(const joiner *j)
{
    const worker_spec *spec = j->spec;
    char job[SPEC_RUN_ID_BYTES];
    if (j->rdzv->server != NULL)
        return store_set(j->client, KEYS_JOB, spec->run_id, strlen(spec->run_id));
    int64_t wait_ms = STRANGER_MS,
            half_lease_ms = spec->keep_alive_ms * spec->keep_alive_misses / 2;
    if (worker_spec_is_elastic(spec) && half_lease_ms > wait_ms)
        wait_ms = half_lease_ms; /* so long may it take until node 0, too, knows of the round */
    status st = store_get_text(j->client, KEYS_JOB, clock_deadline_ns(wait_ms), job, sizeof job);
    if (st == STATUS_TIMEOUT && worker_spec_is_elastic(spec)) /* the rendezvous has named it */
        return FAIL(STATUS_PEER,
                    "node 0's launcher at %s:%d has not said its job's id within %.3g s: it is "
                    "slow, or stopped",
                    spec->master_addr, spec->master_port, (double)wait_ms * 1e-3);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_INVALID,
                    "what serves %s:%d is not mnist_ddp's launcher (torchrun's, or a rank 0 "
                    "without one?): start all nodes with mnist_ddp, or take another --master-port",
                    spec->master_addr, j->spec->master_port);
    TRY(st);
    if (strcmp(job, spec->run_id) != 0)
        return FAIL(STATUS_INVALID,
                    "%s:%d belongs to the job '%.100s', and this node to '%.100s': give all nodes "
                    "the same --rdzv-id, or every job a port of its own",
                    spec->master_addr, j->spec->master_port, job, spec->run_id);
    return STATUS_OK;
}

/* What all nodes must have alike, as the user gives it: a line each. */
static void describe_settings(const worker_spec *spec, char out[SETTINGS_BYTES])
{
    static const char *const backends[] = {
        [RDZV_STATIC] = "static", [RDZV_C10D] = "c10d", [RDZV_ETCD] = "etcd"};
    char nodes[64];
    if (worker_spec_is_elastic(spec))
        snprintf(nodes, sizeof nodes, "--nnodes=%d:%d", spec->min_nodes, spec->max_nodes);
    else if (spec->counts_nodes)
        snprintf(nodes, sizeof nodes, "--world-size=%d", spec->world_size);
    else
        snprintf(nodes, sizeof nodes, "--nnodes=%d\n--nproc-per-node=%d", spec->nnodes,
                 spec->nproc);
    snprintf(out, SETTINGS_BYTES,
             "--rdzv-backend=%s\n%s\n--max-restarts=%d\n%sthe command train\n%s",
             backends[spec->rdzv], nodes, spec->max_restarts, spec->policy.own ? "" : "not ",
             spec->alike);
}

/* `theirs` is node 0's: who it is, and its settings. STATUS_INVALID if this node's are others. */
static status compare_settings(const worker_spec *spec, const char *theirs)
{
    char settings[SETTINGS_BYTES], who[LEASE_WHO_BYTES];
    agreement_difference found;
    const char *its = strchr(theirs, '\n');
    if (its == NULL)
        return FAIL(STATUS_PEER, "node 0's settings are nonsense: '%.100s'", theirs);
    describe_settings(spec, settings);
    agent_rendezvous_who(spec, who);
    if (!agreement_differ(settings, its + 1, &found))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "the nodes disagree: %s on one (%s), %s on node 0 (%.*s); give all nodes the same",
                found.of_a, who, found.of_b, (int)(its - theirs), theirs);
}

/* What is wrong with one node is wrong for all that still wait: they are told. A newcomer to an
 * elastic job ends alone. */
static status agree_on_settings(joiner *j)
{
    char settings[SETTINGS_BYTES], who[LEASE_WHO_BYTES], text[SETTINGS_BYTES + LEASE_WHO_BYTES];
    keys_text key = keys_make(j->rdzv->prefix, KEYS_SETTINGS, -1);
    if (j->rdzv->server != NULL) {
        describe_settings(j->spec, settings);
        agent_rendezvous_who(j->spec, who);
        int length = snprintf(text, sizeof text, "%s\n%s", who, settings);
        return store_set(j->client, key.text, text, (size_t)length);
    }
    TRY(store_get_text(j->client, key.text, clock_deadline_ns(STRANGER_MS), text, sizeof text));
    status st = compare_settings(j->spec, text);
    bool ends_all = st == STATUS_INVALID && !worker_spec_is_elastic(j->spec);
    return ends_all ? membership_give_up(&j->nodes, st) : st;
}

/* What all look at while they wait: why the job cannot start, or whether it has. */
static status look_for_start(const joiner *j, bool *started)
{
    status st = membership_hear(&j->nodes, started);
    return st == STATUS_INVALID ? status_context(st, "the job cannot start") : st;
}

/* A lease_wish's over(): from the start on node 0 looks who lives. */
static status look_whether_over(void *ctx, bool *is_over)
{
    const joiner *j = ctx;
    TRY(check_quit(j->rdzv));
    return look_for_start(j, is_over);
}

status agent_rendezvous_show(const agent_rendezvous *rdzv, store *client, int node)
{
    const store_put_options how = {.value = "", .expected = -1, .goes_with_connection = true};
    int64_t revision;
    return store_put(client, keys_make(rdzv->prefix, KEYS_ALIVE, node).text, &how, &revision);
}

/* Takes a number; all hear of a node that cannot have its own. */
static status take_number(joiner *j)
{
    char who[LEASE_WHO_BYTES], other[LEASE_WHO_BYTES];
    bool taken = false;
    lease_wish wish = {.member = j->spec->node_rank, .over = look_whether_over, .ctx = j};
    agent_rendezvous_who(j->spec, who);
    lease_init(&j->own, j->rdzv->prefix, "node", who);
    TRY(lease_take_over(&j->own, j->client, &wish, &taken));
    if (taken)
        return agent_rendezvous_show(j->rdzv, j->client, j->own.member);
    TRY(lease_holder(j->client, j->rdzv->prefix, wish.member, other));
    return membership_give_up(&j->nodes, FAIL(STATUS_INVALID,
                                              "node %d is claimed twice, by one launcher (%s) and "
                                              "another (%s): give every node its own --node-rank",
                                              wish.member, other, who));
}

/* Who is there: holds its number, and is heard. *all: everybody, and each was heard since all were
 * there for the first time, so that nobody has gone who was there when the last one came. */
static status look_for_all(joiner *j, bool *all)
{
    char who[LEASE_WHO_BYTES];
    bool complete = true;
    int64_t oldest_ns = INT64_MAX;
    for (int n = 0; n < j->spec->nnodes; n++) {
        bool changed, own = n == j->own.member;
        TRY(lease_look(j->client, j->rdzv->prefix, n, &j->seen[n], &changed));
        TRY(lease_holder(j->client, j->rdzv->prefix, n, who));
        int64_t changed_ns = j->seen[n].changed_ns;
        bool heard = own || clock_now_ns() - changed_ns < LEASE_SILENT_MS * 1000000ll;
        j->there[n] = who[0] != '\0' && heard;
        complete = complete && j->there[n];
        if (!own && changed_ns < oldest_ns)
            oldest_ns = changed_ns;
    }
    if (!complete || j->complete_ns == 0)
        j->complete_ns = complete ? clock_now_ns() : 0;
    *all = complete && oldest_ns > j->complete_ns;
    return STATUS_OK;
}

/* "node 1 (ranks 8-15), node 3 (ranks 24-31)" of those that are not there; returns how many. */
static int list_missing(const joiner *j, char out[LIST_BYTES])
{
    int missing = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int n = 0; n < j->count.expected; n++) {
        if (j->there[n])
            continue;
        const char *before = missing++ > 0 ? ", " : "";
        int first = worker_spec_first_rank(j->spec, n), nproc = worker_spec_ranks_of(j->spec, n);
        if (used < LIST_BYTES - 80 && j->spec->counts_nodes)
            used += (size_t)snprintf(out + used, LIST_BYTES - used, "%snode %d", before, n);
        else if (used < LIST_BYTES - 80)
            used += (size_t)snprintf(out + used, LIST_BYTES - used,
                                     nproc > 1 ? "%snode %d (ranks %d-%d)" : "%snode %d (rank %d)",
                                     before, n, first, first + nproc - 1);
        else
            strcpy(out + used, ", ..."); /* once: `used` stays */
    }
    return missing;
}

static void say_missing(const joiner *j)
{
    const worker_spec *spec = j->spec;
    char list[LIST_BYTES], own[400] = "";
    int missing = list_missing(j, list);
    if (missing == 0)
        return; /* just now */
    if (j->rdzv->server != NULL && !spec->store_on_loopback)
        local_network_describe(own, sizeof own);
    LOG_I("%d of %d nodes have joined at %s:%d%s%s%s, %.0f s of %.0f s; missing: %s",
          j->count.expected - missing, j->count.expected, spec->master_addr, spec->master_port,
          own[0] != '\0' ? " (this machine: " : "", own, own[0] != '\0' ? ")" : "",
          clock_seconds(clock_now_ns() - j->start_ns), (double)spec->join_ms * 1e-3, list);
}

static status say_who_did_not_come(const joiner *j)
{
    const worker_spec *spec = j->spec;
    char list[LIST_BYTES];
    int missing = list_missing(j, list);
    for (int n = 0; n < spec->nnodes && j->rdzv->server != NULL && j->rdzv->lost != NULL; n++)
        j->rdzv->lost[n] = !j->there[n];
    return FAIL(STATUS_TIMEOUT,
                "%d of %d nodes did not come to %s:%d within %.3g s: %s; see whether they were "
                "started and can reach that address (mnist_ddp doctor)",
                missing, j->count.expected, spec->master_addr, spec->master_port,
                (double)spec->join_ms * 1e-3, list);
}

/* Nodes count themselves, and node 0 decides. */
static status count_nodes(joiner *j, bool is_late, bool *all)
{
    *all = node_count_look(&j->count, j->spec, j->there, is_late);
    status st = STATUS_OK;
    if (j->rdzv->server == NULL)
        return st;
    node_count_say(&j->count, j->spec);
    if (*all)
        st = node_count_publish(&j->count, j->spec, j->client, j->rdzv->prefix);
    return st == STATUS_INVALID ? membership_give_up(&j->nodes, st) : st;
}

/* Node 0 looks who is there, and all go on at its word; the others look to say who is missing. */
static status wait_for_all(joiner *j)
{
    bool serves = j->rdzv->server != NULL, started = false;
    for (int64_t pause_ms = 1;;) {
        bool all = false;
        TRY(lease_renew(&j->own, j->client));
        TRY(look_for_start(j, &started));
        if (started)
            return STATUS_OK;
        TRY(check_quit(j->rdzv));
        int64_t now = clock_now_ns();
        if (serves || now >= j->deadline_ns || now >= j->line_ns)
            TRY(look_for_all(j, &all));
        if (j->spec->counts_nodes && (serves || now >= j->line_ns))
            TRY(count_nodes(j, now >= j->deadline_ns, &all));
        if (serves && all)
            return membership_settle(&j->nodes, "");
        if (now >= j->deadline_ns)
            return say_who_did_not_come(j);
        if (now >= j->line_ns) {
            say_missing(j);
            j->line_ns = now + NEXT_LINE_MS * 1000000ll;
        }
        clock_sleep_ms(pause_ms);
        pause_ms = pause_ms < LEASE_RENEW_MS / 2 ? pause_ms * 2 : LEASE_RENEW_MS;
    }
}

/* The number is free again. Node 0 takes the store with it, after all have heard why. */
static void leave(const joiner *j)
{
    char who[LEASE_WHO_BYTES];
    status_kept kept;
    status_keep(&kept);
    lease_release(&j->own, j->client);
    if (j->rdzv->server != NULL && atomic_load(j->rdzv->quit)) {
        agent_rendezvous_who(j->spec, who);
        status st = worker_spec_is_elastic(j->spec) ? STATUS_PEER : STATUS_INVALID;
        membership_give_up(&j->nodes, FAIL(st,
                                           "node 0's launcher (%s) was told to stop before all "
                                           "nodes had come; start all nodes again",
                                           who));
    }
    if (j->rdzv->server != NULL)
        clock_sleep_ms(LINGER_MS);
    status_restore(&kept);
}

/* A failure, `st`, of a node that has lost the store: a key says nothing to whoever reads that. */
static status explain_loss(const joiner *j, status st)
{
    bool there, asks = j->rdzv->server == NULL && st != STATUS_INVALID;
    store *again = NULL;
    status_kept kept;
    status_keep(&kept);
    if (asks && store_check(j->client, KEYS_JOB, &there) != STATUS_OK) {
        bool gone = agent_rendezvous_reach(j->rdzv, &again) == STATUS_REFUSED;
        store_destroy(again);
        return FAIL(gone ? STATUS_REFUSED : STATUS_PEER,
                    "node 0's launcher at %s:%d %s before all nodes had come: its own output says "
                    "why, if anything does; start all nodes again",
                    j->spec->master_addr, j->spec->master_port,
                    st == STATUS_TIMEOUT ? "answers no more," : "went away");
    }
    status_restore(&kept);
    return st;
}

/* From the connection to the start of all. */
static status meet(joiner *j)
{
    size_t n = (size_t)j->spec->nnodes;
    TRY(check_job(j));
    TRY(agree_on_settings(j));
    TRY(take_number(j));
    j->there = calloc(n, sizeof *j->there);
    j->seen = calloc(n, sizeof *j->seen);
    if (j->there == NULL || j->seen == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu nodes", n);
    TRY(wait_for_all(j));
    return node_count_take(j->rdzv->spec, j->client, j->rdzv->prefix, j->own.member);
}

status agent_rendezvous_join(const agent_rendezvous *rdzv, store **client, lease *own)
{
    const worker_spec *spec = rdzv->spec;
    *client = NULL;
    status reached = connect_to_store(rdzv, client);
    if (reached != STATUS_OK && rdzv->lost != NULL && !atomic_load(rdzv->quit))
        rdzv->lost[0] = true;
    TRY(reached);
    joiner j = {.rdzv = rdzv,
                .spec = spec,
                .client = *client,
                .nodes = {.store = *client,
                          .prefix = rdzv->prefix,
                          .member = -1,
                          .n = spec->nnodes,
                          .noun = "node"},
                .own = {.member = -1},
                .start_ns = clock_now_ns(),
                .line_ns = clock_deadline_ns(FIRST_LINE_MS),
                .count = {.expected = spec->counts_nodes ? 2 : spec->nnodes},
                .deadline_ns = clock_deadline_ns(spec->join_ms)};
    if (spec->counts_nodes && rdzv->server == NULL) /* node 0 decides, and may begin later */
        j.deadline_ns += NODE_COUNT_QUIET_MS * 1000000ll;
    status st = meet(&j);
    if (st == STATUS_OK) {
        *own = j.own;
    } else {
        leave(&j);
        st = explain_loss(&j, st);
    }
    free(j.there);
    free(j.seen);
    return st;
}
