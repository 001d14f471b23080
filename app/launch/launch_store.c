#include "app/launch/launch_store.h"

#include "app/local_network.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/net/socket_address.h"

#include <string.h>
#include <unistd.h>

/* --inject=port-busy: somebody else holds the port, where the launcher looks for it. The socket
 * stays open until the process ends. */
static status occupy(const char *host, int *port)
{
    int fd = -1;
    return socket_listen(host, *port, &fd, port);
}

/* The others look for node 0 at this address. */
static void check_address(const launch_plan *plan)
{
    char own[400];
    if (plan->nnodes == 1 || plan->store_on_loopback || local_network_owns(plan->master_addr))
        return;
    local_network_describe(own, sizeof own);
    LOG_W("%s is none of this machine's addresses (%s), but the other nodes look for node 0 there: "
          "give all nodes node 0's address",
          plan->master_addr, own);
}

status launch_store_open(const launch_settings *settings, store_server **server, int *port)
{
    const launch_plan *plan = &settings->plan;
    const char *host = plan->store_on_loopback ? plan->master_addr : NULL;
    *server = NULL;
    *port = plan->master_port;
    if (plan->server == LAUNCH_SERVED_ELSEWHERE)
        return STATUS_OK;
    if (settings->port_busy)
        TRY(occupy(host, port));
    status st = store_server_create(host, *port, server);
    if (st == STATUS_IO && plan->server == LAUNCH_SERVED_MAYBE_HERE)
        return STATUS_OK; /* another launcher of this machine was first: it is node 0 */
    TRY(st);
    *port = store_server_port(*server);
    check_address(plan);
    return STATUS_OK;
}

void launch_store_say(const launch_settings *settings, int port)
{
    const launch_plan *plan = &settings->plan;
    log_line(plan->nnodes > 1 ? LOG_INFO : LOG_DEBUG,
             "node %d of %d: ranks %d to %d of %d; the store is at %s:%d", plan->node_rank,
             plan->nnodes, plan->node_rank * plan->nproc,
             plan->node_rank * plan->nproc + plan->nproc - 1, plan->world_size, plan->master_addr,
             port);
}
