#include "app/common/exit_codes.h"
#include "app/common/local_network.h"
#include "app/doctor/checkup.h"
#include "app/launch/agent_store.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/text.h"
#include "dist/elastic/rdzv_ops.h"
#include "dist/net/socket.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECT_MS = 2000 };

/* gloo and NCCL find the way to the other nodes by this machine's own name. */
static void check_name(checkup *c)
{
    char name[256] = "?";
    struct addrinfo *list = NULL;
    if (gethostname(name, sizeof name - 1) != 0)
        return;
    if (socket_address_resolve(name, 0, &list) != STATUS_OK) {
        checkup_add(c, c->spec.nnodes > 1 ? CHECKUP_WARNING : CHECKUP_NOTE, "name",
                    "this machine's name, %s, does not resolve here: programs that look for their "
                    "own address by it will fail; add it to /etc/hosts",
                    name);
        return;
    }
    char where[SOCKET_ADDRESS_BYTES], number[NI_MAXHOST] = "";
    socket_address_describe(name, 0, list, where);
    getnameinfo(list->ai_addr, list->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(list);
    char *port = strrchr(where, ':');
    if (port != NULL)
        *port = '\0';
    bool loopback = socket_address_is_loopback(name) || socket_address_says_loopback(number);
    if (loopback && c->spec.nnodes > 1)
        checkup_add(c, CHECKUP_WARNING, "name",
                    "this machine's name, %s, stands for a loopback address here: other programs "
                    "tell the other nodes that one; give it its real address in /etc/hosts, or set "
                    "GLOO_SOCKET_IFNAME",
                    where);
    else
        checkup_add(c, CHECKUP_OK, "name", "%s", where);
}

static bool has_interface(const char *name)
{
    local_address list[LOCAL_NETWORK_MAX];
    int n = local_network_list(list);
    size_t length = strlen(name);
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].interface, name, length) == 0)
            return true;
    return false;
}

/* "^docker,=eth0": NCCL's way to name interfaces; gloo takes plain names. */
static void check_variable(checkup *c, const char *variable)
{
    const char *text = environment_text(variable);
    if (text == NULL || text[0] == '^')
        return;
    size_t length;
    for (const char *at = text, *word; (word = comma_list_next(&at, &length)) != NULL;) {
        char name[LOCAL_NETWORK_NAME_BYTES];
        bool exact = length > 0 && *word == '=';
        snprintf(name, sizeof name, "%.*s", (int)length - exact, word + exact);
        name[strcspn(name, ":")] = '\0';
        if (!has_interface(name))
            checkup_fail(c, EXIT_CODE_RENDEZVOUS, "interfaces",
                         "%s=%.80s: no interface '%s' is up here", variable, text, name);
    }
}

static void check_interfaces(checkup *c)
{
    char text[512];
    local_network_describe(text, sizeof text);
    checkup_add(c, CHECKUP_OK, "interfaces", "%s", text);
    check_variable(c, "GLOO_SOCKET_IFNAME");
    check_variable(c, "NCCL_SOCKET_IFNAME");
    check_variable(c, "TP_SOCKET_IFNAME");
}

/* Node 0, or the only one: the port must be there for the taking. */
static void check_own_port(checkup *c)
{
    const worker_spec *spec = &c->spec;
    int fd = -1, port = 0;
    char own[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    if (spec->master_port == 0) {
        checkup_add(c, CHECKUP_OK, "port", "one node: a free one is taken");
        return;
    }
    const char *host = agent_store_home(spec, own, why) ? own : NULL;
    if (socket_listen(host, spec->master_port, &fd, &port) != STATUS_OK) {
        checkup_fail_message(c, EXIT_CODE_RENDEZVOUS, "port");
        return;
    }
    close(fd);
    checkup_add(c, CHECKUP_OK, "port", "%d is free here", port);
}

/* Whether what listens there greets as a store does. */
static bool is_store(const worker_spec *spec)
{
    store *client = NULL;
    store_options how = {.host = spec->master_addr,
                         .port = spec->master_port,
                         .timeout_ms = CONNECT_MS,
                         .connect_timeout_ms = CONNECT_MS};
    status st = store_create(&how, &client);
    store_destroy(client);
    return st == STATUS_OK;
}

static void check_way(checkup *c)
{
    const worker_spec *spec = &c->spec;
    char way[SOCKET_ROUTE_BYTES], why[256];
    int fd = -1;
    status st =
        socket_connect(spec->master_addr, spec->master_port, clock_deadline_ns(CONNECT_MS), &fd);
    snprintf(why, sizeof why, "%s", status_text());
    socket_route_describe(spec->master_addr, way);
    if (st == STATUS_OK)
        close(fd);
    if (st == STATUS_OK && !is_store(spec)) {
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "node 0",
                     "something that is not mnist_ddp listens at %s:%d: stop it, or give all nodes "
                     "another --master-port",
                     spec->master_addr, spec->master_port);
    } else if (st == STATUS_OK) {
        checkup_add(c, CHECKUP_OK, "node 0", "%s:%d answers, by %s", spec->master_addr,
                    spec->master_port, way);
    } else if (st == STATUS_UNKNOWN_HOST) {
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "node 0",
                     "%s; give an address, or make the name known (/etc/hosts, DNS)", why);
    } else if (local_network_owns(spec->master_addr) && !spec->store_on_loopback) {
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "node 0",
                     "%s is an address of this machine, which is node %d: give all nodes node 0's "
                     "address",
                     spec->master_addr, spec->node_rank);
    } else if (st == STATUS_REFUSED) {
        checkup_add(c, CHECKUP_WARNING, "node 0",
                    "%s, by %s: the machine is there and lets us through, but nobody listens yet",
                    why, way);
    } else {
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "node 0",
                     "%s, by %s: is that machine on, and does a firewall let the port through?",
                     why, way[0] != '\0' ? way : "no interface");
    }
}

static void check_node_0(checkup *c)
{
    const worker_spec *spec = &c->spec;
    char own[512];
    if (spec->server == RDZV_HOST_ELSEWHERE) {
        check_way(c);
        return;
    }
    check_own_port(c);
    if (spec->nnodes == 1)
        return;
    if (spec->store_on_loopback) {
        checkup_add(c, CHECKUP_NOTE, "node 0", "%s: the other nodes must be on this machine too",
                    spec->master_addr);
    } else if (local_network_owns(spec->master_addr)) {
        checkup_add(c, CHECKUP_OK, "node 0", "%s is this machine", spec->master_addr);
    } else {
        local_network_describe(own, sizeof own);
        checkup_add(c, CHECKUP_WARNING, "node 0",
                    "%s is none of this machine's addresses (%s), but the others look for node 0 "
                    "there",
                    spec->master_addr, own);
    }
}

/* Whether etcd answers at this endpoint. Reads what there is of the job, and writes nothing. */
static status ask_etcd(const worker_spec *spec, const char *endpoint, int *n_nodes)
{
    const rdzv_service_options how = {.endpoints = endpoint,
                                      .access = &spec->access,
                                      .run_id = spec->run_id,
                                      .node_id = "doctor",
                                      .ttl_ms = CONNECT_MS,
                                      .timeout_ms = CONNECT_MS};
    rdzv_view view = {0};
    void *etcd = NULL;
    TRY(rdzv_etcd.open(&how, &etcd));
    status st = rdzv_etcd.look(etcd, RDZV_ALL, -1, 0, &view);
    if (st == STATUS_OK)
        *n_nodes = view.n;
    rdzv_view_free(&view);
    rdzv_etcd.close(etcd);
    return st;
}

/* One of its members may be away; what is there is to be etcd. */
static void check_etcd(checkup *c)
{
    const char *at = c->spec.endpoints, *word;
    int n_there = 0, n_nodes = 0;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char endpoint[SOCKET_ADDRESS_BYTES];
        snprintf(endpoint, sizeof endpoint, "%.*s", (int)length, word);
        status st = ask_etcd(&c->spec, endpoint, &n_nodes);
        n_there += st == STATUS_OK;
        if (st == STATUS_OK)
            checkup_add(c, CHECKUP_OK, "etcd", "%s answers; nodes of job '%s' there: %d", endpoint,
                        c->spec.run_id, n_nodes);
        else if (st == STATUS_INVALID)
            checkup_fail_message(c, EXIT_CODE_RENDEZVOUS, "etcd");
        else
            checkup_add(c, CHECKUP_WARNING, "etcd", "%s", status_text());
    }
    if (n_there == 0)
        checkup_fail(c, EXIT_CODE_RENDEZVOUS, "etcd",
                     "it answers at no endpoint: is it on, and does a firewall let its port "
                     "through?");
}

void checkup_network(checkup *c)
{
    check_name(c);
    check_interfaces(c);
    if (c->spec.rdzv == RDZV_ETCD)
        check_etcd(c);
    else
        check_node_0(c);
}
