#include "app/launch/agent_store.h"

#include "app/common/machine.h"
#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_LINE_MS = 1000, /* until the first line about waiting */
    NEXT_LINE_MS = 5000,  /* until each line after it */
    CONNECT_MS = 500,     /* one attempt to connect */
    GONE_MS = 500,        /* elastic: nobody listens where node 0 has listened */
    WHY_BYTES = 700,
};

/* What to type on the other nodes. */

enum { ADDED = 5, ADDED_BYTES = SPEC_ADDRESS_BYTES + 32 };

/* Node 0's address as it was given, else one of this machine's. */
static const char *address_of(const worker_spec *spec, local_address list[LOCAL_NETWORK_MAX])
{
    int n = local_network_list(list), i = 0;
    while (i < n && (list[i].loopback || list[i].link_local))
        i++;
    bool replaced =
        !spec->store_on_loopback && socket_address_says_loopback(spec->master_addr) && i < n;
    return replaced ? list[i].number : spec->master_addr;
}

static bool was_typed(const worker_spec *spec, const char *name)
{
    return options_value_source(spec->opts, name) == SOURCE_COMMAND_LINE;
}

/* The flags that end the line's own. The last one of a name counts. Returns how many. */
static int list_added(const worker_spec *spec, int node, char out[ADDED][ADDED_BYTES])
{
    local_address list[LOCAL_NETWORK_MAX];
    const char *address = address_of(spec, list);
    bool typed = was_typed(spec, "rdzv-endpoint") ||
                 (was_typed(spec, "master-addr") && strcmp(address, spec->opts->master_addr) == 0);
    int n = 0;
    if (node >= 0)
        snprintf(out[n++], ADDED_BYTES, "--node-rank=%d", node);
    else
        snprintf(out[n++], ADDED_BYTES, "--node-rank=N");
    if (!typed)
        snprintf(out[n++], ADDED_BYTES, "--master-addr=%s", address);
    if (!was_typed(spec, "master-port") && !was_typed(spec, "rdzv-endpoint"))
        snprintf(out[n++], ADDED_BYTES, "--master-port=%d", spec->master_port);
    if (!was_typed(spec, "nnodes") && !spec->counts_nodes)
        snprintf(out[n++], ADDED_BYTES, "--nnodes=%d", spec->nnodes);
    if (options_given(spec->opts, "nproc-per-node") && !was_typed(spec, "nproc-per-node"))
        snprintf(out[n++], ADDED_BYTES, "--nproc-per-node=%d", spec->nproc);
    return n;
}

char *agent_store_join_command(const worker_spec *spec, int node)
{
    char added[ADDED][ADDED_BYTES];
    int argc = 0, n = 0;
    char **argv = spec->opts != NULL ? spec->opts->command_line : NULL;
    while (argv != NULL && argv[argc] != NULL)
        argc++;
    char **words = argc > 0 ? calloc((size_t)argc + ADDED + 1, sizeof *words) : NULL;
    if (words == NULL)
        return NULL;
    int n_added = list_added(spec, node, added), end = 0;
    while (end < argc && argv + end != spec->opts->program &&
           (strcmp(argv[end], "--") != 0 || argv + end + 1 != spec->opts->program))
        end++;
    for (int i = 0; i < end; i++) {
        int skipped = options_words_of(spec->opts, i, "node-rank");
        if (skipped == 0)
            words[n++] = argv[i];
        else
            i += skipped - 1;
    }
    for (int i = 0; i < n_added; i++)
        words[n++] = added[i];
    for (int i = end; i < argc; i++)
        words[n++] = argv[i];
    char *line = shell_words_line(words);
    free(words);
    return line;
}

/* The other nodes look for node 0 at master_addr: it should be an address of this machine. */
static void check_address(const worker_spec *spec)
{
    char own[400];
    if (spec->nnodes == 1 || spec->store_on_loopback || local_network_owns(spec->master_addr))
        return;
    local_network_describe(own, sizeof own);
    LOG_W("%s is none of this machine's addresses (%s), but the other nodes look for node 0 there: "
          "give all nodes node 0's address",
          spec->master_addr, own);
}

bool agent_store_home(const worker_spec *spec, char *host, char *why)
{
    char ignored[SOCKET_ADDRESS_BYTES + 80];
    why[0] = '\0';
    snprintf(host, SOCKET_ADDRESS_BYTES, "%s", spec->master_addr);
    return spec->store_on_loopback || socket_address_home(spec->master_addr, host, why) ||
           (spec->local_addr[0] != '\0' && !local_network_owns(spec->master_addr) &&
            socket_address_home(spec->local_addr, host, ignored));
}

/* Agents of one machine may know it by several names, and would listen at as many addresses. The
 * first to take this name is node 0; the system frees it when the process ends. */
static bool claim_port(int port)
{
    char name[64];
    int fd = -1;
    snprintf(name, sizeof name, "mnist_ddp store %d", port);
    return socket_listen_local(name, &fd) == STATUS_OK;
}

/* Whether another agent of this machine serves the store; then sets the spec's master_addr to where
 * it is. */
static bool served_by_another(worker_spec *spec)
{
    enum { WAIT_MS = 2000, PAUSE_MS = 10 };
    char there[SOCKET_ADDRESS_BYTES];
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    while (!claim_port(spec->master_port) && !clock_passed(deadline_ns)) {
        int fd = -1;
        bool listens = socket_address_own_listener(spec->master_port, there);
        if (socket_connect(spec->master_addr, spec->master_port, clock_deadline_ns(CONNECT_MS),
                           &fd) == STATUS_OK) {
            close(fd);
            return true;
        }
        if (listens) { /* and not at the address that was given */
            LOG_I("another launcher of this machine was first, and its store listens at %.64s: "
                  "going there instead of %s",
                  there, spec->master_addr);
            snprintf(spec->master_addr, sizeof spec->master_addr, "%.64s", there);
            return true;
        }
        clock_sleep_ms(PAUSE_MS); /* the other one has the name, but does not listen yet */
    }
    return false;
}

/* What to type on the other nodes. */
static void say_how_to_join(const worker_spec *spec)
{
    enum { LINES = 8 }; /* for more nodes one line must do */
    bool one = spec->nnodes > LINES && !spec->counts_nodes;
    int last = one || spec->counts_nodes ? 1 : spec->nnodes - 1;
    if (spec->counts_nodes)
        LOG_I("the nodes that come share %d ranks; give --nnodes=N to say how many will",
              spec->world_size);
    for (int node = 1; node <= last; node++) {
        char *line = agent_store_join_command(spec, one ? -1 : node);
        if (line != NULL && one)
            LOG_I("on node N, from 1 to %d: %s", spec->nnodes - 1, line);
        else if (line != NULL)
            LOG_I("on node %d: %s", node, line);
        free(line);
    }
}

status agent_store_open(worker_spec *spec, store_server **server)
{
    char own[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    *server = NULL;
    if (spec->server == RDZV_HOST_ELSEWHERE)
        return STATUS_OK;
    const char *host = agent_store_home(spec, own, why) ? own : NULL;
    int busy = -1; /* --inject=port-busy: a socket that stays open until the process ends */
    if (spec->port_busy)
        TRY(socket_listen(host, spec->master_port, &busy, &spec->master_port));
    if (spec->server == RDZV_HOST_FIRST && served_by_another(spec))
        return STATUS_OK;
    if (spec->server == RDZV_HOST_HERE && worker_spec_is_elastic(spec) && spec->master_port != 0)
        (void)claim_port(spec->master_port);
    status st = store_server_create(host, spec->master_port, server);
    if (st == STATUS_IO && spec->server == RDZV_HOST_FIRST)
        return STATUS_OK; /* another was first: the client finds out who answers there */
    TRY(st);
    spec->master_port = store_server_port(*server);
    if (!spec->store_on_loopback)
        LOG_I("the store listens %s%s%s%s", host != NULL ? "at " : "on all addresses",
              host != NULL ? host : ": ", host != NULL ? " only" : why,
              "; who reaches it is trusted: use a private network");
    check_address(spec);
    if (!worker_spec_is_elastic(spec) && spec->nnodes > 1)
        say_how_to_join(spec);
    return STATUS_OK;
}

/* Serves the endpoint, if none does. An agent reaches its own store where it listens: the address
 * that others use need not lead back. */
static status serve_endpoint(worker_spec *spec, store_server **server)
{
    char name[SOCKET_ADDRESS_BYTES];
    spec->store_on_loopback = socket_address_says_loopback(spec->master_addr);
    TRY(agent_store_open(spec, server));
    const char *there = *server != NULL ? store_server_host(*server) : spec->master_addr;
    socket_address_name(spec->master_addr, spec->master_port, name);
    if (strcmp(strrchr(spec->endpoints, ':'), ":0") == 0)
        LOG_I("on the other nodes: --rdzv-endpoint=%s", name);
    socket_address_name(there, spec->master_port, name);
    snprintf(spec->endpoints, sizeof spec->endpoints, "%s", name);
    return STATUS_OK;
}

/* This machine, as the others know it: by the way to where all meet. One of etcd's endpoints may be
 * out of reach. */
static status find_own_address(worker_spec *spec)
{
    char one[SPEC_ADDRESS_BYTES + 16], address[SPEC_ADDRESS_BYTES];
    status st = STATUS_OK;
    size_t length;
    int port;
    memcpy(spec->master_addr, spec->local_addr, sizeof spec->master_addr);
    for (const char *at = spec->endpoints; spec->master_addr[0] == '\0';) {
        const char *word = comma_list_next(&at, &length);
        if (word == NULL)
            break;
        snprintf(one, sizeof one, "%.*s", (int)length, word);
        const char *scheme_end = strstr(one, "://");
        if (socket_address_parse(scheme_end != NULL ? scheme_end + 3 : one, 0, address,
                                 sizeof address, &port) == STATUS_OK)
            st = socket_route_source(address, spec->master_addr);
    }
    return st;
}

status agent_store_open_own(worker_spec *spec, store_server **server)
{
    *server = NULL;
    if (spec->server != RDZV_HOST_ELSEWHERE)
        TRY(serve_endpoint(spec, server));
    if (*server != NULL)
        return STATUS_OK;
    TRY(find_own_address(spec));
    spec->master_port = 0;
    spec->server = RDZV_HOST_HERE;
    spec->store_on_loopback = socket_address_says_loopback(spec->master_addr);
    return agent_store_open(spec, server);
}

/* The way to it. */

static status not_ours(const worker_spec *spec)
{
    return FAIL(STATUS_IO,
                "something that is not mnist_ddp listens at %s:%d, or it is stuck, or short of "
                "descriptors as its own output says",
                spec->master_addr, spec->master_port);
}

/* Reaching the port first tells refused, filtered (STATUS_TIMEOUT) and unknown hosts apart. */
status agent_store_reach(const worker_spec *spec, const store_server *server, store **out)
{
    /* Node 0 reaches its own store here; the address that others use need not lead back. */
    const char *host = server != NULL ? store_server_host(server) : spec->master_addr;
    int fd = -1;
    TRY(socket_connect(host, spec->master_port, clock_deadline_ns(CONNECT_MS), &fd));
    close(fd);
    store_options how = {.host = host,
                         .port = spec->master_port,
                         .prefix = AGENT_KEYS,
                         .timeout_ms = worker_spec_lease_ms(spec),
                         .connect_timeout_ms = CONNECT_MS,
                         .describe = ""};
    status st = store_create(&how, out);
    return st == STATUS_OK || st == STATUS_NO_MEMORY ? st : not_ours(spec);
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

status agent_store_await(const worker_spec *spec, const store_server *server,
                         const atomic_bool *cancelled, store **out)
{
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(spec->rdzv.join_ms);
    int64_t line_ns = start_ns + FIRST_LINE_MS * 1000000ll, stranger_ns = 0;
    char why[WHY_BYTES], node[32], way[SOCKET_ROUTE_BYTES];
    for (int64_t pause_ms = 10;; pause_ms = pause_ms < CONNECT_MS / 2 ? pause_ms * 2 : pause_ms) {
        status st = agent_store_reach(spec, server, out);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY)
            return st;
        int64_t now = clock_now_ns();
        if (atomic_load(cancelled))
            return FAIL(STATUS_PEER, "told to stop");
        if (st == STATUS_IO && stranger_ns == 0)
            stranger_ns = now;
        if (st == STATUS_UNKNOWN_HOST || st == STATUS_REFUSED || st == STATUS_PEER)
            stranger_ns = 0;
        if (stranger_ns != 0) /* also if its queue is full meanwhile, and nobody answers */
            st = not_ours(spec);
        bool stranger = stranger_ns != 0 &&
                        now - stranger_ns > AGENT_STORE_STRANGER_MS * 1000000ll &&
                        !worker_spec_is_elastic(spec);
        bool gone = worker_spec_is_elastic(spec) && st == STATUS_REFUSED &&
                    now - start_ns > GONE_MS * 1000000ll;
        bool is_over = stranger || gone || now >= deadline_ns;
        if (is_over || now >= line_ns)
            explain(spec, st, why);
        if (is_over)
            return FAIL(stranger ? STATUS_INVALID
                        : gone   ? STATUS_REFUSED
                                 : STATUS_TIMEOUT,
                        "node 0 was not reached within %.3g s: %s", clock_seconds(now - start_ns),
                        why);
        if (now >= line_ns) {
            snprintf(node, sizeof node, spec->node_rank < 0 ? "this node" : "node %d",
                     spec->node_rank);
            socket_route_describe(spec->master_addr, way);
            LOG_I("%s%s%s%s waits for node 0, %.0f s of %.0f s: %s", node,
                  way[0] != '\0' ? " (by " : "", way, way[0] != '\0' ? ")" : "",
                  clock_seconds(now - start_ns), (double)spec->rdzv.join_ms * 1e-3, why);
            line_ns = now + NEXT_LINE_MS * 1000000ll;
        }
        clock_sleep_ms(pause_ms);
    }
}

/* Nodes that count themselves. */

bool node_count_look(node_count *count, const worker_spec *spec, const bool *there, bool is_late)
{
    int nodes = 0, highest = 1;
    for (int n = 0; n < spec->nnodes; n++) {
        nodes += there[n];
        highest = there[n] && n > highest ? n : highest;
    }
    count->is_news = nodes != count->nodes || highest + 1 != count->expected;
    if (count->is_news)
        *count = (node_count){nodes, highest + 1, clock_now_ns(), true};
    bool is_quiet = clock_now_ns() - count->since_ns >= NODE_COUNT_QUIET_MS * 1000000ll;
    return nodes == count->expected && (is_quiet || is_late);
}

status node_count_publish(const node_count *count, const worker_spec *spec, store *client,
                          const char *prefix)
{
    char size[32];
    int nodes = count->nodes, world = spec->world_size, next = nodes;
    while (next < world && world % next != 0)
        next++;
    if (world % nodes != 0)
        return FAIL(STATUS_INVALID,
                    "%d nodes have come, and --world-size=%d does not divide by %d: start %d "
                    "nodes, or give all of them --world-size=%d",
                    nodes, world, nodes, next, (world / nodes + 1) * nodes);
    snprintf(size, sizeof size, "%d", nodes);
    return store_set(client, keys_make(prefix, KEYS_SIZE, -1).text, size, strlen(size));
}

void node_count_apply(worker_spec *spec, int nodes)
{
    spec->nnodes = spec->rdzv.min_nodes = spec->rdzv.max_nodes = nodes;
    spec->nproc = spec->world_size / nodes;
    spec->now.n = spec->now.n < nodes ? spec->now.n : nodes;
    for (int i = 0; i < spec->now.n; i++)
        spec->now.members[i].nproc = spec->nproc;
    spec->counts_nodes = false;
}
