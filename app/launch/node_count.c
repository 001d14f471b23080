#include "app/launch/node_count.h"

#include "app/launch/join_command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/membership/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next number of nodes that the ranks divide by. */
static int next_divisor(int world, int nodes)
{
    while (nodes < world && world % nodes != 0)
        nodes++;
    return nodes;
}

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

void node_count_say(const node_count *count, const worker_spec *spec)
{
    int nodes = count->nodes;
    if (!count->is_news || nodes != count->expected)
        return;
    char *line = nodes < spec->nnodes ? join_command(spec, nodes) : NULL;
    LOG_I("nodes 0 to %d are there: they start unless another one comes within %d s%s%s", nodes - 1,
          NODE_COUNT_QUIET_MS / 1000, line != NULL ? "; on one more: " : "",
          line != NULL ? line : "");
    free(line);
}

status node_count_publish(const node_count *count, const worker_spec *spec, store *client,
                          const char *prefix)
{
    char size[32];
    int nodes = count->nodes, world = spec->world_size;
    if (world % nodes != 0)
        return FAIL(STATUS_INVALID,
                    "%d nodes have come, and --world-size=%d does not divide by %d: start %d "
                    "nodes, or give all of them --world-size=%d",
                    nodes, world, nodes, next_divisor(world, nodes), (world / nodes + 1) * nodes);
    snprintf(size, sizeof size, "%d", nodes);
    return store_set(client, keys_make(prefix, KEYS_SIZE, -1).text, size, strlen(size));
}

status node_count_take(worker_spec *spec, store *client, const char *prefix, int member)
{
    enum { WAIT_MS = 5000 }; /* node 0 has set it before all started */
    char size[32];
    int nodes = 0;
    if (!spec->counts_nodes)
        return STATUS_OK;
    TRY(store_get_text(client, keys_make(prefix, KEYS_SIZE, -1).text, clock_deadline_ns(WAIT_MS),
                       size, sizeof size));
    if (!number_parse(size, 2, spec->nnodes, &nodes))
        return FAIL(STATUS_PEER, "node 0's number of nodes makes no sense: '%s'", size);
    if (member >= nodes)
        return FAIL(STATUS_INVALID, "the job has begun with %d nodes: node %d came too late", nodes,
                    member);
    node_count_apply(spec, nodes);
    return STATUS_OK;
}

void node_count_apply(worker_spec *spec, int nodes)
{
    spec->nnodes = spec->min_nodes = spec->max_nodes = nodes;
    spec->nproc = spec->world_size / nodes;
    spec->counts_nodes = false;
}
