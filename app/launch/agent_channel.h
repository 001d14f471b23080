/* What the agents of a job's nodes tell each other, through the store that node 0's serves.
 *
 * A thread of the agent does it, so that a slow network never keeps the agent from its workers. The
 * keys (dist/membership/keys.h) lie under mnist_ddp/launcher/, outside any attempt.
 */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_CHANNEL_H
#define MNIST_DDP_APP_LAUNCH_AGENT_CHANNEL_H

#include "app/launch/outcome.h"
#include "app/launch/roster.h"

typedef struct agent_channel agent_channel;

/* What is known of the other nodes. */
typedef struct agent_channel_snapshot {
    bool joined;         /* all nodes are there */
    int nnodes;          /* if so: how many they are */
    const char *failure; /* before they have joined: why they will not; after: why this node is cut
                            off. Nothing more will come. NULL: none. The channel's */
    bool unfit;          /* with `failure`: this node does not fit the others */
    const roster_node *known; /* with `failure`: who is lost; the channel's; NULL */
    bool in_trouble;          /* this attempt is to be stopped */
    bool has_outcome;         /* node 0 has decided on this attempt: agent_channel_take_outcome() */
} agent_channel_snapshot;

/* Joins the other nodes; in an elastic job those of the round, within the time after which a silent
 * node is lost. `server`: node 0's store; the others': NULL. The spec is copied. */
status agent_channel_create(const worker_spec *spec, store_server *server, agent_channel **out);

/* Readable if the snapshot has changed since agent_channel_look(). */
int agent_channel_fd(const agent_channel *channel);
agent_channel_snapshot agent_channel_look(agent_channel *channel);

/* Asks to join no more: the snapshot soon says `failure`, or `joined` if it was too late. */
void agent_channel_cancel_join(agent_channel *channel);

/* From now on `in_trouble` and `has_outcome` are of this attempt: neither is so yet. */
void agent_channel_start(agent_channel *channel, int attempt);

/* Tells the others to stop. */
void agent_channel_tell_trouble(agent_channel *channel);

/* Tells how this node's workers ended. The outcome follows once all nodes have reported. Node 0
 * declares a node lost that is silent for keep_alive_ms * keep_alive_misses. */
void agent_channel_tell_report(agent_channel *channel, const node_report *report);

/* The outcome of this attempt; the caller frees it. */
group_outcome agent_channel_take_outcome(agent_channel *channel);

/* After the last outcome: node 0 waits until all others have read it, CHANNEL_GOODBYE_MS at most.
 * Accepts NULL. false: its thread hangs in a call of the system and is left to itself; the server
 * must outlive it. */
enum { CHANNEL_GOODBYE_MS = 5000 };
bool agent_channel_destroy(agent_channel *channel);

#endif
