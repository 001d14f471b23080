#include "app/launch/launch_goodbye.h"

#include "base/clock.h"
#include "base/log.h"
#include "dist/store/store.h"

#include <poll.h>
#include <stdio.h>

enum { STORE_MS = 500, LOOK_MS = 20, KEY_BYTES = 32 };

static void key_of(int node_rank, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "done/%d", node_rank);
}

static bool all_said(store *client, const launch_plan *plan, int *next)
{
    char key[KEY_BYTES];
    for (; *next < plan->nnodes; (*next)++) {
        bool there = false;
        key_of(*next, key);
        if (store_check(client, key, &there) != STATUS_OK || !there)
            return false;
    }
    return true;
}

static void await_others(store *client, const launch_plan *plan, int stop_fd)
{
    int64_t deadline_ns = clock_deadline_ns(LAUNCH_GOODBYE_MS);
    struct pollfd stop = {.fd = stop_fd, .events = POLLIN};
    int next = 1;
    while (!all_said(client, plan, &next)) {
        if (poll(&stop, 1, LOOK_MS) > 0)
            return;
        if (clock_passed(deadline_ns)) {
            LOG_W("node %d has not ended %d s after this one; leaving", next,
                  LAUNCH_GOODBYE_MS / 1000);
            return;
        }
    }
}

void launch_goodbye(const launch_plan *plan, int port, int code, int stop_fd)
{
    char prefix[sizeof plan->run_id + 32], key[KEY_BYTES];
    store *client = NULL;
    if (plan->node_rank == 0 && code != 0)
        return;
    snprintf(prefix, sizeof prefix, "mnist_ddp/%s/launcher/", plan->run_id);
    /* Node 0 serves it itself; the address that others use need not lead back here. */
    bool own = plan->node_rank == 0 && !plan->store_on_loopback;
    store_options how = {.host = own ? "127.0.0.1" : plan->master_addr,
                         .port = port,
                         .prefix = prefix,
                         .timeout_ms = STORE_MS,
                         .connect_timeout_ms = STORE_MS,
                         .describe = ""};
    status st = store_create(&how, &client);
    if (st == STATUS_OK && plan->node_rank == 0) {
        await_others(client, plan, stop_fd);
    } else if (st == STATUS_OK) {
        key_of(plan->node_rank, key);
        st = store_set(client, key, "1", 1);
    }
    if (st != STATUS_OK)
        LOG_D("goodbye to node 0: %s", status_message());
    store_destroy(client);
}
