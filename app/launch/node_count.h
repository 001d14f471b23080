/* How many nodes a job has whose --world-size alone is given: those that have come, once no other
 * has for a while. Node 0 decides (agent_rendezvous.c). */
#ifndef MNIST_DDP_APP_LAUNCH_NODE_COUNT_H
#define MNIST_DDP_APP_LAUNCH_NODE_COUNT_H

#include "app/launch/worker_spec.h"
#include "dist/store/store.h"

enum { NODE_COUNT_QUIET_MS = 5000 };

/* All zero before the first look. */
typedef struct node_count {
    int nodes;        /* how many are there */
    int expected;     /* up to the highest number of them, and two at least */
    int64_t since_ns; /* of that */
    bool is_news;     /* that it has changed with this look */
} node_count;

/* Looks at there[]. Whether nodes 0 to k are there, k >= 1, and none has come or gone for
 * NODE_COUNT_QUIET_MS, or it is late. */
bool node_count_look(node_count *count, const worker_spec *spec, const bool *there, bool is_late);

/* Node 0 says what comes of news, and what to type on one more node. */
void node_count_say(const node_count *count, const worker_spec *spec);

/* Node 0 decides. STATUS_INVALID, with what to type, if the ranks do not divide by the nodes. */
status node_count_publish(const node_count *count, const worker_spec *spec, store *client,
                          const char *prefix);

/* After the start: the spec is that of so many nodes, if they were counted. STATUS_INVALID for a
 * member that came too late. */
status node_count_take(worker_spec *spec, store *client, const char *prefix, int member);

/* The spec of a job that has so many nodes. */
void node_count_apply(worker_spec *spec, int nodes);

#endif
