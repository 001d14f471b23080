#include "app/launch/launch_join.h"

#include "app/launch/launch_agreement.h"
#include "app/local_network.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/net/socket_route.h"
#include "dist/plain_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 1000, /* the first line about waiting, */
    NEXT_LINE_MS = 5000,  /* and those after it */
    SLICE_MS = 500,       /* one attempt to connect */
    LOOK_MS = 50,         /* between two looks at who has come */
    JOB_MS = 5000,        /* a store without a launcher of ours is a stranger's after this */
    LINGER_MS = 400,      /* a refusal stays readable for the others */
    LIST_BYTES = 400,
    PERSON_BYTES = AGREEMENT_PERSON_BYTES + 80,
};

void launch_join_key(const launch_joining *joining, const char *name, int number,
                     char out[LAUNCH_KEY_BYTES])
{
    const char *id = joining->settings->plan.run_id;
    if (number < 0)
        snprintf(out, LAUNCH_KEY_BYTES, "%s/%s", id, name);
    else
        snprintf(out, LAUNCH_KEY_BYTES, "%s/%s/%d", id, name, number);
}

/* What a failed attempt to reach the store means, and what to look at. */
static void explain(const launch_plan *plan, status st, char *out, size_t size_bytes)
{
    char message[256];
    plain_message(message, sizeof message);
    bool refused = st == STATUS_PEER && strstr(message, "refused") != NULL;
    const char *hint = "is that machine on, and does a firewall let the port through?";
    if (st == STATUS_INVALID)
        hint = "the name must resolve here (/etc/hosts, DNS), or give the address itself";
    else if (refused && local_network_owns(plan->master_addr) && !plan->store_on_loopback)
        hint = "this is one of this machine's own addresses, but the store is on node 0: give all "
               "nodes node 0's address";
    else if (refused && plan->by_arrival)
        hint = "the launcher on that host serves the store: has it been started there? If this is "
               "that host, by another name: --rdzv-conf=is_host=1";
    else if (refused)
        hint = "that machine is there, but nobody listens: has node 0 been started, with this "
               "port?";
    snprintf(out, size_bytes, "%s; %s", message, hint);
}

static void say_unreached(const launch_plan *plan, status st, int64_t waited_ns)
{
    char why[700], node[32], way[SOCKET_ROUTE_BYTES];
    explain(plan, st, why, sizeof why);
    snprintf(node, sizeof node, plan->node_rank < 0 ? "this node" : "node %d", plan->node_rank);
    socket_route_describe(plan->master_addr, way);
    LOG_I("%s%s%s%s waits for node 0, %.0f s of %.0f s: %s", node, way[0] != '\0' ? " (by " : "",
          way, way[0] != '\0' ? ")" : "", clock_seconds(waited_ns), (double)plan->join_ms * 1e-3,
          why);
}

/* Reaching the port first tells refused, filtered and unknown apart. */
status launch_join_reach(const launch_joining *joining, store **out)
{
    const launch_plan *plan = &joining->settings->plan;
    /* Who serves it reaches it here; the address that others use need not lead back. */
    bool own = joining->serves && !plan->store_on_loopback;
    const char *host = own ? "127.0.0.1" : plan->master_addr;
    int fd = -1;
    TRY(socket_connect(host, joining->port, clock_deadline_ns(SLICE_MS), &fd));
    close(fd);
    store_options how = {.host = host,
                         .port = joining->port,
                         .prefix = LAUNCH_KEYS,
                         .timeout_ms = plan->keep_alive_ms * plan->keep_alive_misses,
                         .connect_timeout_ms = SLICE_MS,
                         .describe = ""};
    return store_create(&how, out);
}

status launch_join_connect(const launch_joining *joining, store **out)
{
    const launch_plan *plan = &joining->settings->plan;
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(plan->join_ms);
    int64_t line_ns = start_ns + (int64_t)FIRST_LINE_MS * 1000000;
    for (int64_t pause_ms = 10;; pause_ms = pause_ms < SLICE_MS / 2 ? pause_ms * 2 : pause_ms) {
        status st = launch_join_reach(joining, out);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY)
            return st;
        int64_t now = clock_now_ns();
        if (atomic_load(joining->quit))
            return FAIL(STATUS_PEER, "told to stop");
        if (now >= deadline_ns) {
            char why[700];
            explain(plan, st, why, sizeof why);
            return FAIL(STATUS_TIMEOUT, "node 0 was not reached within %.3g s: %s",
                        (double)plan->join_ms * 1e-3, why);
        }
        if (now >= line_ns) {
            say_unreached(plan, st, now - start_ns);
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
    const launch_plan *plan = &joining->settings->plan;
    char *job = NULL;
    if (joining->serves)
        return store_set(client, "job", plan->run_id, strlen(plan->run_id));
    status st = store_wait(client, "job", JOB_MS);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_INVALID,
                    "what serves %s:%d is not mnist_ddp's launcher (torchrun's, or a rank 0 "
                    "without one?): start all nodes with mnist_ddp, or take another --master-port",
                    plan->master_addr, joining->port);
    TRY(st);
    TRY(get_text(client, "job", &job));
    if (strcmp(job, plan->run_id) != 0)
        st = FAIL(STATUS_INVALID,
                  "%s:%d belongs to the job '%.100s', and this node to '%.100s': give all nodes "
                  "the same --rdzv-id, or every job a port of its own",
                  plan->master_addr, joining->port, job, plan->run_id);
    free(job);
    return st;
}

/* Before the job has started, what is wrong with one node is wrong for all: they are told. */
static status refuse(const launch_joining *joining, store *client, const char *why)
{
    char key[LAUNCH_KEY_BYTES];
    bool started = false;
    launch_join_key(joining, "started", -1, key);
    TRY(store_check(client, key, &started));
    if (!started) {
        launch_join_key(joining, "refused", -1, key);
        TRY(store_set(client, key, why, strlen(why)));
        TRY(store_check(client, key, &started)); /* it has come there */
    }
    return FAIL(STATUS_INVALID, "%s", why);
}

static status agree(const launch_joining *joining, store *client)
{
    char key[LAUNCH_KEY_BYTES], why[AGREEMENT_TEXT_BYTES], *text = NULL;
    bool same = true;
    launch_join_key(joining, "settings", -1, key);
    if (joining->serves) {
        TRY(launch_agreement_write(joining->settings, &text));
        status st = store_set(client, key, text, strlen(text));
        free(text);
        return st;
    }
    TRY(get_text(client, key, &text));
    status st = launch_agreement_compare(joining->settings, text, &same, why);
    free(text);
    TRY(st);
    return same ? STATUS_OK : refuse(joining, client, why);
}

/* This node's number: its own, or the next one. */
static status take_number(const launch_joining *joining, store *client, int *node)
{
    const launch_plan *plan = &joining->settings->plan;
    char key[LAUNCH_KEY_BYTES];
    int64_t number = 0;
    *node = plan->by_arrival && joining->serves ? 0 : plan->node_rank;
    if (*node >= 0)
        return STATUS_OK;
    launch_join_key(joining, "arrived", -1, key);
    TRY(store_add(client, key, 1, &number));
    if (number >= plan->nnodes)
        return FAIL(STATUS_INVALID,
                    "the job at %s:%d has its %d nodes already; to run another one give it an "
                    "--rdzv-endpoint of its own",
                    plan->master_addr, joining->port, plan->nnodes);
    *node = (int)number;
    return STATUS_OK;
}

static status claim(const launch_joining *joining, store *client, int node)
{
    char key[LAUNCH_KEY_BYTES], person[PERSON_BYTES], why[AGREEMENT_TEXT_BYTES + PERSON_BYTES * 2];
    char *other = NULL;
    int64_t claims = 0;
    launch_agreement_person(&joining->settings->plan, person);
    launch_join_key(joining, "claim", node, key);
    TRY(store_add(client, key, 1, &claims));
    launch_join_key(joining, "node", node, key);
    if (claims == 1)
        return store_set(client, key, person, strlen(person));
    status st = store_wait(client, key, SLICE_MS);
    if (st == STATUS_OK)
        st = get_text(client, key, &other);
    snprintf(why, sizeof why,
             "node %d is claimed twice, by one launcher (%s) and another (%s): give every node its "
             "own --node-rank",
             node, other != NULL ? other : "?", person);
    free(other);
    return refuse(joining, client, why);
}

/* "node 1 (ranks 8-15), node 3 (ranks 24-31)" of those that are not there; returns how many. */
static int list_missing(const launch_plan *plan, const bool *there, char *out)
{
    int missing = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int n = 0; n < plan->nnodes; n++) {
        if (there[n])
            continue;
        if (missing++ > 0 && used < LIST_BYTES - 80)
            used += (size_t)snprintf(out + used, LIST_BYTES - used, ", ");
        if (used < LIST_BYTES - 80)
            used +=
                (size_t)snprintf(out + used, LIST_BYTES - used,
                                 plan->nproc > 1 ? "node %d (ranks %d-%d)" : "node %d (rank %d)", n,
                                 n * plan->nproc, (n + 1) * plan->nproc - 1);
        else if (out[used - 1] != '.')
            used += (size_t)snprintf(out + used, LIST_BYTES - used, "...");
    }
    return missing;
}

static status look_for_all(const launch_joining *joining, store *client, bool *there, int *missing)
{
    const launch_plan *plan = &joining->settings->plan;
    char key[LAUNCH_KEY_BYTES], *why = NULL;
    bool refused = false;
    launch_join_key(joining, "refused", -1, key);
    TRY(store_check(client, key, &refused));
    if (refused) {
        TRY(get_text(client, key, &why));
        status st = FAIL(STATUS_INVALID, "the job cannot start: %s", why);
        free(why);
        return st;
    }
    *missing = 0;
    for (int n = 0; n < plan->nnodes; n++) {
        launch_join_key(joining, "node", n, key);
        if (!there[n])
            TRY(store_check(client, key, &there[n]));
        *missing += !there[n];
    }
    return STATUS_OK;
}

static void say_missing(const launch_joining *joining, const bool *there, int64_t waited_ns)
{
    const launch_plan *plan = &joining->settings->plan;
    char list[LIST_BYTES], own[400] = "";
    int missing = list_missing(plan, there, list);
    if (joining->serves && !plan->store_on_loopback)
        local_network_describe(own, sizeof own);
    LOG_I("%d of %d nodes have joined at %s:%d%s%s%s, %.0f s of %.0f s; missing: %s",
          plan->nnodes - missing, plan->nnodes, plan->master_addr, joining->port,
          own[0] != '\0' ? " (this machine: " : "", own, own[0] != '\0' ? ")" : "",
          clock_seconds(waited_ns), (double)plan->join_ms * 1e-3, list);
}

static status wait_for_all(const launch_joining *joining, store *client, bool *there)
{
    const launch_plan *plan = &joining->settings->plan;
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(plan->join_ms);
    int64_t line_ns = start_ns + (int64_t)FIRST_LINE_MS * 1000000;
    char list[LIST_BYTES];
    for (int64_t pause_ms = 1;; pause_ms = pause_ms < LOOK_MS ? pause_ms * 2 : LOOK_MS) {
        int missing = 0;
        TRY(look_for_all(joining, client, there, &missing));
        int64_t now = clock_now_ns();
        if (missing == 0)
            return STATUS_OK;
        if (atomic_load(joining->quit))
            return FAIL(STATUS_PEER, "told to stop");
        if (now >= deadline_ns) {
            list_missing(plan, there, list);
            return FAIL(STATUS_TIMEOUT,
                        "%d of %d nodes did not come to %s:%d within %.3g s: %s; see whether they "
                        "were started and can reach that address (mnist_ddp doctor)",
                        missing, plan->nnodes, plan->master_addr, joining->port,
                        (double)plan->join_ms * 1e-3, list);
        }
        if (now >= line_ns) {
            say_missing(joining, there, now - start_ns);
            line_ns = now + (int64_t)NEXT_LINE_MS * 1000000;
        }
        clock_sleep_ms(pause_ms);
    }
}

status launch_join_meet(const launch_joining *joining, store *client, int *node)
{
    char key[LAUNCH_KEY_BYTES];
    TRY(check_job(joining, client));
    TRY(agree(joining, client));
    TRY(take_number(joining, client, node));
    TRY(claim(joining, client, *node));
    bool *there = calloc((size_t)joining->settings->plan.nnodes, sizeof *there);
    if (there == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", joining->settings->plan.nnodes);
    status st = wait_for_all(joining, client, there);
    free(there);
    if (st != STATUS_OK && joining->serves && !atomic_load(joining->quit))
        clock_sleep_ms(LINGER_MS);
    TRY(st);
    launch_join_key(joining, "started", -1, key);
    return joining->serves ? store_set(client, key, "1", 1) : STATUS_OK;
}
