#include "app/launch/agent_store.h"

#include "app/common/machine.h"
#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

char *join_command(const worker_spec *spec, int node)
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

/* --inject=port-busy: takes the port before the store does. The socket stays open until the process
 * ends. */
static status occupy(const char *host, int *port)
{
    int fd = -1;
    return socket_listen(host, *port, &fd, port);
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
    enum { WAIT_MS = 2000, CONNECT_MS = 500, PAUSE_MS = 10 };
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
        char *line = join_command(spec, one ? -1 : node);
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
    if (spec->port_busy)
        TRY(occupy(host, &spec->master_port));
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

/* The search for an endpoint to which there is a way: one of etcd's may be out of reach. */
typedef struct way_search {
    char number[SOCKET_ROUTE_NUMBER_BYTES];
    status st;
} way_search;

static bool try_way(void *ctx, const char *address, int port)
{
    way_search *search = ctx;
    (void)port;
    search->st = socket_route_source(address, search->number);
    return search->st != STATUS_OK;
}

/* This machine, as the others know it: by the way to where all meet. */
static status find_own_address(worker_spec *spec)
{
    way_search search = {.st = STATUS_OK};
    if (spec->local_addr[0] != '\0') {
        memcpy(spec->master_addr, spec->local_addr, sizeof spec->master_addr);
        return STATUS_OK;
    }
    worker_spec_each_endpoint(spec->endpoints, try_way, &search);
    TRY(search.st);
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s", search.number);
    return STATUS_OK;
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

void agent_store_describe(const worker_spec *spec)
{
    char ranks[SPEC_RANKS_BYTES];
    worker_spec_ranks(spec, ranks);
    log_line(spec->nnodes > 1 ? LOG_INFO : LOG_DEBUG, "node %d of %d: %s; the store is at %s:%d",
             spec->node_rank, spec->nnodes, ranks, spec->master_addr, spec->master_port);
}
