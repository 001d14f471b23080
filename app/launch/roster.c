#include "app/launch/roster.h"

#include "app/common/machine.h"
#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
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
    STRANGER_MS = 5000,   /* what does not speak as our agent after this is something else */
    LINGER_MS = 400,      /* a failure stays readable for the others */
    BEAT_MS = 50,         /* while the nodes come: from one heartbeat to the next */
    LIST_BYTES = 400,
    WHY_BYTES = 700,
    SETTINGS_BYTES = 256 + AGREEMENT_BYTES,
};

void roster_who(const worker_spec *spec, char out[ROSTER_WHO_BYTES])
{
    char host[128] = "?", way[SOCKET_ROUTE_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    if (spec->local_addr[0] == '\0')
        socket_route_describe(spec->master_addr, way);
    const char *address = spec->local_addr[0] != '\0' ? spec->local_addr : way;
    snprintf(out, ROSTER_WHO_BYTES, "%.60s%s%.90s, pid %d", host, address[0] != '\0' ? " at " : "",
             address, (int)getpid());
}

/* The store. */

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

/* What to type on another node of a job whose nodes are numbered: this command, with its number. A
 * line for a shell: all that was typed here but --node-rank, and what is known here by other
 * ways: node 0's address, variables, a file. `node`: its number; -1: "N". Free with free(). NULL:
 * no memory, or the spec is of no command line. */
static char *join_command(const worker_spec *spec, int node)
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

/* Who is there. */

status roster_init(roster *r, worker_spec *spec, store_server *server, const atomic_bool *quit)
{
    *r = (roster){.spec = spec, .server = server, .quit = quit, .member = -1, .revision = -1};
    if (worker_spec_is_elastic(spec))
        snprintf(r->prefix, sizeof r->prefix, "%s/%lld/", spec->run_id, (long long)spec->now.round);
    else
        snprintf(r->prefix, sizeof r->prefix, "%s/", spec->run_id);
    r->nodes = calloc((size_t)spec->nnodes, sizeof *r->nodes);
    return r->nodes != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
}

void roster_close(roster *r)
{
    store_destroy(r->client);
    free(r->nodes);
}

/* Sets this node's key, if that holds revision `expected` (0: none). */
static status put_own(roster *r, int node, int64_t expected)
{
    store_put_options how = {.value = r->token, .expected = expected, .goes_with_connection = true};
    return store_put(r->client, keys_make(r->prefix, KEYS_ALIVE, node).text, &how, &r->own_set);
}

void roster_holder(const roster_node *node, char who[ROSTER_WHO_BYTES])
{
    int length = (int)strcspn(node->token, "#");
    snprintf(who, ROSTER_WHO_BYTES, "%.*s", length > 0 ? length : 1,
             length > 0 ? node->token : "?");
}

status roster_beat(roster *r)
{
    char who[ROSTER_WHO_BYTES];
    const roster_node *own = &r->nodes[r->member];
    TRY(put_own(r, r->member, r->own_set));
    if (r->own_set != 0)
        return STATUS_OK;
    TRY(roster_look(r)); /* it went with another connection, or is still there by one */
    bool free_or_own = !own->there || strcmp(own->token, r->token) == 0;
    if (free_or_own)
        TRY(put_own(r, r->member, own->there ? own->set : 0));
    if (free_or_own && r->own_set != 0)
        return STATUS_OK;
    roster_holder(own, who);
    return FAIL(STATUS_INVALID,
                "this process was silent for too long, and node %d is now held by another one (%s)",
                r->member, who);
}

status roster_look(roster *r)
{
    keys_text prefix = keys_make(r->prefix, KEYS_ALIVE "/", -1);
    store_watch_options how = {.prefix = prefix.text, .after = r->revision};
    store_watch_answer living;
    int64_t now_ns = clock_now_ns();
    TRY(store_watch(r->client, &how, &living));
    if (living.revision == 0)
        return STATUS_OK; /* nothing has changed */
    r->revision = living.revision;
    for (int i = 0; i < r->spec->nnodes; i++) {
        r->nodes[i].gone_ns = r->nodes[i].there ? now_ns : r->nodes[i].gone_ns;
        r->nodes[i].there = false;
    }
    for (size_t i = 0; i < living.n; i++) {
        const store_watch_key *key = &living.keys[i];
        const char *slash = strrchr(key->key, '/');
        int number;
        if (slash == NULL || !number_parse(slash + 1, 0, r->spec->nnodes - 1, &number))
            continue;
        roster_node *node = &r->nodes[number];
        node->there = true;
        node->gone_ns = 0;
        node->heard_ns = key->set != node->set ? now_ns : node->heard_ns;
        node->set = key->set;
        snprintf(node->token, sizeof node->token, "%s", key->value);
    }
    store_watch_free(&living);
    return STATUS_OK;
}

static status check_quit(const roster *r)
{
    return atomic_load(r->quit) ? FAIL(STATUS_PEER, "told to stop") : STATUS_OK;
}

static status not_ours(const roster *r)
{
    return FAIL(STATUS_IO,
                "something that is not mnist_ddp listens at %s:%d, or it is stuck, or short of "
                "descriptors as its own output says",
                r->spec->master_addr, r->spec->master_port);
}

/* Reaching the port first tells refused, filtered (STATUS_TIMEOUT) and unknown hosts apart. */
status roster_reach(const roster *r, store **out)
{
    const worker_spec *spec = r->spec;
    /* Node 0 reaches its own store here; the address that others use need not lead back. */
    const char *host = r->server != NULL ? store_server_host(r->server) : spec->master_addr;
    int fd = -1;
    TRY(socket_connect(host, r->spec->master_port, clock_deadline_ns(CONNECT_MS), &fd));
    close(fd);
    store_options how = {.host = host,
                         .port = r->spec->master_port,
                         .prefix = AGENT_KEYS,
                         .timeout_ms = spec->keep_alive_ms * spec->keep_alive_misses,
                         .connect_timeout_ms = CONNECT_MS,
                         .describe = ""};
    status st = store_create(&how, out);
    return st == STATUS_OK || st == STATUS_NO_MEMORY ? st : not_ours(r);
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

/* Tries until it is connected. */
static status connect_to_store(const roster *r, store **out)
{
    const worker_spec *spec = r->spec;
    int64_t start_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(spec->join_ms);
    int64_t line_ns = start_ns + FIRST_LINE_MS * 1000000ll, stranger_ns = 0;
    char why[WHY_BYTES], node[32], way[SOCKET_ROUTE_BYTES];
    for (int64_t pause_ms = 10;; pause_ms = pause_ms < CONNECT_MS / 2 ? pause_ms * 2 : pause_ms) {
        status st = roster_reach(r, out);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY)
            return st;
        int64_t now = clock_now_ns();
        TRY(check_quit(r));
        if (st == STATUS_IO && stranger_ns == 0)
            stranger_ns = now;
        if (st == STATUS_UNKNOWN_HOST || st == STATUS_REFUSED || st == STATUS_PEER)
            stranger_ns = 0;
        if (stranger_ns != 0) /* also if its queue is full meanwhile, and nobody answers */
            st = not_ours(r);
        bool stranger = stranger_ns != 0 && now - stranger_ns > STRANGER_MS * 1000000ll &&
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
                  clock_seconds(now - start_ns), (double)spec->join_ms * 1e-3, why);
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
    spec->nnodes = spec->min_nodes = spec->max_nodes = nodes;
    spec->nproc = spec->world_size / nodes;
    spec->counts_nodes = false;
}

/* A node that joins: from its connection to the start of all. */
typedef struct joiner {
    roster *r;
    const worker_spec *spec;
    membership nodes; /* all of the job; this one has no number yet */
    bool *there;      /* spec->nnodes of them */
    int64_t start_ns, line_ns, deadline_ns;
    node_count count;
    int64_t complete_ns; /* since when all are there; 0: they are not */
} joiner;

/* Is this our job's store? Node 0 says which one it serves before anything else. */
static status check_job(const joiner *j)
{
    const worker_spec *spec = j->spec;
    char job[SPEC_RUN_ID_BYTES];
    if (j->r->server != NULL)
        return store_set(j->r->client, KEYS_JOB, spec->run_id, strlen(spec->run_id));
    int64_t wait_ms = STRANGER_MS,
            half_lease_ms = spec->keep_alive_ms * spec->keep_alive_misses / 2;
    if (worker_spec_is_elastic(spec) && half_lease_ms > wait_ms)
        wait_ms = half_lease_ms; /* so long may it take until node 0, too, knows of the round */
    status st = store_get_text(j->r->client, KEYS_JOB, clock_deadline_ns(wait_ms), job, sizeof job);
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

/* What is wrong with one node is wrong for all that still wait: they are told. A newcomer to an
 * elastic job ends alone. */
static status agree_on_settings(joiner *j)
{
    char settings[SETTINGS_BYTES], who[ROSTER_WHO_BYTES], text[SETTINGS_BYTES + ROSTER_WHO_BYTES];
    agreement_difference found;
    keys_text key = keys_make(j->r->prefix, KEYS_SETTINGS, -1);
    describe_settings(j->spec, settings);
    roster_who(j->spec, who);
    if (j->r->server != NULL) {
        int length = snprintf(text, sizeof text, "%s\n%s", who, settings);
        return store_set(j->r->client, key.text, text, (size_t)length);
    }
    TRY(store_get_text(j->r->client, key.text, clock_deadline_ns(STRANGER_MS), text, sizeof text));
    const char *its = strchr(text, '\n'); /* after who node 0 is */
    if (its == NULL)
        return FAIL(STATUS_PEER, "node 0's settings are nonsense: '%.100s'", text);
    if (!agreement_differ(settings, its + 1, &found))
        return STATUS_OK;
    status st =
        FAIL(STATUS_INVALID,
             "the nodes disagree: %s on one (%s), %s on node 0 (%.*s); give all nodes the same",
             found.of_a, who, found.of_b, (int)(its - text), text);
    return worker_spec_is_elastic(j->spec) ? st : membership_give_up(&j->nodes, st);
}

/* What all look at while they wait: why the job cannot start, or whether it has. */
static status look_for_start(const joiner *j, bool *started)
{
    status st = membership_hear(&j->nodes, started);
    return st == STATUS_INVALID ? status_context(st, "the job cannot start") : st;
}

/* Somebody holds the number: it is free once the key is gone, or its holder is silent. From the
 * start on node 0 looks who lives. */
static status wait_for_number(joiner *j, int node)
{
    roster *r = j->r;
    const roster_node *holder = &r->nodes[node];
    int64_t deadline_ns = clock_deadline_ns(ROSTER_SILENT_MS), first_set = 0;
    for (bool over = false, late = false; r->own_set == 0 && !late;) {
        late = clock_passed(deadline_ns);
        TRY(check_quit(r));
        TRY(look_for_start(j, &over));
        TRY(roster_look(r));
        first_set = first_set == 0 ? holder->set : first_set;
        if (over || (holder->there && holder->set != first_set))
            return STATUS_OK; /* it lives */
        if (late || !holder->there)
            TRY(put_own(r, node, holder->there ? holder->set : 0));
        if (r->own_set == 0)
            clock_sleep_ms(BEAT_MS);
    }
    return STATUS_OK;
}

/* Takes a number; all hear of a node that cannot have its own. */
static status take_number(joiner *j)
{
    char who[ROSTER_WHO_BYTES], other[ROSTER_WHO_BYTES];
    roster *r = j->r;
    int node = j->spec->node_rank;
    roster_who(j->spec, who);
    snprintf(r->token, sizeof r->token, "%s#%x.%llx", who, (unsigned)getpid(),
             (unsigned long long)clock_now_ns());
    TRY(put_own(r, node, 0));
    if (r->own_set == 0)
        TRY(wait_for_number(j, node));
    if (r->own_set != 0) {
        r->member = node;
        return STATUS_OK;
    }
    roster_holder(&r->nodes[node], other);
    return membership_give_up(&j->nodes,
                              FAIL(STATUS_INVALID,
                                   "node %d is claimed twice, by one launcher (%s) and another "
                                   "(%s): give every node its own --node-rank",
                                   node, other, who));
}

/* Who is there: holds its number, and is heard. *all: everybody, and each was heard since all were
 * there for the first time, so that nobody has gone who was there when the last one came. */
static status look_for_all(joiner *j, bool *all)
{
    bool complete = true;
    int64_t oldest_ns = INT64_MAX, now_ns = clock_now_ns();
    TRY(roster_look(j->r));
    for (int n = 0; n < j->spec->nnodes; n++) {
        const roster_node *node = &j->r->nodes[n];
        bool own = n == j->r->member;
        bool heard = own || now_ns - node->heard_ns < ROSTER_SILENT_MS * 1000000ll;
        j->there[n] = node->there && heard;
        complete = complete && j->there[n];
        if (!own && node->heard_ns < oldest_ns)
            oldest_ns = node->heard_ns;
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
    if (j->r->server != NULL && !spec->store_on_loopback)
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
    for (int n = 0; n < spec->nnodes && j->r->server != NULL; n++)
        j->r->nodes[n].lost = !j->there[n];
    return FAIL(STATUS_TIMEOUT,
                "%d of %d nodes did not come to %s:%d within %.3g s: %s; see whether they were "
                "started and can reach that address (mnist_ddp doctor)",
                missing, j->count.expected, spec->master_addr, spec->master_port,
                (double)spec->join_ms * 1e-3, list);
}

/* Nodes count themselves, and node 0 decides. */
static status count_nodes(joiner *j, bool is_late, bool *all)
{
    const node_count *count = &j->count;
    status st = STATUS_OK;
    *all = node_count_look(&j->count, j->spec, j->there, is_late);
    if (j->r->server == NULL)
        return st;
    if (count->is_news &&
        count->nodes == count->expected) { /* what comes of it, and what to type */
        char *line = count->nodes < j->spec->nnodes ? join_command(j->spec, count->nodes) : NULL;
        LOG_I("nodes 0 to %d are there: they start unless another one comes within %d s%s%s",
              count->nodes - 1, NODE_COUNT_QUIET_MS / 1000, line != NULL ? "; on one more: " : "",
              line != NULL ? line : "");
        free(line);
    }
    if (*all)
        st = node_count_publish(count, j->spec, j->r->client, j->r->prefix);
    return st == STATUS_INVALID ? membership_give_up(&j->nodes, st) : st;
}

/* Node 0 looks who is there, and all go on at its word; the others look to say who is missing. */
static status wait_for_all(joiner *j)
{
    bool serves = j->r->server != NULL, started = false;
    for (int64_t pause_ms = 1;;) {
        bool all = false;
        TRY(roster_beat(j->r));
        TRY(look_for_start(j, &started));
        if (started)
            return STATUS_OK;
        TRY(check_quit(j->r));
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
        pause_ms = pause_ms < BEAT_MS / 2 ? pause_ms * 2 : BEAT_MS;
    }
}

/* Node 0 takes the store with it, after all have heard why. */
static void leave(const joiner *j)
{
    char who[ROSTER_WHO_BYTES];
    status_kept kept;
    status_keep(&kept);
    if (j->r->server != NULL && atomic_load(j->r->quit)) {
        roster_who(j->spec, who);
        status st = worker_spec_is_elastic(j->spec) ? STATUS_PEER : STATUS_INVALID;
        membership_give_up(&j->nodes, FAIL(st,
                                           "node 0's launcher (%s) was told to stop before all "
                                           "nodes had come; start all nodes again",
                                           who));
    }
    if (j->r->server != NULL)
        clock_sleep_ms(LINGER_MS);
    status_restore(&kept);
}

/* A failure, `st`, of a node that has lost the store: a key says nothing to whoever reads that. */
static status explain_loss(const joiner *j, status st)
{
    bool there, asks = j->r->server == NULL && st != STATUS_INVALID;
    store *again = NULL;
    status_kept kept;
    status_keep(&kept);
    if (asks && store_check(j->r->client, KEYS_JOB, &there) != STATUS_OK) {
        bool gone = roster_reach(j->r, &again) == STATUS_REFUSED;
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

/* After the start: the spec is that of so many nodes, if they were counted. STATUS_INVALID for a
 * member that came too late. */
static status take_count(const joiner *j)
{
    enum { WAIT_MS = 5000 }; /* node 0 has set it before all started */
    char size[32];
    int nodes = 0;
    if (!j->spec->counts_nodes)
        return STATUS_OK;
    TRY(store_get_text(j->r->client, keys_make(j->r->prefix, KEYS_SIZE, -1).text,
                       clock_deadline_ns(WAIT_MS), size, sizeof size));
    if (!number_parse(size, 2, j->spec->nnodes, &nodes))
        return FAIL(STATUS_PEER, "node 0's number of nodes makes no sense: '%s'", size);
    if (j->r->member >= nodes)
        return FAIL(STATUS_INVALID, "the job has begun with %d nodes: node %d came too late", nodes,
                    j->r->member);
    node_count_apply(j->r->spec, nodes);
    return STATUS_OK;
}

/* From the connection to the start of all. */
static status meet(joiner *j)
{
    TRY(check_job(j));
    TRY(agree_on_settings(j));
    TRY(take_number(j));
    j->there = calloc((size_t)j->spec->nnodes, sizeof *j->there);
    if (j->there == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", j->spec->nnodes);
    TRY(wait_for_all(j));
    return take_count(j);
}

status roster_join(roster *r)
{
    const worker_spec *spec = r->spec;
    status st = connect_to_store(r, &r->client);
    if (st != STATUS_OK) {
        r->nodes[0].lost = !atomic_load(r->quit);
        return st;
    }
    joiner j = {.r = r,
                .spec = spec,
                .nodes = {.store = r->client,
                          .prefix = r->prefix,
                          .member = -1,
                          .n = spec->nnodes,
                          .noun = "node"},
                .start_ns = clock_now_ns(),
                .line_ns = clock_deadline_ns(FIRST_LINE_MS),
                .count = {.expected = spec->counts_nodes ? 2 : spec->nnodes},
                .deadline_ns = clock_deadline_ns(spec->join_ms)};
    if (spec->counts_nodes && r->server == NULL) /* node 0 decides, and may begin later */
        j.deadline_ns += NODE_COUNT_QUIET_MS * 1000000ll;
    st = meet(&j);
    free(j.there);
    if (st == STATUS_OK)
        return STATUS_OK;
    leave(&j);
    return explain_loss(&j, st);
}
